"""Memory levels as they would be had Python's garbage collector freed nothing meanwhile.

Tensors in reference cycles (of an earlier model, of an error's frames) stay in memory until Python
collects its garbage, which may be in the midst of any step. What is measured after that would be
too low by all that was freed, and in this one step only.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

from mimose.devices.base import Device, Mark


class Levels:
    """Reads a device's levels, what collections have freed since the first reading added.

    Args:
        device: What measures.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._freed = 0
        self._before = 0
        self._peak = 0  # Of the parts of the segment that ended with a collection.
        self._looked = 0  # The highest peak of those that ended with a look.
        reference = weakref.ref(self)

        def collecting(phase: str, _: Any) -> None:
            levels = reference()
            if levels is not None:
                levels._collecting(phase)

        gc.callbacks.append(collecting)
        self._stop = weakref.finalize(self, _remove, collecting)
        self._stop.atexit = False

    def stop(self) -> None:
        """Look at collections no more."""
        self._stop()

    def mark(self) -> Mark:
        """Read, and start the next segment of the step; see :meth:`Device.mark`."""
        mark = self._read()
        looked, self._looked = self._looked, 0
        if mark.peak_allocated is None:
            return mark
        return Mark(mark.allocated, max(mark.peak_allocated, looked))

    def look(self) -> Mark:
        """Read within a segment: the peak is that since the last reading of either kind."""
        mark = self._read()
        self._looked = max(self._looked, mark.peak_allocated or 0)
        return mark

    def skip(self) -> Mark:
        """Read likewise; the segment's peak leaves out what was since the last reading."""
        return self._read()

    def _read(self) -> Mark:
        while True:
            freed = self._freed
            mark = self._device.mark()
            peak = mark.peak_allocated
            if freed == self._freed:
                break
            # Making the mark itself has set a collection off.
            self._fold(peak, freed)
        if peak is not None:
            # Unknown peaks are no higher than those before, which are folded in.
            peak = max(peak + freed, self._peak)
        self._peak = 0
        return Mark(mark.allocated + freed, peak)

    def _fold(self, peak: int | None, freed: int) -> None:
        self._peak = max(self._peak, 0 if peak is None else peak + freed)

    def _collecting(self, phase: str) -> None:
        device = self._device
        if phase == "start":
            self._before = device.allocated_bytes()
            return
        freed = self._before - device.allocated_bytes()
        if freed > 0:
            self._fold(device.mark().peak_allocated, self._freed)
            self._freed += freed


def _remove(callback: Any) -> None:
    with contextlib.suppress(ValueError):  # Somebody else has emptied the list.
        gc.callbacks.remove(callback)
