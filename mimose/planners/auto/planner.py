"""Auto: what each step makes again is chosen value by value, from what its blocks save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.auto import choosing
from mimose.planners.auto.bound import bound_of
from mimose.planners.auto.choosing import InsideForecast
from mimose.planners.auto.knowledge import InsideKnowledge
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.knowledge import Knowledge
from mimose.planners.mimose.planner import Mimose
from mimose.planners.mimose.reserve import Reserve
from mimose.planners.mimose.scheduler import Scheduled, schedule
from mimose.planners.mimose.storages import Packed
from mimose.planners.options import switch
from mimose.records import Decision, ModelInfo, Situation, Size

_ENOUGH_SHAPES = 3
_MOST_SHELTERED = 10
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
        cache_step: As for :class:`Mimose`.
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
    # Many values of many sizes are kept in part, which costs the allocator more than whole blocks.
    _start_share: ClassVar[float] = 0.08

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
        return replace(decision, trace=True) if decision.collect else decision

    def forecast(self, size: Size, situation: Situation) -> InsideForecast | None:
        """Return what a step of a size is predicted to take, the insides of its blocks included.

        None while too little has been seen. What is lost between tensors is left out.
        """
        known = self._known.get(situation.signature)
        if known is None or not known.has_samples or not self._learned(known, situation):
            return None
        estimator = known.estimator(situation.grads_resident, self.info)
        found = self._forecast(estimator.clip(size), known, estimator)
        return found if isinstance(found, InsideForecast) else None

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
        forecast = Forecast(bound_of(size, estimator), estimator.packing(size))
        resident = situation.resident_bytes
        room = int(_SURE * reserve.budget_bytes) - reserve.margin_bytes - resident
        allowed = resident + int(room / (1.0 + self._drift.inflation))
        found = schedule(forecast, self.info, situation, allowed, self._candidates)
        fits = found.peak.bytes + found.packed.waste_bytes <= allowed
        return found if fits else None

    def _forecast(self, size: Size, known: Knowledge, estimator: Estimator) -> Forecast:
        assert isinstance(known, InsideKnowledge), "it was made here"
        inside = {}
        for fit in known.fits():
            found = fit.at(size)
            inside.update(dict.fromkeys(fit.blocks, found))
        return InsideForecast(estimator.predict(size), inside=inside)

    def _packed(self, size: Size, plan: Plan, known: Knowledge, estimator: Estimator) -> Packed:
        if not plan.remade:
            return super()._packed(size, plan, known, estimator)
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
