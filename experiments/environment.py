"""What a run ran on: versions, machine, device, clocks, and the command itself.

Nothing here names the user's folders beyond what the command line itself says.
"""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from mimose_bench.experiments import sources

PACKAGES = (
    "mimose-bench",
    "torch",
    "transformers",
    "datasets",
    "tokenizers",
    "numpy",
    "pandas",
    "pyarrow",
)

ALLOCATOR_VARIABLES = (
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "MALLOC_CONF",
    "LD_PRELOAD",
)


def capture(device: str = "cpu") -> dict[str, Any]:
    """Return the environment as ``run.json`` keeps it.

    Args:
        device: ``cuda`` adds the GPU, its driver, clocks and memory as NVML reports them.
    """
    import psutil
    import torch

    return {
        "command": command_line(),
        "git_commit": git_commit(),
        "source": sources.digest(of_runs=True),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "cpu": cpu_model(),
        "num_cpus": os.cpu_count(),
        "num_threads": torch.get_num_threads(),
        "load_average": _load_average(),
        "memory_bytes": psutil.virtual_memory().total,
        "memory_available_bytes": psutil.virtual_memory().available,
        "allocator": allocator_settings(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "tf32": torch.get_float32_matmul_precision() != "highest",
        "gpu": gpu() if device == "cuda" else None,
    }


def command_line() -> list[str]:
    """Return the command, its program without the folder that it lies in."""
    return [Path(sys.argv[0]).name, *sys.argv[1:]]


def versions() -> dict[str, str | None]:
    """Return the version of each package that can change a result; None if it is missing."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def git_commit() -> str | None:
    """Return the commit of the checkout that this code runs from, ``-dirty`` if changed.

    None if it does not run from a checkout of this project, as an installed wheel does not.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists() or not (root / "pyproject.toml").exists():
        return None
    commit = _output(["git", "-C", str(root), "rev-parse", "HEAD"])
    if commit is None:
        return None
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit}-dirty" if changed else commit


def code() -> str:
    """Return in words the code that runs here; see :func:`.sources.code_of`."""
    found = sources.code_of({"source": sources.digest(of_runs=True), "versions": versions()})
    assert found is not None
    return found


def cpu_model() -> str:
    """Return the processor's name."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def allocator_settings() -> dict[str, str]:
    """Return the allocators' environment variables that are set."""
    return {name: os.environ[name] for name in ALLOCATOR_VARIABLES if name in os.environ}


def gpu(index: int | None = None) -> dict[str, Any] | None:
    """Return the GPU's name, driver and NVML's figures at this moment; None without a GPU.

    NVML counts the whole card and the whole process (contexts and libraries included), PyTorch only
    its allocator: the two are kept side by side and never mixed.

    Args:
        index: Number of the device as PyTorch counts them; the current one by default.
    """
    import torch

    if not torch.cuda.is_available():
        return None
    number = torch.cuda.current_device() if index is None else index
    properties = torch.cuda.get_device_properties(number)
    facts: dict[str, Any] = {
        "name": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "num_multiprocessors": properties.multi_processor_count,
        "total_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }
    return facts | nvml(getattr(properties, "uuid", None))


def nvml(uuid: Any) -> dict[str, Any]:
    """Return NVML's figures of the GPU called ``uuid``; a figure that it does not give is None.

    ``process_bytes`` is what NVML attributes to this process, None inside containers that hide it.
    """
    keys = ("driver", "sm_clock_mhz", "memory_clock_mhz", "max_sm_clock_mhz", "power_watts")
    figures: dict[str, Any] = dict.fromkeys(
        (*keys, "temperature_celsius", "utilization_percent", "used_bytes", "process_bytes")
    )
    try:
        import pynvml
    except ImportError:
        return figures
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return figures
    try:
        # CUDA_VISIBLE_DEVICES renumbers the devices for PyTorch, but not for NVML.
        handle = _nvml_handle(pynvml, uuid)
        if handle is None:
            return figures
        readers = {
            "driver": lambda: _text(pynvml.nvmlSystemGetDriverVersion()),
            "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "memory_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(
                handle, pynvml.NVML_CLOCK_MEM
            ),
            "max_sm_clock_mhz": lambda: pynvml.nvmlDeviceGetMaxClockInfo(
                handle, pynvml.NVML_CLOCK_SM
            ),
            "power_watts": lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_celsius": lambda: pynvml.nvmlDeviceGetTemperature(
                handle, pynvml.NVML_TEMPERATURE_GPU
            ),
            "utilization_percent": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "used_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
            "process_bytes": lambda: _process_bytes(pynvml, handle),
        }
        for name, read in readers.items():
            with contextlib.suppress(pynvml.NVMLError):
                figures[name] = read()
    finally:
        pynvml.nvmlShutdown()
    return figures


def _nvml_handle(pynvml: Any, uuid: Any) -> Any:
    with contextlib.suppress(pynvml.NVMLError):
        if uuid is not None:
            name = str(uuid)
            return pynvml.nvmlDeviceGetHandleByUUID(name if name[:4] == "GPU-" else f"GPU-{name}")
        if pynvml.nvmlDeviceGetCount() == 1:
            return pynvml.nvmlDeviceGetHandleByIndex(0)
    return None


def _process_bytes(pynvml: Any, handle: Any) -> int | None:
    for process in pynvml.nvmlDeviceGetComputeRunningProcesses(handle):
        if process.pid == os.getpid():
            return process.usedGpuMemory
    return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _load_average() -> list[float] | None:
    try:
        return [round(value, 2) for value in os.getloadavg()]
    except OSError:
        return None


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
