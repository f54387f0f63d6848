"""What steps have taken: evidence against a prediction by which one would be refused, and for one.

A fit to lengths that lie badly, or to steps that were carried out differently, may be far too high,
and a step that is refused never shows it. But memory grows with a batch at most in proportion, and
with its lengths at most with their squares: a step that kept to the budget bounds what others take
with every block recomputed, but for blocks that take more so, and those are tried.

What lies between allocated and reserved bytes is not in a prediction. Only a step that has shown it
tells that a length fits without a margin.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from mimose.records import Situation, Size, StepRecord

_MOST = 64
_EXACT = 1.01


@dataclass(frozen=True, slots=True)
class _Step:
    size: Size
    situation: Situation
    bytes: int
    reserved: int

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
        # By the number of samples, with the longest kept when the last ones are others.
        self._longest: dict[Size, _Step] = {}

    def note(self, record: StepRecord, budget_bytes: int) -> None:
        """Take note of a step that is over, if it kept to the budget."""
        peak, reserved = record.peak_allocated_bytes, record.peak_reserved_bytes
        if record.outcome != "ok" or peak is None or (reserved or 0) > budget_bytes:
            return
        situation = record.situation
        step = _Step(record.size, situation, peak - situation.resident_bytes, reserved or peak)
        self._steps = [*self._steps, step][-_MOST:]
        longest = self._longest.get(record.size[:1])
        if longest is None or longest.size[1:] <= record.size[1:]:
            self._longest[record.size[:1]] = step

    def has_shown(self, size: Size, peak: int, signature: str, budget_bytes: int) -> bool:
        """Whether a step that was no smaller, and had no less allocated, kept to this budget.

        Args:
            size: The size.
            peak: What a step of it is predicted to have allocated, which may be a little too much.
            signature: As for what it would be.
            budget_bytes: The budget.
        """
        return any(
            step.reserved <= budget_bytes
            and signature == step.situation.signature
            and len(size) == len(step.size)
            and peak <= _EXACT * (step.situation.resident_bytes + step.bytes)
            and all(x <= y for x, y in zip(size, step.size))
            for step in (*self._longest.values(), *self._steps)
        )

    def most_bytes(self, size: Size, situation: Situation) -> float | None:
        """Return what a step of a size takes at most beside what is resident; None if unknown."""
        found = [s.bytes * _factor(size, s.size) for s in self._steps if s.bounds(size, situation)]
        return min(found, default=None)

    def forget(self) -> None:
        """Forget everything: the model has changed."""
        self._steps.clear()
        self._longest.clear()


def _factor(size: Size, seen: Size) -> float:
    beyond = [max(1.0, x / y) for x, y in zip(size, seen)]
    return beyond[0] * prod(x * x for x in beyond[1:])
