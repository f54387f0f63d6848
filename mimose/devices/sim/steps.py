"""Steps that are remembered: one training step's allocations and time, to be repeated exactly.

A replay makes the same requests of the allocator model as the step did, from whatever state the
model is in by then. So reserved bytes, fragmentation, retries and out-of-memory are those that the
step itself would have had at that moment; only the operators are not run again.

What may be replayed: a step whose plan is fixed before it starts, which frees all that it allocates
and nothing else, and which reads no values but truth values. What may not: steps that make
optimizer state or gradients that stay, steps that measure blocks, and anything with a policy inside
that decides by memory or time (tensor-level eviction).
"""

from __future__ import annotations

import weakref
from array import array
from typing import Any

from mimose.devices.sim.clock import Clock


class StepLog:
    """One step's allocations and kernels, in parts that end where a time stamp was taken.

    Attributes:
        closed: Whether the step left the memory as it found it; known once it is over.
        reads: The values that the program read during the step.
    """

    def __init__(self, library: Any, clock: Clock, reads: list[Any]) -> None:
        self.closed = False
        self.reads = reads
        self._repeatable = False
        self._library = library
        self._clock = clock
        self._log = log = library.mimose_log_new()
        self._times: array[float] = clock.start_log(lambda: library.mimose_log_size(log))
        self._ends: list[tuple[int, int]] = [(0, 0)]
        self._finalizer = weakref.finalize(self, library.mimose_log_delete, self._log)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self._ends) - 1

    @property
    def replayable(self) -> bool:
        """Whether the step may be replayed."""
        reads_nothing = all(isinstance(read, bool) for read in self.reads)
        return self.closed and self._repeatable and reads_nothing

    def start(self, model: int) -> None:
        """Log the allocations of the C++ model at ``model`` from here on."""
        self._library.mimose_log_start(model, self._log)

    def stop(self, model: int) -> None:
        """Stop logging and end the last part."""
        self.closed = bool(self._library.mimose_log_stop(model))
        self._repeatable = self._clock.repeatable
        self.cut()

    def cut(self) -> None:
        """End a part here."""
        self._ends.append((self._library.mimose_log_size(self._log), len(self._times)))

    def replay(self, model: int, clock: Clock, part: int) -> int | None:
        """Repeat a part; return None, or the request that ran out of memory."""
        (start, first), (end, last) = self._ends[part], self._ends[part + 1]
        failed: int = self._library.mimose_log_replay(model, self._log, start, end)
        if failed >= 0:
            clock.replay(self._times, first, last, failed)
            return int(self._library.mimose_log_event(self._log, failed))
        clock.replay(self._times, first, last)
        return None

    def abandon(self, model: int) -> None:
        """Free what a replay that stopped half-way holds."""
        self._library.mimose_log_abandon(model, self._log)
