"""Checkmate: the optimal schedule of the blocks' graph, and its rounded relaxation's cheaper kin.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020. See :mod:`mimose.solvers.checkmate` for the problem and :mod:`mimose.solvers.block_graph` for
the graph.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from mimose.costs import Infeasible, grown_gradients
from mimose.planners.candidates import kept
from mimose.planners.options import number
from mimose.planners.rotor import Rotor
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.schedule import BlockPlan, Schedule
from mimose.solvers import checkmate
from mimose.solvers.block_graph import block_graph, postponed, to_schedule, to_tables
from mimose.solvers.graph import Graph, Table
from mimose.units import format_bytes

TIME_LIMIT = 60.0
GAP = 0.001
STARTS = ("tree", "none")

_ATTEMPTS = 4


class Checkmate(Static):
    """The fastest schedule that fits, to within a gap.

    The solver begins with the fastest tree of regions (Rotor's), which it only has to improve on.
    Blocks are not run again while the forward pass goes on.

    Args:
        time_limit: Seconds for the solver, which then returns the best schedule found. Ctrl-C does
            the same.
        gap: How much slower than the optimum is good enough, as a share of the step; 0.001 by
            default. With more of a budget the schedule is slower by no more than that.
        start: ``tree``, or ``none`` for a solver that begins with nothing, as published.
        margin: See :class:`mimose.planners.static.Static`.
    """

    name: ClassVar[str] = "checkmate"

    def __init__(
        self,
        *,
        time_limit: float | str = TIME_LIMIT,
        gap: float | str = GAP,
        start: str = "tree",
        margin: int | str | None = None,
    ) -> None:
        super().__init__(margin=margin)
        self._time_limit = number("time_limit", time_limit, 0.0, above=True)
        self._gap = number("gap", gap, 0.0)
        if start not in STARTS:
            raise ValueError(f"start must be tree or none, not {start!r}")
        self._start = start

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest schedule found that fits.

        Raises:
            Infeasible: If none fits, or none was found in time.
            KeyboardInterrupt: If Ctrl-C came before any schedule was found.
        """
        tree = Rotor().solve(costs, progress)
        if costs.limit_bytes is None:
            return tree
        graph = graph_of(costs)
        # Whatever the tree loses to packing, a schedule is taken to lose, too, until it is known.
        limit = max(costs.limit_bytes, tree.need_bytes)
        memory = limit - costs.waste_bytes(tree.plan)
        left = self._time_limit
        result, chosen = None, None
        for _ in range(_ATTEMPTS):
            result = checkmate.solve(
                graph,
                memory - costs.situation.resident_bytes,
                time_limit=left,
                gap=self._gap,
                forward_again=False,
                start=self._tables(graph, tree.plan),
                progress=None if progress is None else _told(progress),
            )
            left -= result.seconds
            if result.computed is None:
                break
            found = variants(result.computed, costs.cuts)
            chosen = min(found, key=lambda p: (costs.need_bytes(p) > limit, costs.seconds(p)))
            excess = costs.need_bytes(chosen) - limit
            if excess <= 0 or left <= 0 or result.interrupted:
                break
            memory -= excess
            chosen = None
        assert result is not None, "there is at least one attempt"
        if chosen is None and self._start == "none":
            self._nothing(result, costs, tree.least_budget_bytes)
        plans = [plan for plan in (chosen, tree.plan) if plan is not None]
        return costs.solution(
            min(plans, key=lambda p: (costs.need_bytes(p) > limit, costs.seconds(p))),
            least_budget_bytes=tree.least_budget_bytes,
            status=result.status,
            interrupted=result.interrupted,
            gap=result.gap if result.computed else None,
            bound_seconds=result.bound,
            tree_seconds=tree.predicted_seconds,
            solver_seconds=self._time_limit - left,
            columns=result.size[0],
            rows=result.size[1],
        )

    def _tables(self, graph: Graph, plan: BlockPlan) -> tuple[Table, Table] | None:
        if self._start == "none":
            return None
        schedule = plan if isinstance(plan, Schedule) else Schedule.from_plan(plan)
        return to_tables(graph, schedule)

    def _nothing(self, result: checkmate.Result, costs: StepCosts, least: int) -> None:
        """Refuse for want of a schedule."""
        if result.interrupted:
            raise KeyboardInterrupt
        assert costs.budget_bytes is not None, "without a budget there is a schedule"
        budget = format_bytes(costs.budget_bytes)
        if result.status == "infeasible":
            raise Infeasible(
                f"planner {self.name} has no schedule that leaves the margin free in a budget of "
                f"{budget}: give a larger budget or leave start=none out",
                least,
            )
        raise Infeasible(
            f"planner {self.name} found no schedule for a budget of {budget} within "
            f"{self._time_limit:g} s: give a larger time_limit, or leave start=none out",
            least,
        )


def graph_of(costs: StepCosts) -> Graph:
    """Return the blocks' graph of the step that is planned for."""
    grown = None
    if not costs.situation.grads_resident:
        grown = grown_gradients(costs.info, costs.num_blocks)
    return block_graph(costs.profile, grown, cuts=costs.cuts, fixed=kept(costs))


def variants(computed: Table, cuts: Collection[int] = ()) -> list[BlockPlan]:
    """Return the schedule of a table and two that run blocks again later.

    As a tree each, where there is one, cut at ``cuts``, since that is how a tree is carried out.
    Of equally fast ones the first is the simplest.
    """
    schedule = to_schedule(computed)
    found = (postponed(schedule, past_readers=True), postponed(schedule), schedule)
    trees = [(schedule, schedule.to_plan()) for schedule in dict.fromkeys(found)]
    return [s if tree is None else tree.cut(cuts) for s, tree in trees]


def _told(progress: Progress) -> Any:
    def tell(seconds: float, best: float, bound: float) -> None:
        found = "no schedule yet" if best == float("inf") else f"best {best:.4g} s a step"
        progress(f"{seconds:.0f} s: {found}, none below {max(bound, 0.0):.4g} s")

    return tell
