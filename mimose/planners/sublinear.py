"""Sublinear memory cost: segments of several blocks, cut where a bound on their size is exceeded.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv
1604.06174, Algorithm 3.
"""

from __future__ import annotations

from typing import ClassVar

from mimose.planners.candidates import chen_segments
from mimose.planners.static import Progress, Solution, Static, StepCosts


class Sublinear(Static):
    """Chen's segments: of all bounds on a segment's size, the one of the fastest plan that fits.

    Each segment is recomputed, the last one where that frees memory.
    """

    name: ClassVar[str] = "sublinear"

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest plan that fits.

        Raises:
            Infeasible: If none fits.
        """
        return costs.choose(chen_segments(costs))
