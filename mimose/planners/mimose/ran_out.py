"""Sizes that ran out of memory in spite of all that a plan can do.

A prediction may miss. Once a step with everything recomputed has run out of memory there is nothing
left to try for its size, nor for a larger one: it would run out again, and each time a forward and
a backward pass are lost. How much memory there is, is the process's own affair, so that nothing of
this is saved: another machine, or a larger budget, may have room.
"""

from __future__ import annotations

from dataclasses import dataclass

from mimose.records import Situation, Size
from mimose.solvers.packing import SMALL_SEGMENT


@dataclass(frozen=True, slots=True)
class _Failure:
    size: Size
    situation: Situation

    def speaks_of(self, size: Size, situation: Situation) -> bool:
        then = self.situation
        return (
            len(size) == len(self.size)
            and all(x >= y for x, y in zip(size, self.size))
            and situation.signature == then.signature
            and situation.grads_resident == then.grads_resident
            # A segment is the least that is reserved: what is less makes no difference.
            and situation.resident_bytes > then.resident_bytes - SMALL_SEGMENT
        )


class RanOut:
    """Remembers what ran out of memory, and in which situation."""

    def __init__(self) -> None:
        self._failures: list[_Failure] = []

    def note(self, size: Size, situation: Situation) -> None:
        """Take note that a step ran out of memory."""
        failure = _Failure(size, situation)
        self._failures = [
            f for f in self._failures if not failure.speaks_of(f.size, f.situation)
        ] + [failure]

    def before(self, size: Size, situation: Situation) -> Size | None:
        """Return a size that ran out of memory, and so tells that this one will, or None.

        That is one which is in no extent larger, in the same configuration and gradient state, with
        no more bytes resident, by as much as a segment, than there are now.
        """
        for failure in self._failures:
            if failure.speaks_of(size, situation):
                return failure.size
        return None

    def forget(self) -> None:
        """Forget everything: the budget or the model has changed."""
        self._failures.clear()
