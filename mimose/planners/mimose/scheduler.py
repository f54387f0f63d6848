"""The responsive scheduler: Algorithm 1 in front of the peak model.

The printed algorithm stops once the credited bytes cover the excess. That credit can be too good:
recomputing the block whose backward comes first frees nothing, and a recomputation has a working
set. So the peak model judges the plan, and while it still exceeds the budget Algorithm 1 goes on
with the excess that remains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from mimose.costs import Infeasible, Peak
from mimose.plan import Plan
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.storages import Packed
from mimose.records import ModelInfo, Situation, Size
from mimose.solvers import greedy
from mimose.solvers.packing import SMALL_SEGMENT
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
    forecast: Forecast,
    info: ModelInfo,
    situation: Situation,
    allowed_bytes: int,
    candidates: Sequence[int],
    pick: Pick = greedy.printed,
) -> Scheduled:
    """Return the blocks to recompute so that the step fits into ``allowed_bytes``.

    Args:
        forecast: What the step is predicted to take.
        info: The model.
        situation: The state at the start of the step.
        allowed_bytes: Bound on the predicted peak and what is lost to packing at it: the budget
            less the margin.
        candidates: Blocks that may be recomputed.
        pick: The greedy rule.

    Returns:
        The plan and what is predicted of it. It exceeds the bound only if every candidate is
        recomputed; the caller decides what that means.
    """
    chosen: list[int] = []
    left = list(candidates)
    weighed, count = 0, forecast.profile.num_blocks
    while True:
        plan = Plan.recompute_each(count, chosen)
        peak = forecast.peak(plan, info, situation)
        weighed += count
        packed = forecast.packed(plan)
        excess = peak.bytes + packed.waste_bytes - allowed_bytes
        if excess <= 0 or not left:
            return Scheduled(plan, peak, packed, weighed)
        # Candidates that free nothing by their own account are of no use to the algorithm either.
        picked = pick(forecast.profile.activation, excess, left) or left
        weighed += len(left) + len(picked)
        chosen.extend(picked)
        gone = frozenset(picked)
        left = [b for b in left if b not in gone]


def check_feasible(
    size: Size,
    peak_bytes: int,
    least_bytes: int,
    budget_bytes: int,
    longest: int | None = None,
    *,
    resident_bytes: int = 0,
    given_bytes: int | None = None,
) -> None:
    """Refuse a step whose least peak exceeds the budget.

    What is lost to packing and the margin are estimates, so a step that fits but for them may run;
    the least budget and the length that are named have room for them.

    Args:
        size: The step's size.
        peak_bytes: Its predicted peak with every block recomputed.
        least_bytes: The least budget with room for that, what is lost to packing and the margin.
        budget_bytes: The budget, as far as it can be reserved.
        longest: The greatest first length that would fit with this batch, where that is known.
        resident_bytes: The part of ``peak_bytes`` that is allocated before the step.
        given_bytes: The budget as it was given; by default ``budget_bytes``.

    Raises:
        Infeasible: If ``peak_bytes`` is more than ``budget_bytes``.
    """
    if peak_bytes <= budget_bytes:
        return
    given = budget_bytes if given_bytes is None else given_bytes
    in_use = (
        f"{format_bytes(resident_bytes)} are in use before it (parameters, gradients and optimizer "
        "state that are there, and the batch)"
    )
    enough = f"{format_bytes(least_bytes, up=True)}, which leaves room for fragmentation"
    if resident_bytes >= budget_bytes:
        raise Infeasible(
            f"no mini-batch fits the budget of {format_bytes(given)}: {in_use}, and the allocator "
            f"takes {format_bytes(SMALL_SEGMENT)} or more at a time; for one of size "
            f"{_shown(size)} give {enough}, or use a smaller model",
            least_bytes,
        )
    step = format_bytes(peak_bytes - resident_bytes)
    usable = ""
    if peak_bytes <= given:
        usable = f", of which {format_bytes(budget_bytes)} can be reserved in whole segments"
    raise Infeasible(
        f"a mini-batch of size {_shown(size)} needs {format_bytes(peak_bytes, up=True)} even with "
        f"every block recomputed: {in_use}, and {step} more in it. The budget is "
        f"{format_bytes(given)}{usable}: give one of {enough}, or a smaller batch"
        + _cut(size, longest),
        least_bytes,
    )


def refuse_again(
    size: Size, failed: Size, given_bytes: int, least_bytes: int, longest: int | None
) -> Infeasible:
    """Return what is raised for a size of which it is known that it runs out of memory.

    Args:
        size: The step's size.
        failed: The size that ran out of memory.
        given_bytes: The budget as it was given.
        least_bytes: A budget that would do, as far as is known.
        longest: As for :func:`check_feasible`.
    """
    other = "it" if failed == size else f"one of {_shown(failed)}"
    return Infeasible(
        f"a mini-batch of size {_shown(size)} is not run, since {other} ran out of memory before "
        f"with every block recomputed; the budget is {format_bytes(given_bytes)}: give a larger "
        "one or a smaller batch" + _cut(size, longest),
        least_bytes,
    )


def _shown(size: Size) -> str:
    return " x ".join(map(str, size))


def _cut(size: Size, longest: int | None) -> str:
    if longest is None or not 0 < longest < size[1]:
        return ""
    return f", or cut lengths to {longest}, which would fit"
