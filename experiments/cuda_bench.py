"""Calibrating on a GPU: the work that is timed, as PyTorch does it, and a timer for CUDA.

The kernels run on any device, so that they can be tried without a GPU; the timer needs one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everyone knows it by

from mimose_bench.experiments import environment
from mimose_bench.experiments.calibrate import (
    MEASURED_ON_CUDA,
    Call,
    Facts,
    Rates,
    Shape,
    measure_rates,
)

_DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
}
# Some 10 ms on any GPU: longer than the host takes to issue all that is timed behind it.
_HELD_CYCLES = 15_000_000
_TF32_SINCE = (8, 0)


def calibrate(name: str = "cuda") -> tuple[Rates, Facts]:
    """Measure the GPU called ``name``, which takes less than a minute.

    Raises:
        ValueError: If there is no such GPU.
    """
    device = find_gpu(name)
    timer = CudaTimer(device)
    capability = torch.cuda.get_device_capability(device)
    with torch.no_grad():
        rates = measure_rates(TorchKernels(device), timer, precisions(capability))
    return rates, cuda_facts(device)


def title(name: str = "cuda") -> str:
    """Return what the GPU called ``name`` is.

    Raises:
        ValueError: If there is no such GPU.
    """
    return torch.cuda.get_device_name(find_gpu(name))


def find_gpu(name: str) -> torch.device:
    """Return the GPU called ``cuda`` or ``cuda:N``.

    Raises:
        ValueError: If there is no such GPU.
    """
    kind, _, index = name.partition(":")
    if kind != "cuda" or not (index.isdigit() or index == "" == name[len("cuda") :]):
        raise ValueError(f"calibrate measures a GPU, not {name!r}: give cuda or cuda:N")
    if not torch.cuda.is_available():
        raise ValueError(
            "calibrate needs a CUDA device, and this machine or this PyTorch has none: "
            "run it where the GPU is"
        )
    number = int(index or torch.cuda.current_device())
    if number >= torch.cuda.device_count():
        raise ValueError(f"there is no {name}: this machine has {torch.cuda.device_count()}")
    return torch.device("cuda", number)


class TorchKernels:
    """Work on ``device``, see :class:`mimose_bench.experiments.calibrate.Kernels`."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def small(self) -> Sequence[Call]:
        """Return common operators of a training step on tiny tensors."""
        x = torch.randn(8, 8, device=self.device)
        weight, bias = torch.randn(8, 8, device=self.device), torch.randn(8, device=self.device)
        return (
            partial(torch.add, x, x),
            partial(torch.mul, x, x),
            partial(F.gelu, x),
            partial(torch.softmax, x, -1),
            partial(F.layer_norm, x, (8,), bias, bias),
            partial(torch.addmm, bias, x, weight),
        )

    def matmul(self, shape: Shape, precision: str) -> Call:
        """Return a batch of matrix products; a single one is no batch to PyTorch, either."""
        count, rows, inner, columns = shape
        dtype = _DTYPES[precision]
        a = torch.randn(count, rows, inner, device=self.device, dtype=dtype)
        b = torch.randn(count, inner, columns, device=self.device, dtype=dtype)
        out = torch.empty(count, rows, columns, device=self.device, dtype=dtype)
        call = (
            partial(torch.bmm, a, b, out=out)
            if count > 1
            else partial(torch.mm, a[0], b[0], out=out[0])
        )

        def run() -> torch.Tensor:
            with _tf32(precision == "tf32"):
                return call()

        return run

    def elementwise(self, num_bytes: int) -> Sequence[tuple[Call, int]]:
        """Return an addition, a copy and a scaling in place."""
        a, b, out = (torch.ones(num_bytes // 4, device=self.device) for _ in range(3))
        moved = num_bytes // 4 * 4
        return (
            (partial(torch.add, a, b, out=out), 3 * moved),
            (partial(out.copy_, a), 2 * moved),
            (partial(out.mul_, 1.0), 2 * moved),
        )

    def host_copies(self, num_bytes: int, *, pinned: bool) -> Sequence[Call]:
        """Return a copy to the device and one back."""
        pinned = pinned and self.device.type == "cuda"
        host = torch.ones(num_bytes, dtype=torch.uint8, pin_memory=pinned)
        there = torch.ones(num_bytes, dtype=torch.uint8, device=self.device)
        return (
            partial(there.copy_, host, non_blocking=pinned),
            partial(host.copy_, there, non_blocking=pinned),
        )


class CudaTimer:
    """Times calls on one GPU by CUDA events."""

    label = MEASURED_ON_CUDA

    def __init__(self, device: torch.device) -> None:
        if device.type != "cuda":
            raise ValueError(f"a CUDA timer times a CUDA device, not {device}")
        self.device = device

    def device_seconds(self, call: Call, repeats: int) -> float:
        """Return the device's time for one of ``repeats`` calls, issued while it was held up."""
        with torch.cuda.device(self.device):
            call()  # Allocations, and the choice of a kernel.
            torch.cuda.synchronize()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(_HELD_CYCLES)
            start.record()
            for _ in range(repeats):
                call()
            end.record()
            end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / repeats

    def host_seconds(self, call: Call, repeats: int) -> float:
        """Return the host's time to issue one of ``repeats`` calls."""
        with torch.cuda.device(self.device):
            call()
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(repeats):
                call()
            issued = time.perf_counter()
            torch.cuda.synchronize()
        return (issued - started) / repeats

    def synchronize_seconds(self) -> float:
        """Return the host's time to find the idle GPU idle."""
        torch.cuda.synchronize(self.device)
        started = time.perf_counter()
        torch.cuda.synchronize(self.device)
        return time.perf_counter() - started


def precisions(compute_capability: tuple[int, int]) -> tuple[str, ...]:
    """Return what matrix products can be computed in; bf16 is emulated on older GPUs."""
    tf32 = ("tf32",) if compute_capability >= _TF32_SINCE else ()
    return ("fp32", *tf32, "fp16", "bf16")


def cuda_facts(device: torch.device) -> Facts:
    """Return what the GPU says of itself; its context must be there already."""
    properties = torch.cuda.get_device_properties(device)
    figures = environment.gpu(device.index) or {}
    free, total = torch.cuda.mem_get_info(device)
    # What NVML attributes to the process, where it does; else all that is taken on the GPU.
    taken = figures.get("process_bytes") or total - free
    return Facts(
        title=properties.name,
        memory_bytes=properties.total_memory,
        context_bytes=max(0, taken - torch.cuda.memory_reserved(device)),
        compute_capability=(properties.major, properties.minor),
        num_sms=properties.multi_processor_count,
        software=f"driver {figures.get('driver') or 'unknown'}, CUDA {torch.version.cuda}, "
        f"PyTorch {torch.__version__}",
        host=environment.cpu_model(),
    )


@contextlib.contextmanager
def _tf32(allowed: bool) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
