"""The plan cache: one plan for all sizes that round up to the same one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mimose.plan import Plan
from mimose.planners.mimose.storages import Packed
from mimose.records import Situation, Size
from mimose.solvers.packing import Segments

_MOST_ROUNDED = 2


def round_up(size: Size, step: int) -> Size:
    """Return ``size`` with its lengths rounded up to multiples of ``step``; the batch stays.

    A size of more than two extents stays as it is: they belong together (an image's area and the
    areas that it is padded to), and rounded one by one they might be no batch's.
    """
    if len(size) - 1 > _MOST_ROUNDED:
        return size
    return (size[0], *(-(-x // step) * step for x in size[1:]))


def least_of(key: Size, step: int) -> Size:
    """Return the smallest size that rounds up to ``key``."""
    if len(key) - 1 > _MOST_ROUNDED:
        return key
    return (key[0], *(x - step + 1 for x in key[1:]))


@dataclass(frozen=True, slots=True)
class Entry:
    """A cached plan, what it was made for and what it is predicted to need.

    Attributes:
        plan: The plan.
        size: The rounded-up size that it was made for.
        resident_bytes: Resident bytes that it was made for, at most.
        grads_resident: Gradient state that it was made for.
        optimizer_ready: Optimizer state that it was made for.
        needed_bytes: Resident bytes, the step's and the margin, when it was made.
        step_bytes: Predicted peak above the resident bytes that it was made for.
        packed: How its tensors lie in segments at that peak.
        ends: The same at the smallest and at the largest size that round up to ``size``.
        segments: The segments that a step takes, by its exact size, as far as it was asked for.
    """

    plan: Plan
    size: Size
    resident_bytes: int
    grads_resident: bool
    optimizer_ready: bool
    needed_bytes: int
    step_bytes: int
    packed: Packed
    ends: tuple[int, int]
    segments: dict[Size, Segments | None] = field(default_factory=dict)

    def segments_at(self, size: Size, packed: Callable[[Size, Plan], Packed]) -> Segments | None:
        """Return the segments that a step of exactly this size takes; None if unknown.

        What it leaves cached is of its own size, and of no use to a slightly larger step.

        Args:
            size: The size.
            packed: Predicts how a plan's tensors lie in segments at a size.
        """
        if size == self.size or self.packed.segments is None:
            return self.packed.segments
        if size not in self.segments:
            self.segments[size] = packed(size, self.plan).segments
        return self.segments[size]

    def holds(
        self, situation: Situation, margin: int, inflation: float, budget: int, slack: int
    ) -> bool:
        """Whether the entry is good for a step.

        Its state must be the one that it was made for and its resident bytes no larger; it must
        still fit, margin and inflation as they are now; and it must not be far too careful by now.

        Args:
            situation: The state at the start of the step.
            margin: The margin now.
            inflation: Share by which predictions are raised now.
            budget: The budget.
            slack: How much less may be needed now before a new plan is worth its while.
        """
        if (
            situation.resident_bytes > self.resident_bytes
            or situation.grads_resident != self.grads_resident
            or situation.optimizer_ready != self.optimizer_ready
        ):
            return False
        needed = self.needed(margin, inflation)
        if needed > budget and needed > self.needed_bytes:
            return False
        return self.plan.keeps_all or needed + slack >= self.needed_bytes

    def needed(self, margin: int, inflation: float) -> int:
        """Return the bytes that the entry needs with this margin and inflation."""
        step = int(self.step_bytes * (1.0 + inflation)) + self.packed.waste_bytes
        return self.resident_bytes + step + margin

    def step_bytes_at(self, size: Size, step: int) -> int:
        """Return the predicted peak above the resident bytes at one of the entry's sizes.

        A straight line between the entry's two ends: off by a quadratic's bend over ``step``.
        """
        low, high = self.ends
        if step == 1 or size == self.size:
            return high
        below = sum(u - x for u, x in zip(self.size[1:], size[1:]))
        share = below / ((step - 1) * (len(size) - 1))
        return high - int((high - low) * share)
