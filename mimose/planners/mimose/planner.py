"""Mimose: measure in a few sheltered iterations, then plan each iteration from its size."""

from __future__ import annotations

import bisect
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from mimose.costs import Infeasible
from mimose.plan import Plan
from mimose.planners.bound import Bound, recomputable, recompute_all
from mimose.planners.mimose import authors, entries
from mimose.planners.mimose.cache import Entry, least_of, round_up
from mimose.planners.mimose.drift import Drift
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.fitted import Fitted
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.knowledge import Knowledge
from mimose.planners.mimose.ran_out import RanOut
from mimose.planners.mimose.reserve import Need, Reserve
from mimose.planners.mimose.scheduler import (
    Scheduled,
    check_feasible,
    refuse_again,
    schedule,
)
from mimose.planners.mimose.storages import Packed
from mimose.planners.mimose.worth import warn_if_useless
from mimose.planners.options import byte_count, check_margin, whole_number
from mimose.records import (
    NO_AUTOCAST,
    NO_WORK,
    Decision,
    ModelInfo,
    Situation,
    Size,
    StepRecord,
    Work,
)

VARIANTS = ("printed", "authors")
MOST_SHELTERED = 30
"""Sheltered execution ends after so many iterations whatever they showed."""

_AUTHORS_MARGIN_SHARE = 0.1
# The CUDA caching allocator's segments for requests of 1 to 10 MiB.
_SEGMENT_BYTES = 20 << 20
# A quadratic is trusted to refuse a step up to this many times beyond what it was fitted to.
_REACH = 2
# No length is looked for beyond this one.
_LONGEST = 1 << 20
# A figure a step: its peak, for margin and drift.
_LOOKUP, _OBSERVED = Work(lookups=1), Work(updates=1)


@dataclass(frozen=True, slots=True)
class _Pending:
    """What was predicted for the step under way.

    Attributes:
        plan: Its plan.
        step_bytes: Predicted peak above the resident bytes.
        need: What it was planned to need of the allocator.
        exact_size: Whether its size is within the fitted range.
    """

    plan: Plan
    step_bytes: int
    need: Need
    exact_size: bool


def _tells(estimator: Estimator) -> bool:
    """Whether samples are enough to say what a size beyond them takes."""
    return estimator.num_shapes > 2 and estimator.determined


def _need(peak: int, packed: Packed) -> Need:
    return Need(peak + packed.waste_bytes, packed.segments, packed.waste_bytes)


class Mimose(Bound):
    """Input-aware checkpointing (Xu et al., IPDPS 2023).

    The first iterations are *sheltered*: every block is recomputed and the collector measures.
    From then on each iteration is *responsive*: the estimator predicts it from its size, and the
    scheduler recomputes only what does not fit. A size beyond those seen, or a prediction that
    missed, calls for one more sheltered iteration.

    Without a budget there is nothing to plan for: everything is kept.

    Args:
        sheltered: Number of sheltered iterations, 1 to 30. It does not depend on how many
            different sizes they show.
        margin: Bytes left for fragmentation between the predicted peak and the budget. By default
            it is learned, see :attr:`margin_bytes`. The authors set 0.5 to 1 GiB by hand for each
            task; for their variant the default is 10 % of the budget, since a planner knows no
            task.
        cache_step: Lengths are rounded up to multiples of this, and a plan serves all sizes that
            round up to the same one. Batches are never rounded, nor are sizes of more than two
            extents. Areas of images change by whole rows of pixels or patches, so that each keeps
            a plan of its own.
        variant: ``printed``, Algorithm 1 with the peak model, or ``authors``, what their released
            code does.

    Raises:
        ValueError: If an option is not one of these.
    """

    name: ClassVar[str] = "mimose"
    rescued: ClassVar[bool] = True
    _knowledge: ClassVar[type[Knowledge]] = Knowledge
    # Whether steps that measure go near the budget as others do, rather than recompute all.
    _measures_beside: ClassVar[bool] = False

    def __init__(
        self,
        *,
        sheltered: int | str = 10,
        margin: int | str | None = None,
        cache_step: int | str = 5,
        variant: str = "printed",
    ) -> None:
        if variant not in VARIANTS:
            raise ValueError(f"variant must be {' or '.join(VARIANTS)}, not {variant!r}")
        self.variant = variant
        self._sheltered = whole_number("sheltered", sheltered, 1, MOST_SHELTERED)
        self._cache_step = whole_number("cache_step", cache_step, 1)
        self._fixed_margin = None if margin is None else byte_count("margin", margin)
        super().__init__()
        self._candidates: list[int] = []
        self._known: dict[str, Knowledge] = {}
        self._reserve: Reserve | None = None
        self._reserve_state: Mapping[str, Any] | None = None
        self._drift = Drift()
        self._fitted = Fitted()
        self._unfit, self._unmeasurable = RanOut(), RanOut()
        self._pending: _Pending | None = None
        self._warned = False
        self._weighed = False

    @property
    def margin_bytes(self) -> int | None:
        """Bytes left between the predicted peak and the budget; None without a budget.

        Unless given, it is the largest of (peak reserved - predicted peak allocated) over the last
        50 steps that tell something about it; see :mod:`mimose.planners.mimose.reserve`.
        """
        return None if self._reserve is None else self._reserve.margin_bytes

    # -- the planner's interface

    def bind(self, info: ModelInfo) -> None:
        """Take the facts about the model; plans made for other facts are dropped."""
        check_margin(self._fixed_margin, info.budget_bytes)
        previous, self._info = self._info, info
        self._candidates = recomputable(info)
        if previous is None or previous.budget_bytes != info.budget_bytes:
            self._reserve = None if info.budget_bytes is None else self._new_reserve(info)
        if previous is not None and (previous.budget_bytes, previous.block_names) != (
            info.budget_bytes,
            info.block_names,
        ):
            self._unfit.forget()
            self._unmeasurable.forget()
            self._fitted.forget()
        for known in self._known.values():
            known.forget_fits()

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return what to recompute in a step of this size.

        Raises:
            Infeasible: If the step does not fit even with every block recomputed, by prediction or
                because a step no larger has run out of memory that way.
        """
        started = time.perf_counter()
        info, reserve = self.info, self._reserve
        self._pending = None
        if reserve is None:
            return Decision(Plan.keep_all(info.num_blocks))
        reserve.align(situation.reserved_bytes)
        known = self._known.get(situation.signature)
        failed = self._unfit.before(size, situation)
        if failed is not None:
            raise self._refused(size, failed, situation, known, reserve)
        if known is not None and known.attempts >= MOST_SHELTERED and not known.has_samples:
            # Nothing can be measured in this loop: the safest plan, without measuring any more.
            self._warn_blind()
            return Decision(recompute_all(info), "responsive")
        if known is None or not known.has_samples or known.block_names != info.block_names:
            if not self._can_measure(size, situation, known):
                return Decision(recompute_all(info), "responsive")
            return Decision(recompute_all(info), "sheltered", collect=True)
        if not self._learned(known, situation):
            return self._shelter(size, situation, known, reserve, started)
        if self.variant == "authors":
            return self._authors(size, situation, known, reserve, started)
        if self._drift.due:
            return self._shelter(size, situation, known, reserve, started)
        return self._respond(size, situation, known, reserve, started)

    def longest(self, size: Size, situation: Situation) -> int:
        """Return the greatest first length with which a batch like ``size`` fits.

        That is with every block recomputed, and either with room for the margin and for what is
        lost to packing, or as a step has shown that kept to the budget and took as much. 0 if not
        even one of 1 fits. The other extents stay as they are.

        Raises:
            ValueError: If there is no budget, or too few lengths were seen to tell.
        """
        reserve = self._reserve
        if reserve is None:
            raise ValueError("without a budget every length fits: attach with a budget")
        estimator = self._telling(situation, self._known.get(situation.signature))
        if estimator is None:
            raise ValueError(
                "which length fits is not known yet, since it takes three different ones to tell: "
                "ask again after some more steps"
            )
        reserve.align(situation.reserved_bytes)
        return self._longest(size, situation, estimator, reserve)

    def _telling(self, situation: Situation, known: Knowledge | None) -> Estimator | None:
        """Return an estimator that can say what a size beyond its samples takes, or None."""
        if known is None or not known.has_samples or known.block_names != self.info.block_names:
            return None
        estimator = known.estimator(situation.grads_resident, self.info)
        return estimator if _tells(estimator) else None

    def _longest(
        self,
        size: Size,
        situation: Situation,
        estimator: Estimator,
        reserve: Reserve,
    ) -> int:
        plan = recompute_all(self.info)

        def fits(length: int) -> bool:
            tried = (size[0], length, *size[2:])
            if self._unfit.before(tried, situation) is not None:
                return False
            step_bytes, packed = self._sheltered_bytes(tried, situation, estimator, plan)
            peak = situation.resident_bytes + self._inflated(step_bytes)
            if peak + packed.waste_bytes + reserve.margin_bytes <= reserve.budget_bytes:
                return True
            return peak <= reserve.budget_bytes and self._fitted.has_shown(
                tried, peak, situation.signature, reserve.budget_bytes
            )

        return bisect.bisect_left(range(1, _LONGEST + 1), True, key=lambda x: not fits(x))

    def observe(self, record: StepRecord) -> Work:
        """Learn from a finished step; return the work, the fit to new samples included."""
        reserve, pending = self._reserve, self._pending
        self._pending = None
        if reserve is None:
            return NO_WORK
        self._fitted.note(record, reserve.budget_bytes)
        info = self.info
        signature = record.situation.signature
        known = self._known.get(signature)
        if known is None or (known.block_names != info.block_names and info.exact):
            casts = NO_AUTOCAST not in signature
            known = self._known[signature] = self._knowledge(info.block_names, casts=casts)
        learned = 0
        if known.block_names == info.block_names:
            learned = known.learn(record, info)
        if pending is None:
            reserve.observe(record, None, lambda: self._waste(record, known))
        else:
            reserve.observe(record, pending.need)
        if record.phase == "sheltered":
            self._drift.sheltered()
        elif (
            pending is not None
            and self.variant == "printed"
            and record.outcome == "ok"
            and record.peak_exact
            and record.peak_allocated_bytes is not None
            and (record.plan is pending.plan or record.plan == pending.plan)
        ):
            resident = record.situation.resident_bytes
            measured = record.peak_allocated_bytes - resident
            # The optimizer's step was planned for, and may not have followed (accumulation).
            exact = pending.exact_size and record.optimizer_seconds != 0.0
            self._drift.observe(pending.step_bytes, measured, resident, exact_size=exact)
        return _OBSERVED + Work(updates=learned) if learned else _OBSERVED

    def ran_out(self, record: StepRecord, *, measuring: bool) -> None:
        """Take note of a step that ran out of memory and was not rescued.

        If it recomputed all that it could, no step of its size or larger is run again. The
        authors' variant remembers nothing, as their code does not.

        Args:
            record: The step.
            measuring: Whether the collector's own forward passes may have been too much. Then such
                sizes are not measured again, and run without.
        """
        plan = record.plan
        if self.variant != "printed" or not isinstance(plan, Plan):
            return
        if measuring:
            self._unmeasurable.note(record.size, record.situation)
        elif plan.recomputed >= frozenset(recomputable(self.info)):
            self._unfit.note(record.size, record.situation)

    def _can_measure(self, size: Size, situation: Situation, known: Knowledge | None) -> bool:
        if known is not None and size in known.unmeasurable:
            return False
        return self._unmeasurable.before(size, situation) is None

    def _waste(self, record: StepRecord, known: Knowledge) -> int:
        """Return the bytes that a step lost to packing, by what it has taught; 0 if unknown."""
        info = self.info
        if record.collected is None or not known.has_samples:
            return 0
        if known.block_names != info.block_names:
            return 0
        if not isinstance(record.plan, Plan):
            return 0
        estimator = known.estimator(record.situation.grads_resident, info)
        return self._packed(record.size, record.plan, known, estimator).waste_bytes

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, as plain data: a planner that loads it needs no measuring."""
        return {
            "version": 1,
            "known": {signature: k.to_json() for signature, k in self._known.items()},
            "reserve": None if self._reserve is None else self._reserve.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned.

        Raises:
            ValueError: If ``state`` is not that, or belongs to a model with other blocks.
        """
        try:
            known = {str(s): self._knowledge.from_json(k) for s, k in state["known"].items()}
            reserve = state["reserve"]
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the state of the planner {self.name}") from error
        if self._info is not None and self._info.exact:
            strangers = [k for k in known.values() if k.block_names != self._info.block_names]
            if strangers:
                raise ValueError(
                    f"this state belongs to a model of {len(strangers[0].block_names)} blocks that "
                    f"start with {strangers[0].block_names[0]!r}, not to this one: load the state "
                    "that was saved with this model"
                )
        self._known = known
        self._reserve_state = reserve
        if self._reserve is not None and reserve is not None:
            self._reserve.load_state_dict(reserve)

    # -- how a step is decided

    def _new_reserve(self, info: ModelInfo) -> Reserve:
        budget = info.budget_bytes or 0
        fixed = self._fixed_margin
        if fixed is None and self.variant == "authors":
            fixed = int(_AUTHORS_MARGIN_SHARE * budget)
        start = min(_SEGMENT_BYTES, budget // 8)
        reserve = Reserve(budget, fixed, start, expandable=info.expandable_segments)
        if self._reserve_state is not None:
            reserve.load_state_dict(self._reserve_state)
        return reserve

    def _learned(self, known: Knowledge, situation: Situation) -> bool:
        return known.iterations >= self._sheltered or known.attempts >= MOST_SHELTERED

    def _shelter(
        self,
        size: Size,
        situation: Situation,
        known: Knowledge,
        reserve: Reserve,
        started: float,
        work: Work = NO_WORK,
    ) -> Decision:
        """Recompute every block and measure, having checked that this fits as far as one knows.

        A size of which the measuring itself did not fit is not measured again.
        """
        info = self.info
        estimator = known.estimator(situation.grads_resident, info)
        plan = recompute_all(info)
        step_bytes, packed = self._sheltered_bytes(size, situation, estimator, plan)
        predicted = time.perf_counter()
        resident = situation.resident_bytes
        peak = resident + self._inflated(step_bytes)
        shapes_seen = _tells(estimator) or estimator.is_within(size)
        greatest = estimator.fitted_range[1]
        near = all(x <= _REACH * g for x, g in zip(size, greatest))
        doubt = estimator.doubt(estimator.clip(size))
        # What a smaller size takes is not known, but that it is no more.
        clipped = size[1:] != estimator.clip(size)[1:]
        smaller = all(x <= g for x, g in zip(size, greatest)) and (
            clipped or (size[0] < greatest[0] and not _tells(estimator))
        )
        if shapes_seen and near and not smaller and peak - doubt > reserve.budget_bytes:
            self._check_feasible(size, peak, packed, situation, known, reserve)
        collect = self._can_measure(size, situation, known)
        if collect:
            less = self._with_less(size, situation, estimator, reserve)
            if less is not None:
                plan, packed = less.plan, less.packed
                step_bytes = less.peak.bytes - resident
                peak = resident + self._inflated(step_bytes)
        decision = Decision(
            plan,
            "sheltered" if collect else "responsive",
            collect=collect,
            predicted_peak_bytes=resident + step_bytes,
        )
        need = _need(peak, packed)
        self._pending = _Pending(plan, step_bytes, need, exact_size=False)
        work += Work(estimates=info.num_blocks, candidates=info.num_blocks)
        return self._decide(decision, size, need, situation, reserve, started, predicted, work)

    def _with_less(
        self, size: Size, situation: Situation, estimator: Estimator, reserve: Reserve
    ) -> Scheduled | None:
        """Return a plan for a sheltered step that recomputes less than every block, if any.

        There is none: the shuttling collector recomputes all that it measures.
        """
        return None

    def _sheltered_bytes(
        self, size: Size, situation: Situation, estimator: Estimator, plan: Plan
    ) -> tuple[int, Packed]:
        """Return a sheltered step's peak above the resident bytes, and how its tensors lie."""
        profile = estimator.predict(estimator.clip(size)).measured()
        forecast = Forecast(profile, estimator.packing(size))
        step_bytes = forecast.step_bytes(plan, self.info, situation)
        # The collector runs each block's forward once with its activations kept.
        step_bytes = max(step_bytes, max(map(sum, zip(profile.level, profile.kept_peak))))
        return step_bytes, forecast.packed(plan)

    def _respond(
        self, size: Size, situation: Situation, known: Knowledge, reserve: Reserve, started: float
    ) -> Decision:
        estimator = known.estimator(situation.grads_resident, self.info)
        step = self._step_of(size)
        place = estimator.places.get((size, step))
        if place is None:
            covered = estimator.covers(size, step - 1)
            below = covered and size[1:] != estimator.clip(size)[1:]
            place = estimator.places[size, step] = covered, round_up(size, step), below
        covered, key, below = place
        if not covered:
            return self._shelter(size, situation, known, reserve, started)
        entry = known.plans.get(key)
        predicted = None
        work = _LOOKUP
        earlier = known.earlier.pop(key, None) if entry is None else None
        terms = self._terms(reserve)
        hit = entry is not None and terms.hold(entry, situation)
        if entry is None or not hit:
            low = least_of(key, step)
            sizes = [estimator.clip(key), low, *([key] if below else [])]
            forecasts = [self._forecast(s, known, estimator) for s in sizes]
            forecasts[0] = replace(forecasts[0], packing=estimator.packing(key))
            predicted = time.perf_counter()
            entry = None
            candidates, estimates = 0, len(sizes) * self.info.num_blocks
            if earlier is not None:
                entry = entries.judge(earlier, forecasts, situation, terms)
                candidates = estimates
            hit = entry is not None
            if entry is None:
                entry, weighed = entries.make(key, forecasts, situation, terms, self._choose)
                candidates += weighed
                if not self._weighed and entry.plan.num_recomputed == len(self._candidates) > 0:
                    self._weighed = True
                    profile = forecasts[0].profile
                    warn_if_useless(profile, entry.plan, self.info, situation, key)
            known.plans[key] = entry
            work = Work(lookups=1, estimates=estimates, candidates=candidates)
        if below and not entry.plan.keeps_all:
            # Planned as for the smallest size seen, it would recompute: worth a sample.
            return self._shelter(size, situation, known, reserve, started, work)
        step_bytes = entry.step_bytes_at(size, step)
        resident = situation.resident_bytes
        peak = resident + self._inflated(step_bytes)
        held = entry.segments_at(size, lambda s, plan: self._packed(s, plan, known, estimator))
        need = Need(peak + entry.packed.waste_bytes, held, entry.packed.waste_bytes)
        self._pending = _Pending(entry.plan, step_bytes, need, exact_size=not below)
        # Only a plan that recomputes all it can may exceed the budget; the rounded-up size's peak
        # is no reason to refuse this one.
        self._check_feasible(size, peak, entry.packed, situation, known, reserve)
        decision = Decision(
            entry.plan,
            "responsive",
            cache_hit=hit,
            predicted_peak_bytes=resident + step_bytes,
        )
        return self._decide(decision, size, need, situation, reserve, started, predicted, work)

    def _step_of(self, size: Size) -> int:
        """Return to multiples of what a size's lengths are rounded up."""
        return self._cache_step

    def _forecast(self, size: Size, known: Knowledge, estimator: Estimator) -> Forecast:
        """Return what a step of this size takes, but for what is lost between its tensors."""
        return Forecast(estimator.predict(size))

    def _packed(self, size: Size, plan: Plan, known: Knowledge, estimator: Estimator) -> Packed:
        """Return how a plan's tensors lie in segments at a size."""
        packing = estimator.packing(size)
        return Packed() if packing is None else packing.pack(sorted(plan.recomputed))

    def _choose(
        self,
        forecast: Forecast,
        info: ModelInfo,
        situation: Situation,
        allowed_bytes: int,
        candidates: Sequence[int],
    ) -> Scheduled:
        return schedule(forecast, info, situation, allowed_bytes, candidates)

    def _authors(
        self, size: Size, situation: Situation, known: Knowledge, reserve: Reserve, started: float
    ) -> Decision:
        """Decide as the released code does: plans are cached by size alone and never revised."""
        key = round_up(size, self._cache_step)
        entry = known.plans.get(key)
        hit = entry is not None
        predicted = None
        work = _LOOKUP
        if entry is None:
            estimator = known.estimator(situation.grads_resident, self.info)
            activation = estimator.predict(key).activation
            whole = known.whole_model.predict(key[1])
            predicted = time.perf_counter()
            resident = situation.resident_bytes
            allowed = reserve.budget_bytes - reserve.margin_bytes - resident
            plan, step_bytes = authors.schedule(whole, activation, allowed, self._candidates)
            ready = situation.optimizer_ready
            needed = resident + step_bytes + reserve.margin_bytes
            entry = Entry(
                plan,
                key,
                resident,
                situation.grads_resident,
                ready,
                needed,
                step_bytes,
                packed=Packed(),
                ends=(step_bytes, step_bytes),
            )
            known.plans[key] = entry
            candidates = len(self._candidates) + plan.num_recomputed
            work = Work(lookups=1, estimates=len(activation), candidates=candidates)
        peak = situation.resident_bytes + entry.step_bytes
        decision = Decision(entry.plan, "responsive", cache_hit=hit, predicted_peak_bytes=peak)
        need = _need(peak, entry.packed)
        return self._decide(decision, size, need, situation, reserve, started, predicted, work)

    def _decide(
        self,
        decision: Decision,
        size: Size,
        need: Need,
        situation: Situation,
        reserve: Reserve,
        started: float,
        predicted: float | None,
        work: Work,
    ) -> Decision:
        """Complete a decision with the time it took and whether to hand cached memory back.

        Args:
            decision: The decision so far.
            size: The step's size.
            need: What it was planned to need of the allocator.
            situation: The state at the start of the step.
            reserve: What the budget and the margin are.
            started: When deciding began.
            predicted: When estimating ended, if there was any.
            work: What deciding took, counted.
        """
        sure = not (self._measures_beside and decision.collect)
        release = self.variant == "printed" and reserve.needs_release(
            size, need, situation, sure=sure
        )
        if release:
            reserve.released()
        now = time.perf_counter()
        estimating = 0.0 if predicted is None else predicted - started
        return Decision(
            decision.plan,
            decision.phase,
            decision.collect,
            decision.predicted_peak_bytes,
            decision.cache_hit,
            estimating,
            now - started - estimating,
            release,
            work,
        )

    def _warn_blind(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"mimose could not measure any of the first {MOST_SHELTERED} steps and recomputes "
                "every block from now on: each forward pass must be followed by its backward pass "
                "before the next one, the model must not run inside a checkpoint, and no hook may "
                "keep what is computed inside a block",
                UserWarning,
                stacklevel=2,
            )

    def _check_feasible(
        self,
        size: Size,
        peak: int,
        packed: Packed,
        situation: Situation,
        known: Knowledge,
        reserve: Reserve,
    ) -> None:
        """Refuse a step that cannot fit, and name a budget and a length that would do."""
        if peak <= reserve.budget_bytes:
            return
        estimator = known.estimator(situation.grads_resident, self.info)
        check_feasible(
            size,
            peak,
            self._least(peak, packed, reserve),
            reserve.budget_bytes,
            self._longest(size, situation, estimator, reserve),
            resident_bytes=situation.resident_bytes,
            given_bytes=reserve.given_bytes,
        )

    def _least(self, peak: int, packed: Packed, reserve: Reserve) -> int:
        """Return the least budget with room for a peak, what is lost to packing and the margin.

        The largest tensor counts once more: what is free for it may lie in smaller pieces.
        """
        large = () if packed.segments is None else packed.segments.large
        pieces = large[0][0] if large and not self.info.expandable_segments else 0
        need = peak + packed.waste_bytes + pieces
        # The margin starts larger under a larger budget: an eighth of it at most.
        enough = reserve.round_up(need + need // 7)
        larger = self._new_reserve(replace(self.info, budget_bytes=enough))
        return reserve.round_up(need + max(reserve.margin_bytes, larger.margin_bytes))

    def _refused(
        self,
        size: Size,
        failed: Size,
        situation: Situation,
        known: Knowledge | None,
        reserve: Reserve,
    ) -> Infeasible:
        """Return what to raise for a size that would run out of memory as ``failed`` did."""
        least, longest = reserve.given_bytes + 1, None
        estimator = self._telling(situation, known)
        if estimator is not None:
            plan = recompute_all(self.info)
            step_bytes, packed = self._sheltered_bytes(size, situation, estimator, plan)
            peak = situation.resident_bytes + self._inflated(step_bytes)
            least = max(least, self._least(peak, packed, reserve))
            longest = self._longest(size, situation, estimator, reserve)
        least = reserve.round_up(least)
        return refuse_again(size, failed, reserve.given_bytes, least, longest)

    def _terms(self, reserve: Reserve) -> entries.Terms:
        return entries.Terms(
            self.info,
            self._candidates,
            reserve.budget_bytes,
            reserve.margin_bytes,
            self._drift.inflation,
        )

    def _inflated(self, step_bytes: int) -> int:
        return int(step_bytes * (1.0 + self._drift.inflation))
