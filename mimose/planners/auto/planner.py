"""Auto: what each step makes again is chosen value by value, from what its blocks save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.auto import choosing
from mimose.planners.auto.bound import bound_of
from mimose.planners.auto.choosing import InsideForecast
from mimose.planners.auto.estimator import CarefulEstimator
from mimose.planners.auto.fits import Insides
from mimose.planners.auto.knowledge import InsideKnowledge
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.knowledge import Knowledge
from mimose.planners.mimose.planner import Mimose
from mimose.planners.mimose.reserve import Reserve
from mimose.planners.mimose.scheduler import Scheduled
from mimose.planners.mimose.storages import Packed
from mimose.planners.options import switch
from mimose.records import Decision, ModelInfo, Situation, Size
from mimose.solvers.packing import LARGE_SEGMENT

_ENOUGH_SHAPES = 3
_MOST_SHELTERED = 10
_SHORT = 40
"""Lengths of up to so many times what they are rounded up to each have a plan of their own."""
_SURE = 0.9
"""Share of the budget that a step may take by a bound alone."""


class Auto(Mimose):
    """Input-aware choice among all that blocks save for backward.

    Learns, caches, leaves a margin and notices drift as :class:`Mimose` does. But where that
    recomputes whole blocks, this one chooses for each block from a menu: keep all, drop a set of
    values and make them again by their own operators, or recompute the block. Of all choices that
    fit, by the exact peak model, it takes one of least time, and never one that is predicted to be
    slower than Mimose's.

    Args:
        sheltered: Number of sheltered iterations, 1 to 30. By default they end as soon as three
            lengths have been seen (a quadratic takes three), or if there is only one; after ten at
            the latest.
        margin: As for :class:`Mimose`.
        cache_step: As for :class:`Mimose`, for lengths of more than forty times as much.
        offload: Whether values may go to the host's memory, as far as copies are done by the time
            that the next block has run: ``on`` or ``off``.

    Attributes:
        offload: The same.

    Raises:
        ValueError: If an option is not one of these.
    """

    name: ClassVar[str] = "auto"
    rescued: ClassVar[bool] = True
    _knowledge: ClassVar[type[Knowledge]] = InsideKnowledge
    _measures_beside: ClassVar[bool] = True

    def __init__(
        self,
        *,
        sheltered: int | str | None = None,
        margin: int | str | None = None,
        cache_step: int | str = 5,
        offload: bool | str = False,
    ) -> None:
        self.offload = switch("offload", offload)
        most = _MOST_SHELTERED if sheltered is None else sheltered
        super().__init__(sheltered=most, margin=margin, cache_step=cache_step)
        self._ends_early = sheltered is None

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return what to make again in a step of this size.

        Raises:
            Infeasible: As :meth:`Mimose.plan`.
        """
        decision = super().plan(size, situation)
        known = self._known.get(situation.signature)
        work = known.tally.take() if isinstance(known, InsideKnowledge) else None
        if work is not None:
            decision = replace(decision, work=decision.work + work)
        return replace(decision, trace=True) if decision.collect else decision

    def _check_feasible(
        self,
        size: Size,
        peak: int,
        packed: Packed,
        situation: Situation,
        known: Knowledge,
        reserve: Reserve,
    ) -> None:
        most = self._fitted.most_bytes(size, situation)
        if most is None or situation.resident_bytes + most > reserve.budget_bytes:
            super()._check_feasible(size, peak, packed, situation, known, reserve)

    def forecast(self, size: Size, situation: Situation) -> InsideForecast | None:
        """Return what a step of a size is predicted to take, the insides of its blocks included.

        None while too little has been seen. What is lost between tensors is left out.
        """
        known = self._known.get(situation.signature)
        if known is None or not known.has_samples or not self._learned(known, situation):
            return None
        estimator = known.estimator(situation.grads_resident, self.info)
        return self._forecast(estimator.clip(size), known, estimator)

    def _learned(self, known: Knowledge, situation: Situation) -> bool:
        if super()._learned(known, situation):
            return True
        if not self._ends_early or known.iterations < _ENOUGH_SHAPES:
            return False
        estimator = known.estimator(situation.grads_resident, self.info)
        return estimator.num_shapes == 1 or (
            estimator.num_shapes >= _ENOUGH_SHAPES and estimator.determined
        )

    def _with_less(
        self, size: Size, situation: Situation, estimator: Estimator, reserve: Reserve
    ) -> Scheduled | None:
        """Return a plan for a sheltered step that keeps what surely fits, by the samples so far."""
        assert isinstance(estimator, CarefulEstimator), "knowledge of the inside has no others"
        known = self._known[situation.signature]

        def forecast_at(size: Size) -> InsideForecast:
            return self._forecast(size, known, estimator)

        resident = situation.resident_bytes
        room = reserve.budget_bytes - reserve.margin_bytes - resident
        if estimator.reaches(size):
            bound = forecast_at(size)
            room -= estimator.doubt(size)
        else:
            bound = bound_of(size, estimator, forecast_at)
            room -= int((1.0 - _SURE) * reserve.budget_bytes)
        # The first tensor beyond a mebibyte takes a segment, which no smaller one may lie in; one
        # that is there for a moment only is in no sample's list.
        room -= LARGE_SEGMENT
        bound = replace(bound, packing=estimator.packing(size))
        allowed = resident + int(room / (1.0 + self._drift.inflation))
        # What is sent to the host is gone only when it has been copied, which is measured as there.
        info = replace(self.info, copy_bandwidth=None)
        found = choosing.choose(bound, info, situation, allowed, self._candidates)
        fits = found.peak.bytes + found.packed.waste_bytes <= allowed
        return found if fits else None

    def _step_of(self, size: Size) -> int:
        # A batch of short sequences grows by much from one length to the next, and has few of them.
        short = len(size) == 2 and size[1] <= _SHORT * self._cache_step
        return 1 if short else self._cache_step

    def _forecast(self, size: Size, known: Knowledge, estimator: Estimator) -> InsideForecast:
        assert isinstance(known, InsideKnowledge), "it was made here"
        inside = Insides(lambda: known.insides(size, estimator.grads_resident))
        profile = estimator.predict(size)
        if not any(profile.forward_seconds):
            # One step was seen, whose times are warm-up: all there is to tell what is cheap.
            seconds = (
                inside[b].seconds.sum() if b in inside else 0.0 for b in range(len(profile.level))
            )
            profile = replace(profile, forward_seconds=tuple(map(float, seconds)))
        return InsideForecast(profile, inside=inside)

    def _packed(self, size: Size, plan: Plan, known: Knowledge, estimator: Estimator) -> Packed:
        forecast = self._forecast(size, known, estimator)
        return replace(forecast, packing=estimator.packing(size)).packed(plan)

    def _choose(
        self,
        forecast: Forecast,
        info: ModelInfo,
        situation: Situation,
        allowed_bytes: int,
        candidates: Sequence[int],
    ) -> Scheduled:
        return choosing.choose(forecast, info, situation, allowed_bytes, candidates)
