"""Taking the memory of a live storage away, and giving it other memory.

A storage keeps its identity and its size meanwhile: tensors, views and what autograd has saved find
the new memory where the old one was.
"""

from __future__ import annotations

import functools
from ctypes import c_void_p
from pathlib import Path
from typing import Any, Protocol

import torch

from mimose import compiled
from mimose.devices.library import torch_library

SOURCE = Path(__file__).with_name("storages.cpp")
NO_COMPILER = (
    "no C++ compiler was found, and tensors cannot be evicted from this device without one: "
    "install g++ (Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++) or name one in $CXX"
)


class Mover(Protocol):
    """What can be done to a storage."""

    def drop(self, storage: torch.UntypedStorage) -> None:
        """Free its memory."""

    def move(self, target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        """Give ``target``, which has no memory, that of ``source``, which has none afterwards."""


class CompiledMover:
    """Moves the pointer to the memory, by a small library that is compiled at first use.

    Raises:
        ValueError: If there is no compiler or it fails; the message says what to install.
    """

    def __init__(self) -> None:
        library = _load()
        self._drop: Any = library.mimose_storage_drop
        self._move: Any = library.mimose_storage_move

    def drop(self, storage: torch.UntypedStorage) -> None:
        """Free its memory."""
        self._drop(storage._cdata)

    def move(self, target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        """Give ``target`` the memory of ``source``."""
        self._move(target._cdata, source._cdata)


class ResizingMover:
    """Resizes storages instead: for CUDA on machines without a compiler.

    Memory is freed at once as well, but bringing data back takes a copy, and both its places while
    it is copied; and asking for the address of data that is gone is not refused.
    """

    def drop(self, storage: torch.UntypedStorage) -> None:
        """Free its memory; its size is 0 meanwhile."""
        storage.resize_(0)

    def move(self, target: torch.UntypedStorage, source: torch.UntypedStorage) -> None:
        """Copy ``source`` into new memory of ``target``."""
        target.resize_(source.nbytes())
        target.copy_(source)
        source.resize_(0)


def mover_for(device: torch.device) -> Mover:
    """Return what moves the memory of storages on a device.

    Raises:
        ValueError: If there is no compiler and the device is none that does without.
    """
    try:
        return CompiledMover()
    except ValueError:
        if device.type != "cuda":
            raise
        return ResizingMover()


@functools.cache
def _load() -> Any:
    # Calls take well under a microsecond, so the interpreter's lock is kept.
    library = compiled.load(
        torch_library("storages", "the mover of storages", (SOURCE,), NO_COMPILER), keep_lock=True
    )
    library.mimose_storage_drop.argtypes = (c_void_p,)
    library.mimose_storage_drop.restype = None
    library.mimose_storage_move.argtypes = (c_void_p, c_void_p)
    library.mimose_storage_move.restype = None
    return library
