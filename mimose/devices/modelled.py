"""Devices whose memory is kept by the allocator model: what ``cpu`` and ``sim`` share.

One of PyTorch's allocators is replaced by one that lets a model of the CUDA caching allocator
keep the books and enforce the budget (:mod:`mimose.devices.allocator`).
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch

from mimose.devices.allocator import NO_LIMIT, Stats, record, recorded_events, stats
from mimose.devices.base import Mark, StepMemory
from mimose.devices.library import load
from mimose.units import format_bytes


class ModelledDevice:
    """The memory side of a device under the allocator model. One of a kind can be open at a time.

    Args:
        torch_device: ``cpu`` or ``meta``: whose allocator is replaced.
        title: What messages call the device.
        expandable: Whether its allocator has expandable segments, see
            :mod:`mimose.devices.allocator`.

    Raises:
        ValueError: If one is open already, or if the allocator model cannot be built.
    """

    kind: str

    def __init__(self, torch_device: torch.device, title: str, *, expandable: bool = False) -> None:
        self.torch_device = torch_device
        self._expandable = expandable
        self._library = load()
        self._hook = int(torch_device.type == "meta")
        self._model = self._library.mimose_open(self._hook, title.encode(), expandable)
        if self._model is None:
            raise ValueError(
                f"a device '{self.kind}' is open already in this process: close() that one first"
            )
        self._retries_before = 0
        self._final: Stats | None = None

    def close(self) -> None:
        """Give PyTorch back its allocator. Live tensors stay valid; figures stay readable."""
        if self._final is None:
            self._final = stats(self._model)
            self._library.mimose_close(self._hook, self._model)

    def stats(self) -> Stats:
        """Return all figures of the allocator model; after :meth:`close` the last ones."""
        return self._final or stats(self._model)

    def has_expandable_segments(self) -> bool:
        """Return whether segments grow and shrink by pages."""
        return self._expandable

    def allocated_bytes(self) -> int:
        """Return the bytes allocated now."""
        if self._final is not None:
            return self._final.allocated
        allocated: int = self._library.mimose_allocated(self._model)
        return allocated

    def reserved_bytes(self) -> int:
        """Return the bytes reserved now."""
        if self._final is not None:
            return self._final.reserved
        reserved: int = self._library.mimose_reserved(self._model)
        return reserved

    def peak_allocated_bytes(self) -> int:
        """Return the highest allocated bytes since the device was opened."""
        return self.stats().peak_allocated

    def peak_reserved_bytes(self) -> int:
        """Return the highest reserved bytes since the device was opened."""
        return self.stats().peak_reserved

    def largest_free_block_bytes(self) -> int:
        """Return the largest block that could be handed out without reserving more."""
        return self.stats().largest_free_block

    def host_bytes(self) -> tuple[int, int]:
        """Return the bytes on the host's account now, and their peak."""
        now, peak = ctypes.c_int64(), ctypes.c_int64()
        self._library.mimose_host_bytes(self._hook, ctypes.byref(now), ctypes.byref(peak))
        return now.value, peak.value

    def enforce(self, budget_bytes: int | None) -> None:
        """Make reserving more than ``budget_bytes`` fail; None lifts the limit.

        Raises:
            ValueError: If more is reserved already, with the cache emptied.
        """
        model = self._opened()
        if budget_bytes is not None:
            self.release_cache()
            reserved = self.reserved_bytes()
            if reserved > budget_bytes:
                raise ValueError(
                    f"{format_bytes(reserved)} is in use on the device already, more than the "
                    f"budget of {format_bytes(budget_bytes)}: give a larger budget"
                )
        self._library.mimose_set_limit(model, NO_LIMIT if budget_bytes is None else budget_bytes)

    def release_cache(self) -> None:
        """Hand wholly unused segments back."""
        self._library.mimose_release(self._opened())

    def add_foreign(self, num_bytes: int) -> None:
        """Count memory taken before the device was opened (negative: given back).

        It is part of allocated and reserved bytes, and the limit applies to the sum.
        """
        self._library.mimose_add_foreign(self._opened(), num_bytes)

    def begin_step(self) -> None:
        """Start a step's own peaks and counters."""
        self._library.mimose_begin_step(self._opened())
        self._retries_before = self.alloc_retries()

    def mark(self) -> Mark:
        """Read, and start the next segment of the step."""
        allocated = ctypes.c_int64()
        peak = self._library.mimose_mark(self._opened(), ctypes.byref(allocated))
        return Mark(allocated.value, peak)

    def end_step(self) -> StepMemory:
        """Return the figures since :meth:`begin_step`."""
        figures = self.stats()
        return StepMemory(
            peak_allocated=figures.step_peak_allocated,
            peak_reserved=figures.step_peak_reserved,
            num_alloc_retries=figures.num_alloc_retries - self._retries_before,
        )

    def alloc_retries(self) -> int:
        """Return how many allocations needed free segments handed back, so far."""
        return self.stats().num_alloc_retries

    def record(self) -> None:
        """Start recording every request, with the present state as the start.

        Raises:
            ValueError: If the device's allocator has expandable segments.
        """
        if self._expandable:
            raise ValueError(
                "requests are recorded and replayed with native segments only: open the device "
                "without expandable ones"
            )
        record(self._opened())

    def recorded_events(self) -> list[int]:
        """Stop recording and return what was; :mod:`mimose.devices.trace` makes a trace of it."""
        record(self._opened(), False)
        return recorded_events(self._model)

    @contextlib.contextmanager
    def host_memory(self) -> Iterator[None]:
        """Allocations of this thread inside the context go to the host's account."""
        self._library.mimose_enter_host()
        try:
            yield
        finally:
            self._library.mimose_leave_host()

    def _opened(self) -> int:
        if self._final is not None:
            raise ValueError(f"the device '{self.kind}' is closed: open another with open_device()")
        model: int = self._model
        return model


def labelled(label: str, expandable: bool) -> str:
    """Return a device's label; what it reserves depends on the mode of its allocator."""
    return f"{label}, expandable segments" if expandable else label
