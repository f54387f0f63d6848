"""A model of PyTorch's CUDA caching allocator: which memory a sequence of requests reserves.

The rules are those of the caching allocator's native mode with default settings, on one stream:

* a request is rounded up to 512 bytes;
* one of up to 1 MiB is served from the small pool, which reserves segments of 2 MiB; a larger one
  from the large pool, which reserves 20 MiB for requests below 10 MiB and else the request rounded
  up to 2 MiB;
* the smallest free block of the pool that fits is taken, of equal ones that at the lowest address;
* a block is split if the rest is at least 512 bytes (small pool) or more than 1 MiB (large pool);
* a freed block is merged with its free neighbours;
* a segment that would exceed the limit is reserved only after all wholly free segments were
  handed back (an *allocator retry*), and if it still does not fit, the request is out of memory.

With *expandable segments* (``PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True``) either pool is one
range of addresses instead, of which pages of 2 MiB (small pool) or 20 MiB (large pool) are mapped
where they are needed:

* of free blocks that fit, one is taken by what it can grow to;
* else memory is mapped at the lowest address at which the request fits, free blocks on the way
  included; blocks are split wherever 512 bytes are left;
* handing memory back unmaps the whole pages of every free block, between live ones, too;
* the limit is tested as above, for the bytes of a segment, and rounding up to pages may exceed it
  by less than one.

The model is C++ (``allocator_model.h``). :class:`AllocatorModel` drives it without any tensor;
:class:`mimose.devices.cpu.CpuDevice` puts it under PyTorch's CPU allocator.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

from mimose.devices.library import Stats, load

__all__ = ["AllocatorModel", "Stats", "record", "recorded_events", "stats"]

NO_LIMIT = -1


class AllocatorModel:
    """The caching allocator's books, without memory behind them.

    Args:
        limit: Bound on reserved bytes, or None.
        expandable: Whether segments are expandable.
    """

    def __init__(self, limit: int | None = None, *, expandable: bool = False) -> None:
        self._library = load()
        self._expandable = expandable
        self._model = self._library.mimose_new(expandable)
        self._live: set[int] = set()
        self._finalizer = weakref.finalize(self, self._library.mimose_delete, self._model)
        self.set_limit(limit)

    def malloc(self, size: int) -> int | None:
        """Return a handle for a block of ``size`` bytes, or None when out of memory.

        A request of zero bytes gets the handle 0 and takes no memory.
        """
        if size < 0:
            raise ValueError(f"a request has at least 0 bytes, not {size}")
        if size == 0:
            return 0
        handle: int | None = self._library.mimose_malloc(self._model, size)
        if handle is not None:
            self._live.add(handle)
        return handle

    def free(self, handle: int) -> None:
        """Give a block back.

        Raises:
            ValueError: If ``handle`` is not that of a live block.
        """
        if handle == 0:
            return
        if handle not in self._live:
            raise ValueError(f"{handle} is not the handle of a live block")
        self._live.remove(handle)
        self._library.mimose_free(self._model, handle)

    def release_cache(self) -> None:
        """Hand wholly free segments back to the device."""
        self._library.mimose_release(self._model)

    def set_limit(self, limit: int | None) -> None:
        """Bound reserved bytes from now on; what is reserved already stays."""
        self._library.mimose_set_limit(self._model, NO_LIMIT if limit is None else limit)

    def add_foreign(self, num_bytes: int) -> None:
        """Count bytes that came from elsewhere (negative: that went)."""
        self._library.mimose_add_foreign(self._model, num_bytes)

    def add_segment(self, small: bool, sizes: Sequence[int]) -> list[int]:
        """Put in a segment as it stood elsewhere.

        Args:
            small: Whether it belongs to the small pool.
            sizes: Sizes of its blocks by address, negative for free ones.

        Returns:
            The handles of the live blocks, by address.

        Raises:
            ValueError: If segments are expandable.
        """
        if self._expandable:
            raise ValueError("a segment is put in where segments are not expandable only")
        live = (ctypes.c_void_p * len(sizes))()
        self._library.mimose_add_segment(
            self._model, small, (ctypes.c_int64 * len(sizes))(*sizes), len(sizes), live
        )
        handles = [handle for handle in live if handle is not None]
        self._live.update(handles)
        return handles

    def add_address(self, address: int) -> None:
        """Say where a segment will lie that is reserved later; first said, first used.

        By default each segment lies above all earlier ones. Only ties between free blocks of
        equal size depend on it.
        """
        self._library.mimose_add_address(self._model, address)

    def begin_step(self) -> None:
        """Start the peaks of a step."""
        self._library.mimose_begin_step(self._model)

    def mark(self) -> int:
        """Return the peak of allocated bytes since the previous mark or the step's begin."""
        peak: int = self._library.mimose_mark(self._model, ctypes.byref(ctypes.c_int64()))
        return peak

    def stats(self) -> Stats:
        """Return all figures."""
        return stats(self._model)

    def record(self) -> None:
        """Start recording, with the present layout as the start."""
        record(self._model)

    def events(self) -> list[int]:
        """Return what was recorded; :mod:`mimose.devices.trace` reads it."""
        return recorded_events(self._model)


def stats(model: int) -> Stats:
    """Return all figures of the C++ model at ``model``."""
    figures = Stats()
    load().mimose_stats(model, ctypes.byref(figures))
    return figures


def record(model: int, on: bool = True) -> None:
    """Start or stop recording the events of the C++ model at ``model``."""
    load().mimose_record(model, on)


def recorded_events(model: int) -> list[int]:
    """Return the events of the C++ model at ``model`` since recording started."""
    count = load().mimose_events(model, None, 0)
    events = (ctypes.c_int64 * count)()
    load().mimose_events(model, events, count)
    return list(events)
