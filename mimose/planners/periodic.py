"""Segments of equal length, of all numbers of segments: PyTorch's ``checkpoint_sequential``."""

from __future__ import annotations

from typing import ClassVar

from mimose.planners.candidates import equal_segments
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.solvers import segments


class Periodic(Static):
    """Of all numbers of segments of equal length, that of the fastest plan that fits.

    They are cut as ``checkpoint_sequential`` cuts them, and like there the last one is kept.
    """

    name: ClassVar[str] = "periodic"

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest plan that fits.

        Raises:
            Infeasible: If none fits.
        """
        return costs.choose(equal_segments(costs, segments.periodic))
