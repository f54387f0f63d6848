"""Mimose's knowledge of a model, and what is inside its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from mimose.costs import grown_gradients
from mimose.menu import BlockGraph
from mimose.plan import Plan
from mimose.planners.auto.estimator import CarefulEstimator
from mimose.planners.auto.fits import Fit, Inside
from mimose.planners.auto.traces import Traces
from mimose.planners.mimose.collector import Sample
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.knowledge import ENOUGH_SHAPES, Knowledge
from mimose.planners.mimose.storages import Packed
from mimose.records import NO_WORK, ModelInfo, Size, StepRecord, Work

if TYPE_CHECKING:
    from typing_extensions import Self


class Whole(NamedTuple):
    """What a step of one size takes if it keeps all.

    Attributes:
        plan: The plan to keep all.
        step_bytes: Predicted peak above the resident bytes.
        packed: How its tensors lie in segments.
        doubt: By how many bytes that may be off.
    """

    plan: Plan
    step_bytes: int
    packed: Packed
    doubt: int


class InsideKnowledge(Knowledge):
    """Knows blocks from the inside, too.

    Attributes:
        wholes: What steps far from the samples take if they keep all, by size, whether gradients
            were resident and whether the optimizer's state was there.
    """

    _fitted_by: ClassVar[type[Estimator]] = CarefulEstimator

    def __init__(self, block_names: tuple[str, ...], *, casts: bool = True) -> None:
        super().__init__(block_names, casts=casts)
        self._traces = Traces()
        self._fits: list[Fit] | None = None
        self.wholes: dict[tuple[Size, bool, bool], Whole] = {}
        self._graphs: set[BlockGraph] = set()

    def learn(self, record: StepRecord, info: ModelInfo) -> int:
        """Take what a finished step shows, of the inside of its blocks, too.

        Returns:
            How many figures were taken as samples.
        """
        new = 0
        if record.collected is not None:
            traced = record.collected.traced
            resident = record.situation.grads_resident
            grown = None if resident else grown_gradients(info, len(self.block_names))
            warm_up = self.iterations == 0
            new = self._traces.learn(traced, record.size, warm_up=warm_up, grown=grown)
        learned = new + super().learn(record, info)
        if new:
            # Times of blocks, too: the first ones may be of a size whose bytes were known.
            self._fits = None
            self.forget_fits()
        return learned

    def fits(self) -> list[Fit]:
        """Return what is known of the insides of blocks, equal ones together."""
        if self._fits is None:
            alike = self._traces.alike()
            self._fits = [Fit(a, new=a.graph not in self._graphs) for a in alike]
            self._graphs.update(a.graph for a in alike)
        return self._fits

    def done(self) -> Work:
        """Return the work of fitting since this was last asked."""
        return sum((fit.done() for fit in self._fits or ()), NO_WORK)

    def insides(self, size: Size, grads_resident: bool) -> dict[int, Inside]:
        """Return what is inside blocks at a size, in a step of that gradient state."""
        found: dict[int, Inside] = {}
        for fit in self.fits():
            found.update(dict.fromkeys(fit.blocks, fit.at(size, grads_resident)))
        return found

    def is_sure_of(self, grads_resident: bool) -> bool:
        """Whether steps of a gradient state have shown lengths enough without the others.

        What those show is converted, to the safe side, which far from the samples is a lot.
        """
        own = {s.size[1:] for s in self._store if s.grads_resident == grads_resident}
        return len(own) >= ENOUGH_SHAPES

    def _suffice(self, same: list[Sample], all_samples: list[Sample]) -> bool:
        """Whether samples of one gradient state are enough without the others.

        Where there are few, one that is left out may have been the largest or the smallest.
        """
        return super()._suffice(same, all_samples) and _range(same) == _range(all_samples)

    def _fit_anew(self) -> None:
        """Drop the fits and the plans made with them: there may be better ones now."""
        self.forget_fits()

    def forget_fits(self) -> None:
        """Drop what was derived from the samples."""
        super().forget_fits()
        self.wholes.clear()

    def to_json(self) -> dict[str, Any]:
        """Return what was learned, as plain data."""
        return super().to_json() | {"traces": self._traces.to_json()}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the knowledge that :meth:`to_json` wrote."""
        self = super().from_json(data)
        self._traces = Traces.from_json(data["traces"])
        return self


def _range(samples: list[Sample]) -> tuple[Size, Size]:
    extents = list(zip(*(s.size for s in samples)))
    return tuple(map(min, extents)), tuple(map(max, extents))
