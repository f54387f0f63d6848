"""The responsive scheduler: Algorithm 1 in front of the peak model.

The printed algorithm stops once the credited bytes cover the excess. That credit can be too good:
recomputing the block whose backward comes first frees nothing, and a recomputation has a working
set. So the peak model judges the plan, and while it still exceeds the budget Algorithm 1 goes on
with the excess that remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mimose.costs import Infeasible, Peak, Profile, predict_peak
from mimose.plan import Plan
from mimose.planners.mimose.storages import Packed, Packing
from mimose.records import ModelInfo, Situation, Size
from mimose.solvers import greedy
from mimose.units import format_bytes

Pick = Callable[[Sequence[int], int, Sequence[int]], list[int]]
"""``(est_mem, excess, candidates) -> chosen``, see :mod:`mimose.solvers.greedy`."""


class Scheduled(NamedTuple):
    """What the scheduler chose.

    Attributes:
        plan: The plan.
        peak: Its predicted peak.
        packed: How its tensors lie in segments at that peak.
        candidates: How many blocks were weighed, see :class:`mimose.records.Work`.
    """

    plan: Plan
    peak: Peak
    packed: Packed
    candidates: int


def schedule(
    profile: Profile,
    info: ModelInfo,
    situation: Situation,
    allowed_bytes: int,
    candidates: Sequence[int],
    packing: Packing | None = None,
    pick: Pick = greedy.printed,
) -> Scheduled:
    """Return the blocks to recompute so that the step fits into ``allowed_bytes``.

    Args:
        profile: Costs of the step.
        info: The model.
        situation: The state at the start of the step.
        allowed_bytes: Bound on the predicted peak and what is lost to packing at it: the budget
            less the margin.
        candidates: Blocks that may be recomputed.
        packing: Predicts what is lost to packing; nothing is, by default.
        pick: The greedy rule.

    Returns:
        The plan and what is predicted of it. It exceeds the bound only if every candidate is
        recomputed; the caller decides what that means.
    """
    chosen: list[int] = []
    left = list(candidates)
    weighed = 0
    while True:
        plan = Plan.recompute_each(profile.num_blocks, chosen)
        peak = predict_peak(profile, plan, info, situation)
        weighed += profile.num_blocks
        packed = Packed() if packing is None else packing.pack(chosen)
        excess = peak.bytes + packed.waste_bytes - allowed_bytes
        if excess <= 0 or not left:
            return Scheduled(plan, peak, packed, weighed)
        # Candidates that free nothing by their own account are of no use to the algorithm either.
        picked = pick(profile.activation, excess, left) or left
        weighed += len(left) + len(picked)
        chosen.extend(picked)
        gone = frozenset(picked)
        left = [b for b in left if b not in gone]


def check_feasible(
    size: Size, peak_bytes: int, lost_bytes: int, budget_bytes: int, longest: int | None = None
) -> None:
    """Refuse a step whose least peak exceeds the budget.

    What is lost to packing and the margin are estimates, so a step that fits but for ``lost_bytes``
    of them may run; the least budget and the length that are named have room for them.

    Args:
        size: The step's size.
        peak_bytes: Its predicted peak with every block recomputed.
        lost_bytes: What is lost to packing, and the margin.
        budget_bytes: The budget.
        longest: The greatest first length that would fit with this batch, where that is known.

    Raises:
        Infeasible: If ``peak_bytes`` is more than ``budget_bytes``.
    """
    if peak_bytes <= budget_bytes:
        return
    least = peak_bytes + lost_bytes
    advice = "give a larger budget or a smaller batch"
    if longest is not None and 0 < longest < size[1]:
        advice += f", or cut lengths to {longest}, which would fit"
    raise Infeasible(
        f"a mini-batch of size {' x '.join(map(str, size))} needs {format_bytes(least, up=True)} "
        f"even with every block recomputed, and the budget is {format_bytes(budget_bytes)}: "
        + advice,
        least,
    )
