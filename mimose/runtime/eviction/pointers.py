"""Who reaches for a tensor's memory past PyTorch's dispatcher: by its address, as an array.

Such methods of :class:`torch.Tensor` run no operator, and so no dispatch mode sees them. While
somebody watches, they are replaced by ones that tell it first. (A ``TorchFunctionMode`` would see
them, too, but every other call as well, which costs each of them.)
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import torch
import torch.utils.dlpack

storage_of = torch._C.TensorBase.untyped_storage
"""A tensor's storage, without anybody's being told."""


class Reach(IntEnum):
    """How far somebody reaches.

    Attributes:
        READ: The data is copied, and that is all.
        STORAGE: The storage itself, often only to tell which it is.
        ADDRESS: The address, which a kernel gets that reads or writes, now.
        SHARED: An array of the same memory, which may be read and written at any later time.
    """

    READ = 0
    STORAGE = 1
    ADDRESS = 2
    SHARED = 3


Watcher = Callable[[torch.Tensor, Reach], None]

_METHODS: tuple[tuple[Any, str, Reach], ...] = (
    (torch.Tensor, "tolist", Reach.READ),
    (torch.Tensor, "untyped_storage", Reach.STORAGE),
    (torch.Tensor, "data_ptr", Reach.ADDRESS),
    (torch.Tensor, "const_data_ptr", Reach.ADDRESS),
    (torch.Tensor, "numpy", Reach.SHARED),
    (torch.Tensor, "__dlpack__", Reach.SHARED),
    (torch.Tensor, "__cuda_array_interface__", Reach.SHARED),
    (torch.utils.dlpack, "to_dlpack", Reach.SHARED),
)
"""What reaches for memory. Other ways (``__array__``, ``storage()``, ``share_memory_()``, pickling)
come down to these."""

_watchers: list[Watcher] = []
_replaced: list[tuple[Any, str, Any, Any]] = []


def watch(watcher: Watcher) -> None:
    """Have a watcher called with each tensor whose memory is reached for, right before it is."""
    if not _watchers:
        _replace()
    _watchers.append(watcher)


def unwatch(watcher: Watcher) -> None:
    """Call a watcher no more; the last one leaves everything as it was."""
    if watcher in _watchers:
        _watchers.remove(watcher)
        if not _watchers:
            _put_back()


def _replace() -> None:
    for owner, name, reach in _METHODS:
        original = getattr(owner, name, None)
        if original is None:
            continue  # A version of PyTorch that has no such thing.
        replacement = _telling(original, reach)
        _replaced.append((owner, name, vars(owner).get(name), replacement))
        setattr(owner, name, replacement)


def _put_back() -> None:
    while _replaced:
        owner, name, own, replacement = _replaced.pop()
        if vars(owner).get(name) is not replacement:
            continue  # Somebody else has replaced it since.
        if own is None:
            delattr(owner, name)  # It was inherited.
        else:
            setattr(owner, name, own)


def _telling(original: Any, reach: Reach) -> Any:
    """Return what does as ``original`` once all watchers were told."""
    if isinstance(original, property):
        getter = original.fget
        assert getter is not None
        return property(_telling(getter, reach), original.fset, original.fdel, original.__doc__)

    @functools.wraps(original)
    def telling(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        for watcher in tuple(_watchers):
            watcher(tensor, reach)
        return original(tensor, *args, **kwargs)

    return telling
