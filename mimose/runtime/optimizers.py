"""What an optimizer's step takes of memory, and what state optimizers are in."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import sys
from collections.abc import Iterable

import torch

from mimose.devices.base import Device

_MOST_NUMBERS, _LEAST_NUMBERS = 1 << 20, 1 << 14
_SHARE = 64
"""The stand-in has this part of the parameters' bytes at most: it has to fit beside them."""
_STATES_UNKNOWN = 2
"""Adam's two moments: what an optimizer is taken to keep that cannot be tried."""


def optimizer_costs(
    optimizer: torch.optim.Optimizer | None, device: Device, gradient_bytes: int
) -> tuple[int, int]:
    """Return the bytes of an optimizer's state and of what a step needs besides.

    An optimizer of the same class and settings takes two steps on a parameter of its own, of 4 MiB
    at most, on the device. What it keeps and needs is taken to be in proportion to the parameters.

    Args:
        optimizer: The optimizer; None, or one that cannot be made anew, is taken for Adam.
        device: Where to try.
        gradient_bytes: Bytes of all trainable parameters.
    """
    numbers = max(_LEAST_NUMBERS, min(_MOST_NUMBERS, gradient_bytes // (4 * _SHARE)))
    twin = None if optimizer is None else _twin(optimizer, device, numbers)
    if twin is None:
        return _STATES_UNKNOWN * gradient_bytes, gradient_bytes
    parameter = twin.param_groups[0]["params"][0]
    size = parameter.numel() * parameter.element_size()
    before = device.mark().allocated
    twin.step()
    middle = device.mark().allocated
    twin.step()
    after = device.mark()
    state = (middle - before) / size
    peak = after.allocated if after.peak_allocated is None else after.peak_allocated
    temporary = max(0.0, (peak - middle) / size)
    if optimizer is not None and not optimizer.defaults.get("foreach", True):
        # One parameter at a time: the largest one's temporaries.
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        largest = max((p.numel() * p.element_size() for p in parameters), default=0)
        return int(state * gradient_bytes), int(temporary * largest)
    return int(state * gradient_bytes), int(temporary * gradient_bytes)


def with_state(parameters: Iterable[torch.nn.Parameter]) -> bool:
    """Return whether some optimizer has state of one of ``parameters`` already.

    A run that is resumed has loaded it before its first step. No loop tells which optimizers there
    are, so what refers to their classes is looked for, as objects do: some 100 ms, once.
    """
    ours = set(map(id, parameters))
    # Not among all objects: whoever has them in hand breaks a tuple that another thread is making.
    for found in gc.get_referrers(*_optimizer_classes()):
        # Not isinstance, which some proxies take for a use of what they stand for.
        if issubclass(type(found), torch.optim.Optimizer):
            state = getattr(found, "state", {})
            if any(id(parameter) in ours and kept for parameter, kept in state.items()):
                return True
    return False


def _optimizer_classes() -> list[type]:
    classes: list[type] = [torch.optim.Optimizer]
    for each in classes:
        classes += [c for c in type.__subclasses__(each) if c not in classes]
    return classes


def stepping() -> bool:
    """Return whether this is called from within an optimizer's step, as closures are."""
    frame = sys._getframe(1)
    while frame is not None:
        owner = frame.f_locals.get("self")
        if frame.f_code.co_name == "step" and issubclass(type(owner), torch.optim.Optimizer):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _twin(
    optimizer: torch.optim.Optimizer, device: Device, numbers: int
) -> torch.optim.Optimizer | None:
    """Return an optimizer like ``optimizer`` on a parameter of its own, or None."""
    kind = type(optimizer)
    takes = inspect.signature(kind).parameters
    settings = {name: value for name, value in optimizer.defaults.items() if name in takes}
    parameter = torch.nn.Parameter(torch.zeros(numbers, device=device.torch_device))
    parameter.grad = torch.zeros_like(parameter)
    with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
        # A user's own class may do anything at all.
        return kind([parameter], **settings)
    return None
