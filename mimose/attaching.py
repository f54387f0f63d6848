"""What `attach` checks before it changes anything, and what it makes of a budget."""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection
from typing import Any

import torch

from mimose.attached import check_cpu_free
from mimose.devices import device_for
from mimose.devices.base import Device
from mimose.devices.tensors import storage_bytes
from mimose.distributed.wrapping import check_supported, unwrapped
from mimose.planners import make_planner, planner_options
from mimose.planners.base import Planner
from mimose.runtime.wrappers import COMPILED_WHOLE
from mimose.units import MIB, format_bytes, parse_budget, unit_hint

OWN_NAMES = ("budget", "planner", "blocks", "device", "enforce", "size", "sync")
"""What ``attach`` takes itself, beside the model and the planner's options."""


def checked_model(model: Any) -> torch.nn.Module:
    """Return the module to attach: ``model``, or what ``DistributedDataParallel`` has wrapped.

    Raises:
        ValueError: If ``model`` is no module, is compiled as a whole, or is wrapped in what does
            not let blocks run again.
    """
    _check_model(model)
    module: torch.nn.Module = unwrapped(model)
    if module is not model:
        _check_model(module)
    return module


def _check_model(model: Any) -> None:
    check_supported(model)
    if not isinstance(model, torch.nn.Module):
        raise ValueError(f"mimose.attach takes a torch.nn.Module, not {type(model).__name__}")
    if is_compiled_whole(model):
        raise ValueError(COMPILED_WHOLE)


def is_compiled_whole(model: torch.nn.Module) -> bool:
    """Whether ``model`` is what ``torch.compile`` returned, or was compiled in place."""
    return hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None


def check_arguments(blocks: Any, size: Any, enforce: Any) -> None:
    """Refuse arguments of another kind than what is to be done with them takes.

    Args:
        blocks: Names of modules, or None.
        size: A function, or None.
        enforce: True or False.

    Raises:
        ValueError: If one is neither.
    """
    if not isinstance(enforce, bool):
        raise ValueError(f"enforce must be True or False, not {enforce!r}")
    if size is not None and not callable(size):
        raise ValueError(
            f"size is a function of the forward pass's (args, kwargs), not {size!r}: for example "
            "size=lambda args, kwargs: tuple(args[0].shape)"
        )
    if blocks is None or isinstance(blocks, str):
        return
    for name in blocks if isinstance(blocks, Collection) else [blocks]:
        if not isinstance(name, str):
            raise ValueError(
                f"blocks is a list of modules' names, which {name!r} is not: for example "
                "blocks=['encoder.layers.*']"
            )


def chosen_planner(planner: Any, options: dict[str, Any]) -> Planner:
    """Return the planner that a name or a planner stands for.

    Raises:
        ValueError: If it is neither, or takes no such options.
    """
    if isinstance(planner, str):
        _check_own_names(planner, options)
    chosen: Planner = make_planner(planner, **options) if isinstance(planner, str) else planner
    if not callable(getattr(chosen, "plan", None)) or isinstance(chosen, type):
        raise ValueError(
            f"planner is a name or a planner, not {planner!r}: mimose.PLANNERS lists the names"
        )
    return chosen


def _check_own_names(planner: str, options: Collection[str]) -> None:
    """Refuse an option that a planner does not have and that looks like one of attach's own."""
    known = planner_options(planner)
    for name in () if known is None else options:
        if name in known:
            continue
        near = difflib.get_close_matches(name, [*known, *OWN_NAMES], n=1)
        if near and near[0] not in known:
            raise ValueError(
                f"planner {planner!r} has no option {name}: did you mean {near[0]!r}, which "
                "mimose.attach takes itself?"
            )


def budget_bytes(
    budget: int | float | str | None, model: torch.nn.Module, device: Device | None
) -> int | None:
    """Return a budget in bytes, or None for none.

    Args:
        budget: Bytes, text such as ``"6GB"``, a share of the device's memory such as ``"80%"`` or
            ``0.8``, or None or ``"none"``.
        model: The model, which says what the device is where ``device`` does not.
        device: The device, if it is open already.

    Raises:
        ValueError: If it is none of these, or less than the model's parameters take.
    """
    if budget is None or str(budget).strip().lower() == "none":
        return None
    found = parse_budget(budget, lambda: memory_bytes(model, device))
    parameters = storage_bytes([*model.parameters(), *model.buffers()])
    if parameters > found:
        plain = not isinstance(budget, str) and found < MIB
        raise ValueError(
            f"a budget of {format_bytes(found)} is less than the model's parameters take "
            f"({format_bytes(parameters)}): give a larger budget or use a smaller model"
            + (f"; {unit_hint(found)}" if plain else "")
        )
    return found


def memory_bytes(model: torch.nn.Module, device: Device | None) -> int:
    """Return the bytes of memory that the device of ``model`` has.

    On cuda and in a simulation those of the GPU, on the CPU those of the machine.

    Raises:
        ValueError: If the device does not say.
    """
    gpu = getattr(device, "gpu", None)
    if gpu is not None:
        return int(gpu.memory_bytes)
    parameter = next(model.parameters(), None)
    place = parameter.device if device is None and parameter is not None else None
    return place_bytes(place or (torch.device("cpu") if device is None else device.torch_device))


def place_bytes(place: torch.device) -> int:
    """Return the bytes of memory that the GPU, or for ``cpu`` the machine, has.

    Raises:
        ValueError: If that is not known.
    """
    if place.type == "cuda":
        return int(torch.cuda.get_device_properties(place).total_memory)
    if place.type == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    raise ValueError(f"how much memory {place} has is not known: give the budget in bytes")


def open_for(model: torch.nn.Module, device: Any) -> tuple[Device, bool]:
    """Return the device to measure on, and whether it was opened here.

    Args:
        model: The model.
        device: The device, or None for that of the model's parameters.

    Raises:
        ValueError: If that is no device, or not the one that the model is on, or if it is the cpu
            and another model is attached there.
    """
    if isinstance(device, str):
        raise ValueError(
            f"device is one that is open, not its name: mimose.devices.open_device({device!r})"
        )
    first = next(model.parameters(), None)
    owned = device is None
    if owned:
        if first is not None and first.device.type == "cpu":
            check_cpu_free()
        device = device_for(model)
    if first is not None and first.device.type != device.torch_device.type:
        raise ValueError(
            f"the model is on {first.device.type} and the device counts "
            f"{device.torch_device.type}: "
            "call device.adopt(model) first, and make the optimizer afterwards"
        )
    return device, owned


def check_size(size: Any, what: str) -> None:
    """Refuse what is no size of a batch.

    Args:
        size: What is to be one.
        what: How the sentence begins.

    Raises:
        ValueError: If it is none.
    """
    whole = isinstance(size, tuple) and all(isinstance(x, int) and x > 0 for x in size)
    if not whole or not size:
        raise ValueError(
            f"{what} {size!r}: it is to be a tuple of positive integers, the batch first, for "
            "example (8, 512)"
        )
