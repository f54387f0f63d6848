"""Whether a device can be opened and what memory it has, asked before anything runs on it."""

from __future__ import annotations

from mimose.devices import open_device
from mimose.devices.sim.gpus import load_gpu


def require_device(name: str, *, here: bool = True) -> None:
    """Raise what opening a device would raise, without opening one that works.

    A device on cuda stays unopened: its context would hold the GPU's memory beside the runs'.

    Args:
        name: As :func:`mimose.devices.open_device` takes it.
        here: Whether it is to work on this machine; a cluster's GPUs are on others.

    Raises:
        ValueError: If there is no such device.
    """
    kind, _, rest = name.partition(":")
    if kind == "sim" and rest:
        load_gpu(rest)
        return
    if name in ("auto", "cpu"):
        return
    if kind == "cuda" and (name == kind or rest.isdigit()) and (not here or _is_here(rest)):
        return
    open_device(name).close()


def own_device(name: str) -> str:
    """Return the device of this process, where a launcher has started several on one machine.

    Each has a GPU of its own, by its ``LOCAL_RANK``; other devices are as they were named.
    """
    if name.partition(":")[0] not in ("auto", "cuda"):
        return name
    import torch

    from mimose.distributed.processes import number_given, started_together

    if started_together() == 1:
        return name
    if name == "auto" and not torch.cuda.is_available():
        return name
    return f"cuda:{number_given('LOCAL_RANK', number_given('RANK', 0))}"


def memory_of(name: str) -> int:
    """Return the bytes of memory that a device has: the GPU's, or for ``cpu`` the machine's.

    Of several processes that of each one's own device.

    Args:
        name: As :func:`mimose.devices.open_device` takes it.

    Raises:
        ValueError: If there is no such device.
    """
    name = own_device(name)
    require_device(name)
    kind, _, rest = name.partition(":")
    if kind == "sim":
        return load_gpu(rest).memory_bytes
    import torch

    from mimose.attaching import place_bytes

    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    return place_bytes(torch.device(kind, int(rest or 0)))


def _is_here(index: str) -> bool:
    import torch

    return torch.cuda.is_available() and int(index or 0) < torch.cuda.device_count()
