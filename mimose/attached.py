"""Which models are attached, and how to give back one whose handle was lost."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import torch

from mimose.distributed.wrapping import unwrapped

if TYPE_CHECKING:
    from mimose.handle import Handle

# The attached model keeps its handle alive, which this must not do for either.
_handles: weakref.WeakKeyDictionary[torch.nn.Module, weakref.ReferenceType[Handle]] = (
    weakref.WeakKeyDictionary()
)


def handle_of(model: torch.nn.Module) -> Handle | None:
    """Return the handle of ``model``, or None if it is not attached."""
    found = _handles.get(model)
    return None if found is None else found()


def add(handle: Handle) -> None:
    """Take note that a model was attached."""
    _handles[handle.model] = weakref.ref(handle)


def discard(model: torch.nn.Module) -> None:
    """Take note that a model was given back."""
    _handles.pop(model, None)


def check_free(model: torch.nn.Module) -> None:
    """Refuse a model that is attached.

    Raises:
        ValueError: If it is.
    """
    if handle_of(model) is not None:
        raise ValueError(
            "this model is attached already: call detach() on its handle first, or "
            "mimose.detach(model) if the handle is lost"
        )


def check_cpu_free() -> None:
    """Refuse a second model on the cpu; one that nothing refers to any more is let go first.

    Raises:
        ValueError: If one is attached there.
    """
    if _on_cpu():
        gc.collect()  # A model and its handle refer to each other.
    others = _on_cpu()
    if others:
        names = " and ".join(repr(handle) for handle in others)
        raise ValueError(
            "another model is attached on the cpu, whose memory can be counted for one at a "
            f"time: call detach() on its handle first, {names}, or mimose.detach_all() if that is "
            "lost"
        )


def detach(model: torch.nn.Module) -> None:
    """Give ``model`` back as it was, without its handle: one that was lost, say, in a notebook.

    Args:
        model: What was given to :func:`mimose.attach`, or the module that was wrapped in it.

    Raises:
        ValueError: If it is not attached.
        torch.OutOfMemoryError: As :meth:`mimose.Handle.detach` does.
    """
    handle = handle_of(unwrapped(model)) if isinstance(model, torch.nn.Module) else None
    if handle is None:
        raise ValueError(
            f"this {type(model).__name__} is not attached: give the model that mimose.attach was "
            "given, or call mimose.detach_all()"
        )
    handle.detach()


def detach_all() -> None:
    """Give every attached model back as it was; where there is none, nothing happens.

    Raises:
        torch.OutOfMemoryError: As :meth:`mimose.Handle.detach` does.
    """
    for handle in _all():
        handle.detach()


def _all() -> list[Handle]:
    return [handle for found in list(_handles.values()) if (handle := found()) is not None]


def _on_cpu() -> list[Handle]:
    return [handle for handle in _all() if handle.device.kind == "cpu"]
