"""What a step costs in bytes and seconds, by size, and whether a plan for it fits.

A :class:`Profile` holds, for one size, the memory levels of a step in which *every block is
recomputed on its own* and all gradients are resident. Memory adds up, so the level of any other
plan at any moment is that level plus the activations that the plan keeps alive then, minus the
outputs inside its regions, plus the gradients grown so far if they were not resident. That makes
:func:`predict_peak` exact up to what the profile itself misses, and it serves every planner.

Recomputing the block whose backward comes first frees nothing (its activations are back at once),
which the timeline shows by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from mimose.plan import Plan
from mimose.records import ModelInfo, Situation


class Infeasible(Exception):
    """No allowed plan keeps the step within the budget.

    Attributes:
        least_budget_bytes: The least budget that would do.
    """

    def __init__(self, message: str, least_budget_bytes: int) -> None:
        super().__init__(message)
        self.least_budget_bytes = least_budget_bytes


@dataclass(frozen=True, slots=True)
class Profile:
    """Memory levels and times of one step at one size. See the module's text for the convention.

    Sequences have one entry a block, in forward order. Levels are bytes above the start of the
    step; ``kept_peak``, ``checkpoint_peak``, ``activation`` and ``output`` are bytes above the
    level before the block's forward.
    """

    activation: tuple[int, ...]
    output: tuple[int, ...]
    level: tuple[int, ...]
    kept_peak: tuple[int, ...]
    checkpoint_peak: tuple[int, ...]
    backward_peak: tuple[int, ...]
    forward_seconds: tuple[float, ...]
    first_peak: int
    head_peak: int
    tail_peak: int
    optimizer_peak: int
    optimizer_state: int = 0

    @property
    def num_blocks(self) -> int:
        return len(self.activation)


@dataclass(frozen=True, slots=True)
class Peak:
    """A predicted peak of allocated bytes, resident bytes included, and where it falls."""

    bytes: int
    where: str
