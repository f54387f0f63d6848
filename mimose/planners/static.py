"""What planners share that plan once, for the largest input, and use that plan for every batch.

They are told what a step at that size costs by a *profile*: the collector's figures of a forward
and backward pass in which every block is recomputed (:meth:`mimose.handle.Handle.profile` runs it;
the harness does so before the first step). From it a planner's :meth:`Static.solve` makes its plan,
judged by the same peak model and the same predicted times as every other's.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from mimose.costs import Infeasible, Profile, grown_gradients, predict_peak, predict_seconds
from mimose.plan import Plan
from mimose.planners.bound import Bound, recomputable
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, Sample, to_row
from mimose.planners.mimose.storages import Packing, Storages
from mimose.planners.options import byte_count, check_margin
from mimose.records import (
    Collected,
    Decision,
    Measured,
    ModelInfo,
    Situation,
    Size,
    StepRecord,
)
from mimose.schedule import BlockPlan, block_plan_from_json
from mimose.units import format_bytes

Progress = Callable[[str], None]
"""Is told now and then, in words, how far a long solve has come."""

_MARGIN_SHARE = 0.05
_SEGMENT_BYTES = 20 << 20
_MOST_REPLANS = 4
_QUICK_SECONDS = 10.0


class StepCosts:
    """What a planner plans from: judges any plan for a step at the planned size.

    Attributes:
        size: The size planned for.
        profile: Its costs.
        info: The model.
        situation: The state at the start of every step but the first few: optimizer state is
            there, and gradients are if the loop keeps them.
        budget_bytes: Bound on reserved bytes, or None.
        limit_bytes: What a plan may need: the budget less the margin; None without a budget.
        blocks: The blocks that may be recomputed and that save something.
        packing: Predicts what is lost to packing; None where the tensors' sizes are unknown.
        smallest: Of the plans chosen from so far, the one that needs least; None before.
    """

    def __init__(
        self,
        size: Size,
        profile: Profile,
        info: ModelInfo,
        situation: Situation,
        margin_bytes: int,
        packing: Packing | None = None,
        *,
        budget_for: Callable[[int], int] | None = None,
        planner: str = "this planner",
    ) -> None:
        self.size = size
        self.profile = profile
        self.info = info
        self.situation = situation
        self.budget_bytes = info.budget_bytes
        self.limit_bytes = None if info.budget_bytes is None else info.budget_bytes - margin_bytes
        self.blocks = recomputable(info)
        self.packing = packing
        self._budget_for = budget_for
        self._planner = planner
        self.smallest: BlockPlan | None = None

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return self.profile.num_blocks

    @property
    def cuts(self) -> tuple[int, ...]:
        """Where no region may span; everywhere, if the data flow is not known."""
        cuts = self.info.cuts
        return tuple(range(1, self.num_blocks)) if cuts is None else cuts

    def peak_bytes(self, plan: BlockPlan) -> int:
        """Return the predicted peak of allocated bytes."""
        return predict_peak(self.profile, plan, self.info, self.situation).bytes

    def need_bytes(self, plan: BlockPlan) -> int:
        """Return the predicted peak and what is lost to packing tensors into segments."""
        return self.peak_bytes(plan) + self.waste_bytes(plan)

    def waste_bytes(self, plan: BlockPlan) -> int:
        """Return what is lost to packing under ``plan``, about."""
        if self.packing is None:
            return 0
        return self.packing.pack(sorted(plan.recomputed)).waste_bytes

    def seconds(self, plan: BlockPlan) -> float:
        """Return the predicted time of the forward and backward pass."""
        return predict_seconds(self.profile, plan, self.info.cuts or ())

    def choose(self, plans: Iterable[BlockPlan], **details: Any) -> Solution:
        """Return the fastest of ``plans`` that fits.

        If none leaves the margin free, the one that needs least runs, as long as its peak is within
        the budget. With more of a budget the choice is never slower, provided that the plans to
        choose from do not become fewer.

        Args:
            plans: The plans to choose from.
            **details: Whatever is to be known about how they were found.

        Raises:
            Infeasible: If none fits.
        """
        judged = [
            (self.seconds(plan), self.need_bytes(plan), plan) for plan in dict.fromkeys(plans)
        ]
        if not judged:
            raise ValueError(f"{self._planner} has no plan to choose from: give at least one")
        _, least, smallest = min(judged, key=lambda j: (j[1], j[0]))
        self.smallest = smallest
        limit = self.limit_bytes
        fitting = [j for j in judged if limit is None or j[1] <= limit]
        if not fitting:
            self.check(self.peak_bytes(smallest), self.budget_for(least))
            fitting = [j for j in judged if j[2] is smallest]
        plan = min(fitting, key=lambda j: (j[0], j[1]))[2]
        least_budget = self.budget_for(least)
        return self.solution(
            plan, least_budget_bytes=least_budget, candidates=len(judged), **details
        )

    def budget_for(self, need_bytes: int) -> int:
        """Return the least budget that leaves the margin free beside what a plan needs."""
        return need_bytes if self._budget_for is None else self._budget_for(need_bytes)

    def check(self, peak_bytes: int, least_budget_bytes: int) -> None:
        """Refuse what does not fit into the budget.

        Args:
            peak_bytes: The predicted peak of the plan that needs least.
            least_budget_bytes: The budget to name.

        Raises:
            Infeasible: If the peak is beyond the budget.
        """
        budget = self.budget_bytes
        if budget is None or peak_bytes <= budget:
            return
        raise Infeasible(
            f"a mini-batch of size {' x '.join(map(str, self.size))} needs a budget of "
            f"{format_bytes(least_budget_bytes, up=True)} under {self._planner}, and it is "
            f"{format_bytes(budget)}: give a larger budget or plan for a smaller batch",
            least_budget_bytes,
        )

    def solution(self, plan: BlockPlan, *, least_budget_bytes: int, **details: Any) -> Solution:
        """Return ``plan`` with all that is predicted of it."""
        return Solution(
            plan=plan,
            size=self.size,
            predicted_peak_bytes=self.peak_bytes(plan),
            need_bytes=self.need_bytes(plan),
            predicted_seconds=self.seconds(plan),
            baseline_seconds=self.seconds(Plan.keep_all(self.num_blocks)),
            least_budget_bytes=least_budget_bytes,
            details=details,
        )


@dataclass(frozen=True, slots=True)
class Solution:
    """A plan and what is predicted of it at the planned size.

    Attributes:
        plan: The plan.
        size: The size planned for.
        predicted_peak_bytes: Peak of allocated bytes, resident ones included.
        need_bytes: That and what is lost to packing.
        predicted_seconds: Time of a step's forward and backward pass.
        baseline_seconds: The same with everything kept.
        least_budget_bytes: The least budget under which this planner has a plan that leaves the
            margin free.
        solve_seconds: How long solving took.
        details: Whatever else the planner has to say: bounds, gaps, numbers of candidates.
    """

    plan: BlockPlan
    size: Size
    predicted_peak_bytes: int
    need_bytes: int
    predicted_seconds: float
    baseline_seconds: float
    least_budget_bytes: int
    solve_seconds: float = 0.0
    details: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the solution as plain data."""
        return {
            "plan": self.plan.to_json(),
            "size": list(self.size),
            "predicted_peak_bytes": self.predicted_peak_bytes,
            "need_bytes": self.need_bytes,
            "predicted_seconds": self.predicted_seconds,
            "baseline_seconds": self.baseline_seconds,
            "least_budget_bytes": self.least_budget_bytes,
            "solve_seconds": self.solve_seconds,
            "details": dict(self.details),
        }

    @classmethod
    def from_json(cls, data: Any) -> Solution:
        """Return the solution that :meth:`to_json` wrote.

        Raises:
            ValueError: If ``data`` is not one.
        """
        try:
            return cls(
                plan=block_plan_from_json(data["plan"]),
                size=tuple(int(x) for x in data["size"]),
                predicted_peak_bytes=int(data["predicted_peak_bytes"]),
                need_bytes=int(data["need_bytes"]),
                predicted_seconds=float(data["predicted_seconds"]),
                baseline_seconds=float(data["baseline_seconds"]),
                least_budget_bytes=int(data["least_budget_bytes"]),
                solve_seconds=float(data["solve_seconds"]),
                details=dict(data["details"]),
            )
        except (KeyError, TypeError) as error:
            raise ValueError("this is not a stored solution of a planner") from error


class Static(Bound):
    """A planner that plans once and for the largest size.

    A subclass says in :meth:`solve` which plan it is, and may say in :meth:`unprofiled` what to do
    in a loop in which nothing was profiled.

    Args:
        margin: Bytes left free between what a plan needs and the budget; by default 5 % of it, or
            one of the allocator's segments of 20 MiB under a budget so small that it is more.
    """

    name: ClassVar[str]
    rescued: ClassVar[bool] = True

    def __init__(self, *, margin: int | str | None = None) -> None:
        super().__init__()
        self._margin = None if margin is None else byte_count("margin", margin)
        self.solution: Solution | None = None
        self.costs: StepCosts | None = None
        self._replans = 0

    def bind(self, info: ModelInfo) -> None:
        """Take the facts about the model.

        Raises:
            ValueError: If the margin leaves nothing of the budget.
        """
        check_margin(self._margin, info.budget_bytes)
        super().bind(info)

    # -- to be defined by each planner

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the plan for every step.

        Args:
            costs: Judges plans.
            progress: Is told how far a long solve has come.

        Raises:
            Infeasible: If no plan of this planner's fits.
        """
        raise ValueError(
            f"planner {type(self).__name__} does not say how it plans: define solve(), which "
            "returns costs.choose(plans)"
        )

    def unprofiled(self) -> Plan:
        """Return the plan to carry out where nothing was profiled.

        Raises:
            ValueError: If this planner cannot do without.
        """
        raise ValueError(
            f"planner {self.name} plans for the largest batch and has to see it first: call "
            "handle.profile() with that batch before training"
        )

    # -- the profile

    @property
    def margin_bytes(self) -> int | None:
        """Bytes left free between what a plan needs and the budget; None without a budget."""
        budget = self.info.budget_bytes
        if budget is None:
            return None
        return self._margin_of(budget)

    def _margin_of(self, budget: int) -> int:
        if self._margin is not None:
            return self._margin
        return max(int(_MARGIN_SHARE * budget), min(_SEGMENT_BYTES, budget // 8))

    def _budget_for(self, need: int) -> int:
        """Return the least budget that leaves its margin free beside ``need`` bytes."""
        low, high = need, 2 * need + (self._margin or 0)
        while low < high:
            middle = (low + high) // 2
            if middle - self._margin_of(middle) >= need:
                high = middle
            else:
                low = middle + 1
        return low

    def profiling_plan(self) -> Plan:
        """Return what the profiled passes carry out: every block recomputed on its own."""
        return Plan.recompute_each(self.info.num_blocks)

    def take_profile(self, measured: Measured, progress: Progress | None = None) -> Solution:
        """Make the plan from profiled passes.

        Args:
            measured: What they showed.
            progress: Is told how far a long solve has come.

        Raises:
            Infeasible: If no plan fits.
            ValueError: If nothing could be measured.
        """
        info, records, steady = self.info, measured.records, measured.steady
        levels, packing = self._levels(records)
        size = records[-1].size
        profile = replace(
            _with_times(levels, [r.collected for r in records if r.collected]),
            optimizer_peak=measured.optimizer_temporary_bytes,
            optimizer_state=measured.optimizer_state_bytes,
        )
        self.costs = StepCosts(
            size,
            profile,
            info,
            steady,
            self.margin_bytes or 0,
            packing,
            budget_for=self._budget_for,
            planner=f"planner {self.name}",
        )
        started = time.perf_counter()
        solution = self.solve(self.costs, progress)
        if not isinstance(solution, Solution):
            raise ValueError(
                f"solve() of planner {self.name} returned a {type(solution).__name__}, not a "
                "Solution: return costs.choose([plan, ...])"
            )
        self.solution = replace(solution, solve_seconds=time.perf_counter() - started)
        return self.solution

    def _levels(self, records: Sequence[StepRecord]) -> tuple[Profile, Packing | None]:
        """Return the profile's bytes, and what is known of the tensors' sizes."""
        info = self.info
        count = info.num_blocks
        rows = [
            row
            for r in records
            if r.collected is not None and (row := to_row(r.collected, r.plan, count)) is not None
        ]
        if not rows:
            raise ValueError(
                f"planner {self.name} has nothing to plan from: no block of the model was "
                "measured; profile a forward and backward pass of the model in training mode, with "
                "gradients, and without checkpointing of its own"
            )
        found = np.max([row[0] for row in rows], axis=0)
        if not records[-1].situation.grads_resident:
            # A profile is one of resident gradients, and the peak model adds those that grow.
            grown = grown_gradients(info, count)
            found[-len(OUTSIDE) - count : -len(OUTSIDE)] -= grown[:-1]
            found[-2:] -= grown[-1], grown[0]
        outside = dict(zip(OUTSIDE, map(int, found[-len(OUTSIDE) :])))
        by_block = found[: -len(OUTSIDE)].astype(np.int64).reshape(len(PER_BLOCK), count)
        columns = {name: tuple(map(int, row)) for name, row in zip(PER_BLOCK, by_block)}
        profile = Profile(
            activation=tuple(map(operator.add, columns["activation"], columns["freed"])),
            output=columns["output"],
            level=columns["level"],
            kept_peak=columns["kept_peak"],
            checkpoint_peak=columns["checkpoint_peak"],
            backward_peak=columns["backward_peak"],
            forward_seconds=(0.0,) * count,
            first_peak=outside["first_peak"],
            head_peak=max(outside[name] for name in ("loss_peak", "after_peak", "head_peak")),
            tail_peak=outside["tail_peak"],
            optimizer_peak=0,
        )
        sample = Sample(records[-1].size, True, found, rows[-1][1], rows[-1][2])
        one = np.ones((1, 1))
        return profile, Storages([sample], one).predict(one[0])

    # -- the planner's interface

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return the plan; the predicted peak comes with steps of the size planned for."""
        solution = self.solution
        if solution is None:
            return Decision(self.unprofiled())
        peak = None
        if size == solution.size:
            if self.costs is not None:
                peak = predict_peak(self.costs.profile, solution.plan, self.info, situation).bytes
            elif situation.optimizer_ready:  # The solution's peak is one of training under way.
                peak = solution.predicted_peak_bytes
        return Decision(solution.plan, predicted_peak_bytes=peak)

    def rescue(self) -> BlockPlan | None:
        """Return what to repeat a step with that ran out of memory: the plan that needs least.

        None where nothing was profiled: then every block is recomputed.
        """
        costs = self.costs
        if costs is None or costs.smallest is None:
            return None
        every = Plan.recompute_each(costs.num_blocks, costs.blocks)
        return min((costs.smallest, every), key=costs.need_bytes)

    def observe(self, record: StepRecord) -> None:
        """Plan anew, with more of a margin, if a step ran out of memory under the plan.

        What was predicted is what is allocated. How far what is free lies in pieces, only running
        shows. A few times at most, and only where planning takes seconds.
        """
        solution, costs = self.solution, self.costs
        if (
            record.outcome != "retried"
            or solution is None
            or costs is None
            or costs.budget_bytes is None
            or costs.limit_bytes is None
            or self._replans >= _MOST_REPLANS
            or solution.solve_seconds > _QUICK_SECONDS
        ):
            return
        self._replans += 1
        costs.limit_bytes -= int(_MARGIN_SHARE * costs.budget_bytes)
        started = time.perf_counter()
        try:
            again = self.solve(costs)
        except Infeasible:
            return
        details = {**again.details, "replans": self._replans}
        seconds = time.perf_counter() - started
        self.solution = replace(again, solve_seconds=seconds, details=details)

    def state_dict(self) -> dict[str, Any]:
        """Return the solution as plain data."""
        return {"solution": None if self.solution is None else self.solution.to_json()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If ``state`` is not that, or belongs to a model with other blocks.
        """
        found = state.get("solution")
        solution = None if found is None else Solution.from_json(found)
        if solution is not None and self._info is not None and self._info.exact:
            planned, blocks = solution.plan.num_blocks, self._info.num_blocks
            if planned != blocks:
                raise ValueError(
                    f"this plan is for a model of {planned} blocks, and this one has {blocks}: "
                    "load the state that was saved with this model"
                )
        self.solution = solution


def _with_times(profile: Profile, passes: Sequence[Collected]) -> Profile:
    """Return the profile with the least disturbed times and the FLOPs of the passes."""
    timed = passes[1:] or passes
    count = profile.num_blocks

    def least(name: str) -> tuple[float, ...]:
        found: list[list[float]] = [[] for _ in range(count)]
        for each in timed:
            for sample in each.blocks:
                if 0 <= sample.block < count:
                    found[sample.block].append(getattr(sample, name))
        return tuple(min(times, default=0.0) for times in found)

    def counted(name: str) -> tuple[int, ...]:
        numbers = [0] * count
        for sample in passes[0].blocks:
            if 0 <= sample.block < count:
                numbers[sample.block] = getattr(sample, name) or 0
        return tuple(numbers)

    return replace(
        profile,
        forward_seconds=least("forward_seconds"),
        recompute_seconds=least("recompute_seconds"),
        backward_seconds=least("backward_seconds"),
        outside_seconds=min(each.outside_seconds for each in timed),
        forward_flops=counted("forward_flops"),
        recompute_flops=counted("recompute_flops"),
        backward_flops=counted("backward_flops"),
        outside_flops=passes[0].outside_flops or 0,
    )
