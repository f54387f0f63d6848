"""What steps have taken: evidence against a prediction by which one would be refused.

A fit to lengths that lie badly, or to steps that were carried out differently, may be far too high,
and a step that is refused never shows it. But memory grows with a batch at most in proportion, and
with its lengths at most with their squares: a step that kept to the budget bounds what others take
with every block recomputed, but for blocks that take more so, and those are tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mimose.records import Situation, Size, StepRecord

_MOST = 64


@dataclass(frozen=True, slots=True)
class _Step:
    size: Size
    situation: Situation
    bytes: int

    def bounds(self, size: Size, situation: Situation) -> bool:
        """Whether steps of a size, begun in a situation, take no more but for the size."""
        then = self.situation
        return (
            len(size) == len(self.size)
            and situation.signature == then.signature
            # Gradients and an optimizer's state that are there already need not be allocated.
            and situation.grads_resident >= then.grads_resident
            and situation.optimizer_ready >= then.optimizer_ready
        )


class Fitted:
    """Remembers the last steps that kept to the budget."""

    def __init__(self) -> None:
        self._steps: list[_Step] = []

    def note(self, record: StepRecord, budget_bytes: int) -> None:
        """Take note of a step that is over, if it kept to the budget."""
        peak, reserved = record.peak_allocated_bytes, record.peak_reserved_bytes
        if record.outcome != "ok" or peak is None or (reserved or 0) > budget_bytes:
            return
        step = _Step(record.size, record.situation, peak - record.situation.resident_bytes)
        self._steps = [*self._steps, step][-_MOST:]

    def most_bytes(self, size: Size, situation: Situation) -> float | None:
        """Return what a step of a size takes at most beside what is resident; None if unknown."""
        found = [s.bytes * _factor(size, s.size) for s in self._steps if s.bounds(size, situation)]
        return min(found, default=None)

    def forget(self) -> None:
        """Forget everything: the model has changed."""
        self._steps.clear()


def _factor(size: Size, seen: Size) -> float:
    beyond = [max(1.0, x / y) for x, y in zip(size, seen)]
    return beyond[0] * prod(x * x for x in beyond[1:])
