"""What the paper's authors ran as Sublinear: Mimose's greedy, once, for the largest size.

Xu et al., IPDPS 2023; released code buaa-hipo/mimose-transformers, ``--static_checkpoint``.
"""

from __future__ import annotations

from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.scheduler import schedule
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.solvers import greedy

_LIMITS = 1000


class SublinearGreedy(Static):
    """Mimose's Algorithm 1 for the largest size, its plan used for every batch.

    A greedy plan for a smaller limit may happen to be faster. So it is the fastest of the plans
    for all limits up to the one given, in steps of a thousandth of what recomputation can free.
    """

    name: ClassVar[str] = "sublinear-greedy"

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest greedy plan that fits.

        Raises:
            Infeasible: If none fits.
        """
        return costs.choose(greedy_plans(costs))


def greedy_plans(costs: StepCosts) -> list[Plan]:
    """Return the plans that Algorithm 1 makes for limits from all that is needed downwards."""
    everything = Plan.keep_all(costs.num_blocks)
    least = Plan.recompute_each(costs.num_blocks, costs.blocks)
    highest, lowest = costs.need_bytes(everything), costs.need_bytes(least)
    found = {everything: None, least: None}
    step = max((highest - lowest) // _LIMITS, 1)
    forecast = Forecast(costs.profile, costs.packing)
    for limit in range(highest - 1, lowest - 1, -step):
        chosen = schedule(
            forecast, costs.info, costs.situation, limit, costs.blocks, greedy.printed
        )
        found[chosen.plan] = None
    return list(found)
