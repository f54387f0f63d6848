"""Checkmate's two-phase rounding of the linear relaxation.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020, section 5.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import ClassVar

from mimose.costs import Infeasible
from mimose.plan import Plan
from mimose.planners.checkmate import TIME_LIMIT, graph_of, variants
from mimose.planners.options import number
from mimose.planners.rotor import Rotor
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.schedule import BlockPlan
from mimose.solvers import rounding
from mimose.solvers.graph import Graph
from mimose.units import format_bytes

_LEAST_RUNGS, _MOST_RUNGS, _RUNGS_TIMES_BLOCKS = 10, 40, 480
_REMEMBERED = 4


class CheckmateLP(Static):
    """The fastest of the rounded schedules that fit.

    Rounding does not keep to the budget it is given, so relaxations for a fixed ladder of budgets
    are rounded at several thresholds, and the peak model judges every schedule. The ladder goes
    from the least that Rotor can do with to what keeping everything takes; nothing on it depends on
    the budget planned for, so a larger one never makes the plan slower. There may be a schedule
    that fits where none of the rounded ones does.

    Args:
        time_limit: Seconds for all linear problems and their roundings. What was rounded by then
            serves every budget.
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
            Infeasible: If none fits; with the least budget for one of them, or the least that Rotor
                can do with where nothing was rounded in time.
        """
        everything = Plan.keep_all(costs.num_blocks)
        if costs.limit_bytes is None or costs.budget_bytes is None:
            return costs.choose([everything])
        least = _least(costs, progress)
        found = _rounded(costs, least, self._time_limit, progress)
        resident = costs.situation.resident_bytes
        plans = [everything, *found.plans]
        # A schedule needs no less than it does on a rung above what it may need.
        above = [b for b in found.bounds if b + resident >= costs.limit_bytes]
        try:
            return costs.choose(
                plans,
                bound_seconds=max((found.bounds[b] for b in above), default=0.0),
                rounded=len(found.plans),
                fitting=sum(costs.need_bytes(plan) <= costs.limit_bytes for plan in plans),
                rungs=len(found.bounds),
                of_rungs=found.rungs,
            )
        except Infeasible as error:
            raise self._refusal(costs, found, error.least_budget_bytes, least) from error

    def _refusal(
        self, costs: StepCosts, found: _Rounded, least: int, least_of_rotor: Solution
    ) -> Infeasible:
        assert costs.budget_bytes is not None, "without a budget everything fits"
        budget = format_bytes(costs.budget_bytes)
        if not found.plans:
            return Infeasible(
                f"planner {self.name} rounded no schedule within {self._time_limit:g} s, and a "
                f"budget of {budget} does not keep everything: give a larger time_limit, or use "
                "planner rotor",
                least_of_rotor.need_bytes,
            )
        late = "" if len(found.bounds) == found.rungs else f" within {self._time_limit:g} s"
        return Infeasible(
            f"none of the {len(found.plans)} schedules that planner {self.name} rounded{late} fits "
            f"a budget of {budget}: give it {format_bytes(least, up=True)}, or use planner "
            "checkmate",
            least,
        )


@dataclass(frozen=True, slots=True)
class _Rounded:
    """What came of a ladder: plans, and for each rung that was solved the bound on the cost."""

    plans: tuple[BlockPlan, ...]
    bounds: dict[int, float]
    rungs: int


_remembered: dict[tuple[Graph, tuple[int, ...], float], _Rounded] = {}
"""What was rounded for the steps planned for last: every budget chooses from the same."""


def forget() -> None:
    """Forget what was remembered, so that the next solve takes its whole time."""
    _remembered.clear()


def _least(costs: StepCosts, progress: Progress | None) -> Solution:
    """Return Rotor's plan that needs least."""
    free = copy.copy(costs)
    free.budget_bytes = free.limit_bytes = None
    least = Rotor().solve(free, progress).least_budget_bytes
    free.budget_bytes = free.limit_bytes = least
    return Rotor().solve(free)


def _rounded(
    costs: StepCosts, least: Solution, time_limit: float, progress: Progress | None
) -> _Rounded:
    """Return what the ladder of the step's graph gives."""
    graph = graph_of(costs)
    resident = costs.situation.resident_bytes
    low = max(least.predicted_peak_bytes - resident, 1)
    high = max(costs.peak_bytes(Plan.keep_all(costs.num_blocks)) - resident, low)
    ratio = high / low
    # As many as are solved in seconds: the next one below a budget is what is chosen for it.
    count = min(max(_RUNGS_TIMES_BLOCKS // costs.num_blocks, _LEAST_RUNGS), _MOST_RUNGS)
    rungs = tuple(dict.fromkeys(round(low * ratio ** (i / (count - 1))) for i in range(count)))
    key = (graph, rungs, time_limit)
    found = _remembered.get(key)
    if found is None:
        ladder = rounding.ladder(
            graph,
            rungs,
            forward_again=False,
            time_limit=time_limit,
            progress=None
            if progress is None
            else lambda done: progress(f"relaxed and rounded for {done} of {len(rungs)} budgets"),
        )
        plans = dict.fromkeys(
            plan for tables, _ in ladder.tried for plan in variants(tables, costs.cuts)
        )
        found = _Rounded(tuple(plans), dict(ladder.bounds), len(rungs))
        if len(_remembered) >= _REMEMBERED:
            del _remembered[next(iter(_remembered))]
        _remembered[key] = found
    return found
