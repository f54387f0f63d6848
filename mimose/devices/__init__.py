"""Where tensors live, what memory is in use, what the budget is, what time it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

    from mimose.devices.base import Device

DEVICES = ("auto", "cuda", "cpu", "sim")
"""Kinds that :func:`open_device` takes; ``auto`` is ``cuda`` where there is one, else ``cpu``, and
``sim`` needs a GPU's name."""


ALLOCATORS = ("native", "expandable")
"""Modes of the caching allocator: segments of fixed sizes, or expandable ones."""


def open_device(
    name: str = "auto", *, reset_peaks: bool = False, allocator: str | None = None
) -> Device:
    """Open the device called ``name``.

    Args:
        name: One of :data:`DEVICES`, ``cuda:N``, or ``sim:NAME`` with a GPU that
            :func:`mimose.devices.sim.gpus.load_gpu` knows or the path of a specification.
        reset_peaks: Whether the process's peak statistics may be reset on cuda, for exact peaks
            of parts of a step. Leave it off where they are a user's own.
        allocator: One of :data:`ALLOCATORS`, for ``cpu`` and ``sim``, ``native`` by default. On
            cuda PyTorch's own settings say it.

    Raises:
        ValueError: If there is no such device or allocator, or if it cannot be opened.
    """
    import torch

    if allocator is not None and allocator not in ALLOCATORS:
        raise ValueError(f"the allocator is {' or '.join(ALLOCATORS)}, not {allocator!r}")
    expandable = allocator == "expandable"

    kind, _, index = name.partition(":")
    if kind == "sim":
        from mimose.devices.sim.device import SimDevice
        from mimose.devices.sim.gpus import GPUS

        if not index:
            raise ValueError(f"--device sim needs a GPU: choose one of sim:{', sim:'.join(GPUS)}")
        return SimDevice(index, expandable=expandable)
    if kind not in DEVICES or (index and (kind != "cuda" or not index.isdigit())):
        raise ValueError(
            f"unknown device {name!r}: choose one of auto, cuda, cuda:N, cpu and sim:NAME, for "
            "example sim:v100"
        )
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cuda":
        if allocator is not None:
            raise ValueError(
                "on cuda the allocator is PyTorch's: leave --allocator out and set "
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (or False) before the start"
            )
        from mimose.devices.cuda import CudaDevice

        return CudaDevice(int(index or 0), reset_peaks=reset_peaks)
    from mimose.devices.cpu import CpuDevice

    return CpuDevice(expandable=expandable)


def device_for(module: torch.nn.Module) -> Device:
    """Open the device that ``module`` is on.

    On the CPU the module's memory was taken before the device could see it, so its bytes are
    added to what is allocated and reserved.

    Raises:
        ValueError: If the module is on several devices, on one of another kind, or has no
            parameters.
    """
    from mimose.devices.tensors import model_tensors, storage_bytes

    places = {t.device for t in module.parameters()}
    if len(places) != 1:
        where = ", ".join(sorted(map(str, places))) or "no device, since it has no parameters"
        raise ValueError(f"the model must be on one device, but is on {where}")
    (place,) = places
    if place.type == "cuda":
        return open_device(f"cuda:{place.index or 0}")
    if place.type != "cpu":
        raise ValueError(
            f"the model is on {place}: move it to cuda or cpu, or simulate it with "
            "device=open_device('sim:NAME') (docs/simulation.md, 'Your own model')"
        )
    from mimose.devices.cpu import CpuDevice

    device = CpuDevice()
    device.add_foreign(storage_bytes(model_tensors(module)))
    return device
