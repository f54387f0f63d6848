"""Measure a GPU into a specification that ``--device sim:PATH`` simulates: the verb ``calibrate``.

The rates are those of the clock's own model of a kernel: a fixed time, and then the longer of its
FLOPs over the attained rate and its bytes over the attained bandwidth. So the fixed time is
measured first, and taken off every other measurement.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mimose.devices.sim.gpus import ASSUMED_EVICTION_SECONDS, Gpu
from mimose.units import MIB, format_bytes, format_seconds

MEASURED_ON_CUDA = "measured on cuda"

Shape = tuple[int, int, int, int]
"""A batch of matrix products: their number, rows, inner extent and columns."""

# BERT-base at the paper's batch sizes and lengths: projections and both halves of the feed-forward
# network, then the scores of attention and what they are applied to.
MATMULS: tuple[Shape, ...] = (
    (1, 1536, 768, 768),
    (1, 1536, 768, 3072),
    (1, 3600, 768, 768),
    (1, 3600, 768, 3072),
    (1, 3600, 3072, 768),
    (1, 6144, 768, 3072),
    (1, 6144, 3072, 768),
    (144, 300, 64, 300),
    (144, 512, 64, 512),
    (144, 300, 300, 64),
)

ELEMENTWISE_BYTES = 256 * MIB
COPY_BYTES = 128 * MIB

_ROUNDS = 5
_FEW, _MANY = 10, 100

Call = Callable[[], object]


class Kernels(Protocol):
    """Work to time; each method prepares its tensors and returns a call that does it once."""

    def small(self) -> Sequence[Call]:
        """Return operators, one a call, on tensors so small that only their fixed cost is left."""

    def matmul(self, shape: Shape, precision: str) -> Call:
        """Return a batch of matrix products."""

    def elementwise(self, num_bytes: int) -> Sequence[tuple[Call, int]]:
        """Return operators on tensors of ``num_bytes``, and the bytes each reads and writes."""

    def host_copies(self, num_bytes: int, *, pinned: bool) -> Sequence[Call]:
        """Return copies to the device and back."""


class Timer(Protocol):
    """Times calls.

    Attributes:
        label: What every figure carries, for example ``measured on cuda``.
    """

    label: str

    def device_seconds(self, call: Call, repeats: int) -> float:
        """Return the device's time for one of ``repeats`` calls, itself never out of work."""

    def host_seconds(self, call: Call, repeats: int) -> float:
        """Return the host's time to issue one of ``repeats`` calls, nothing waited for."""

    def synchronize_seconds(self) -> float:
        """Return the host's time to find an idle device idle."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What was measured; see :class:`mimose.devices.sim.gpus.Gpu` for the fields of these names.

    ``label`` says what on. ``matmuls`` has the attained FLOP/s of each shape, by precision.
    """

    label: str
    attained_flops: Mapping[str, float]
    attained_bandwidth: float
    kernel_seconds: float
    launch_seconds: float
    copy_bandwidth: float
    pageable_copy_bandwidth: float
    synchronize_seconds: float
    matmuls: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Facts:
    """What a GPU and its driver say of themselves.

    Attributes:
        title: The product, as CUDA calls it.
        memory_bytes: Total memory as PyTorch reports it.
        context_bytes: Memory of this process outside PyTorch's allocator.
        compute_capability: Major and minor.
        num_sms: Number of streaming multiprocessors.
        software: Driver, CUDA and PyTorch with their versions.
        host: The host's processor.
    """

    title: str
    memory_bytes: int
    context_bytes: int
    compute_capability: tuple[int, int]
    num_sms: int
    software: str
    host: str


def measure_rates(
    kernels: Kernels,
    timer: Timer,
    precisions: Sequence[str],
    *,
    matmuls: Sequence[Shape] = MATMULS,
    elementwise_bytes: int = ELEMENTWISE_BYTES,
    copy_bytes: int = COPY_BYTES,
) -> Rates:
    """Measure everything that a specification needs of a GPU.

    Args:
        kernels: The work.
        timer: Times it.
        precisions: What matrix products are measured in; ``fp32`` is needed.
        matmuls: Their shapes; the median over them is attained.
        elementwise_bytes: Size of the tensors of element-wise operators, beyond any cache.
        copy_bytes: Size of a copy from or to the host.
    """
    # An idle GPU's clock is low: it rises under load.
    timer.device_seconds(kernels.matmul(matmuls[0], "fp32"), _MANY)
    small = kernels.small()
    fixed = statistics.median(_device_seconds(timer, call, _MANY) for call in small)
    launch = statistics.median(_median(timer.host_seconds, call, _MANY) for call in small)
    rates: dict[str, tuple[float, ...]] = {}
    for precision in precisions:
        rates[precision] = tuple(
            _flops(shape) / _beyond(fixed, timer, kernels.matmul(shape, precision), _FEW)
            for shape in matmuls
        )
    bandwidths = [
        moved / _beyond(fixed, timer, call, _FEW)
        for call, moved in kernels.elementwise(elementwise_bytes)
    ]
    copies = {
        pinned: statistics.median(
            copy_bytes / _beyond(fixed, timer, call, _FEW)
            for call in kernels.host_copies(copy_bytes, pinned=pinned)
        )
        for pinned in (True, False)
    }
    return Rates(
        label=timer.label,
        attained_flops={name: statistics.median(values) for name, values in rates.items()},
        attained_bandwidth=statistics.median(bandwidths),
        kernel_seconds=fixed,
        launch_seconds=launch,
        copy_bandwidth=copies[True],
        pageable_copy_bandwidth=copies[False],
        synchronize_seconds=statistics.median(timer.synchronize_seconds() for _ in range(_MANY)),
        matmuls=rates,
    )


def specification(
    rates: Rates, facts: Facts, planning: Mapping[str, float], name: str | None = None
) -> Gpu:
    """Return the measured GPU.

    Args:
        rates: What was measured on it.
        facts: What it says of itself.
        planning: Seconds of each unit of planning work on its host.
        name: Short name; made of the product's by default.

    Raises:
        ValueError: If the rates were not measured on a GPU.
    """
    if rates.label != MEASURED_ON_CUDA:
        raise ValueError(f"figures {rates.label} are no GPU's: calibrate one on its own machine")
    return Gpu(
        name=name or slug(facts.title),
        title=facts.title,
        memory_bytes=facts.memory_bytes,
        context_bytes=facts.context_bytes,
        compute_capability=facts.compute_capability,
        num_sms=facts.num_sms,
        peak_flops={},
        peak_bandwidth=None,
        attained_flops=rates.attained_flops,
        attained_bandwidth=rates.attained_bandwidth,
        kernel_seconds=rates.kernel_seconds,
        launch_seconds=rates.launch_seconds,
        copy_bandwidth=rates.copy_bandwidth,
        pageable_copy_bandwidth=rates.pageable_copy_bandwidth,
        synchronize_seconds=rates.synchronize_seconds,
        host_unit_seconds=planning,
        calibration=f"{MEASURED_ON_CUDA} by mimose-bench calibrate: {facts.software}",
        sources=(
            f"attained_flops: median over {len(MATMULS)} products of BERT-base's shapes",
            f"host_unit_seconds, launch_seconds: measured on the host's {facts.host}",
            f"host_unit_seconds.{', .'.join(ASSUMED_EVICTION_SECONDS)}: assumed, the order of a "
            "runtime in C++",
        ),
    )


def slug(title: str) -> str:
    """Return ``title`` as a name for files and ``sim:``, for example ``nvidia-h200``."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "gpu"


def rows(gpu: Gpu, matmuls: Mapping[str, Sequence[float]]) -> list[tuple[str, str, str]]:
    """Return what was measured, its value and its spread, each a row to print."""
    found = [
        ("memory", format_bytes(gpu.memory_bytes), ""),
        ("CUDA context", format_bytes(gpu.context_bytes), ""),
    ]
    for precision, rate in gpu.attained_flops.items():
        low, high = min(matmuls[precision]), max(matmuls[precision])
        spread = f"{low / 1e12:.1f} to {high / 1e12:.1f} by shape"
        found.append((f"matrix products {precision}", f"{rate / 1e12:.1f} TFLOP/s", spread))
    for what, rate in (
        ("element-wise operators", gpu.attained_bandwidth),
        ("copies, pinned", gpu.copy_bandwidth),
        ("copies, pageable", gpu.pageable_copy_bandwidth),
    ):
        found.append((what, f"{rate / 1e9:.1f} GB/s", ""))
    for what, seconds in (
        ("kernel, fixed part", gpu.kernel_seconds),
        ("operator on the host", gpu.launch_seconds),
        ("synchronisation", gpu.synchronize_seconds),
        *((f"planning: {unit}", seconds) for unit, seconds in gpu.host_unit_seconds.items()),
    ):
        found.append((what, format_seconds(seconds), ""))
    return found


def _flops(shape: Shape) -> int:
    count, rows, inner, columns = shape
    return 2 * count * rows * inner * columns


def _median(measure: Callable[[Call, int], float], call: Call, repeats: int) -> float:
    return statistics.median(measure(call, repeats) for _ in range(_ROUNDS))


def _device_seconds(timer: Timer, call: Call, repeats: int) -> float:
    return _median(timer.device_seconds, call, repeats)


def _beyond(fixed: float, timer: Timer, call: Call, repeats: int) -> float:
    """Return a call's device time beyond the fixed part, of which it keeps half at least."""
    seconds = _device_seconds(timer, call, repeats)
    return max(seconds - fixed, seconds / 2)
