"""Checkmate's two-phase rounding of the linear relaxation.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020, section 5.
"""

from __future__ import annotations

from typing import ClassVar

from mimose.costs import Infeasible
from mimose.plan import Plan
from mimose.planners.checkmate import TIME_LIMIT, graph_of, variants
from mimose.planners.options import number
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.solvers import rounding
from mimose.units import format_bytes


class CheckmateLP(Static):
    """The fastest of the rounded schedules that fit.

    Rounding does not keep to the budget, so every schedule is judged by the peak model and several
    thresholds are tried. It may find none that fits where there is one.

    Args:
        time_limit: Seconds for each linear problem.
        margin: See :class:`mimose.planners.static.Static`.
    """

    name: ClassVar[str] = "checkmate-lp"

    def __init__(
        self, *, time_limit: float | str = TIME_LIMIT, margin: int | str | None = None
    ) -> None:
        super().__init__(margin=margin)
        self._time_limit = number("time_limit", time_limit, 0.0, above=True)

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest rounded schedule that fits.

        Raises:
            Infeasible: If none fits.
        """
        if costs.limit_bytes is None or costs.budget_bytes is None:
            return costs.choose([Plan.keep_all(costs.num_blocks)])
        waste = costs.waste_bytes(Plan.recompute_each(costs.num_blocks, costs.blocks))
        memory = costs.limit_bytes - waste - costs.situation.resident_bytes
        budget = format_bytes(costs.budget_bytes)
        try:
            found = rounding.solve(
                graph_of(costs),
                max(memory, 0),
                forms=("tight",),
                forward_again=False,
                time_limit=self._time_limit,
            )
        except TimeoutError as error:
            raise Infeasible(
                f"planner {self.name} found no schedule for a budget of {budget}: {error}; give a "
                "larger time_limit",
                0,
            ) from error
        plans = [plan for computed, _ in found.tried for plan in variants(computed)]
        if not plans:
            raise Infeasible(
                f"planner {self.name} has nothing to round for a budget of {budget}: the relaxed "
                "problem has no solution either; give a larger budget",
                0,
            )
        try:
            return costs.choose(
                plans,
                bound_seconds=found.bound,
                rounded=len(found.tried),
                fitting=sum(costs.need_bytes(plan) <= costs.limit_bytes for plan in plans),
            )
        except Infeasible as error:
            least = error.least_budget_bytes
            raise Infeasible(
                f"none of the {len(found.tried)} schedules that planner {self.name} rounded fits a "
                f"budget of {budget}: give it {format_bytes(least, up=True)}, or use planner "
                "checkmate",
                least,
            ) from error
