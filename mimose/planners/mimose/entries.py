"""Making a cached plan, and judging one anew after the estimator was fitted to another sample.

A new sample moves predictions a little, most often by less than matters to a plan. So plans made
with an earlier fit are not thrown away: the next time that one is asked for, the new fit predicts
what it needs, and it stays if it fits and if a plan made now would not recompute less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from mimose.plan import Plan
from mimose.planners.mimose.cache import Entry
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.scheduler import Scheduled, schedule
from mimose.records import ModelInfo, Situation, Size

Choose = Callable[[Forecast, ModelInfo, Situation, int, Sequence[int]], Scheduled]
"""Chooses a plan, see :func:`mimose.planners.mimose.scheduler.schedule`."""

# Plans are made for a little more than what is resident now, so that the next batch's few more
# bytes do not call for a new one; and are made anew once they are this much too careful.
_RESIDENT_SHARE = 512
_CAREFUL_SHARE = 20


@dataclass(frozen=True, slots=True)
class Terms:
    """What a plan has to keep to.

    Attributes:
        info: The model.
        candidates: Blocks that may be recomputed.
        budget_bytes: The budget.
        margin_bytes: The margin now.
        inflation: Share by which predictions are raised now.
    """

    info: ModelInfo
    candidates: Sequence[int]
    budget_bytes: int
    margin_bytes: int
    inflation: float

    @property
    def unit_bytes(self) -> int:
        """To multiples of what resident bytes are rounded up."""
        return self.budget_bytes // _RESIDENT_SHARE + 1

    def inflated(self, step_bytes: int) -> int:
        """Return a step's predicted bytes, raised by the inflation."""
        return int(step_bytes * (1.0 + self.inflation))

    def hold(self, entry: Entry, situation: Situation, slack: int | None = None) -> bool:
        """Whether an entry is good for a step, see :meth:`Entry.holds`.

        Args:
            entry: The entry.
            situation: The state at the start of the step.
            slack: How much less may be needed now than when the entry was made; 5 % of the budget
                by default.
        """
        if slack is None:
            slack = self.budget_bytes // _CAREFUL_SHARE
        return entry.holds(situation, self.margin_bytes, self.inflation, self.budget_bytes, slack)


def make(
    key: Size,
    forecasts: Sequence[Forecast],
    situation: Situation,
    terms: Terms,
    choose: Choose = schedule,
) -> tuple[Entry, int]:
    """Plan for the rounded-up size, and predict both ends of what rounds up to it.

    Args:
        key: The rounded-up size.
        forecasts: Of the size to plan for, with what is lost between its tensors, of the smallest
            one that rounds up to ``key`` and, where it is not the one to plan for, of ``key``.
        situation: The state at the start of the step.
        terms: What the plan has to keep to.
        choose: Chooses the plan.

    Returns:
        The entry, and how many blocks were weighed for it.
    """
    unit = terms.unit_bytes
    resident = -(-situation.resident_bytes // unit) * unit
    roomy = replace(situation, resident_bytes=resident)
    # Inflation raises the step's bytes; the scheduler's bound is lowered to match.
    room = terms.budget_bytes - terms.margin_bytes - resident
    allowed = resident + int(room / (1.0 + terms.inflation))
    plan, peak, packed, weighed = choose(forecasts[0], terms.info, roomy, allowed, terms.candidates)
    step_bytes = peak.bytes - resident
    entry = Entry(
        plan=plan,
        size=key,
        resident_bytes=resident,
        grads_resident=situation.grads_resident,
        optimizer_ready=situation.optimizer_ready,
        needed_bytes=resident
        + terms.inflated(step_bytes)
        + packed.waste_bytes
        + terms.margin_bytes,
        step_bytes=step_bytes,
        packed=packed,
        ends=_ends(step_bytes, forecasts, plan, situation, terms.info),
    )
    return entry, weighed + (len(forecasts) - 1) * forecasts[0].profile.num_blocks


def judge(
    earlier: Entry,
    forecasts: Sequence[Forecast],
    situation: Situation,
    terms: Terms,
) -> Entry | None:
    """Return an entry made with an earlier fit as the present one predicts it, if it is still good.

    What it needed when it was made stays on record, so that predictions that fall little by little
    call for a new plan once they have fallen far enough in all.

    Args:
        earlier: The entry.
        forecasts: By the present fit, see :func:`make`.
        situation: The state at the start of the step.
        terms: What the plan has to keep to.

    Returns:
        None if it no longer fits, if it was made for another state, or if one of its blocks
        need not be recomputed any more.
    """
    plan, forecast = earlier.plan, forecasts[0]
    step_bytes = forecast.step_bytes(plan, terms.info, situation)
    recomputed = sorted(plan.recomputed)
    entry = replace(
        earlier,
        step_bytes=step_bytes,
        packed=forecast.packed(plan),
        ends=_ends(step_bytes, forecasts, plan, situation, terms.info),
        segments={},
    )
    slack = None
    if recomputed:
        room = terms.budget_bytes - entry.needed(terms.margin_bytes, terms.inflation)
        if room >= terms.inflated(min(forecast.profile.activation[b] for b in recomputed)):
            # One block fewer would do. If it would have when the plan was made, the greedy rule
            # chose otherwise, and would again.
            slack = terms.unit_bytes
    return entry if terms.hold(entry, situation, slack) else None


def _ends(
    step_bytes: int,
    forecasts: Sequence[Forecast],
    plan: Plan,
    situation: Situation,
    info: ModelInfo,
) -> tuple[int, int]:
    low = forecasts[1].step_bytes(plan, info, situation)
    if len(forecasts) == 2:
        return low, step_bytes
    # Shorter than all seen, it takes no more than the shortest: only noise bends a fit up there.
    high = forecasts[2].step_bytes(plan, info, situation)
    return min(low, step_bytes), min(high, step_bytes)
