"""Mimose's knowledge of a model, and what is inside its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mimose.costs import grown_gradients
from mimose.planners.auto.estimator import CarefulEstimator
from mimose.planners.auto.fits import Fit, Inside, Tally
from mimose.planners.auto.traces import Traces
from mimose.planners.mimose.collector import Sample
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.knowledge import Knowledge
from mimose.records import ModelInfo, Size, StepRecord

if TYPE_CHECKING:
    from typing_extensions import Self


class InsideKnowledge(Knowledge):
    """Knows blocks from the inside, too.

    Attributes:
        tally: Counts what fitting to that takes.
    """

    _fitted_by: ClassVar[type[Estimator]] = CarefulEstimator

    def __init__(self, block_names: tuple[str, ...], *, casts: bool = True) -> None:
        super().__init__(block_names, casts=casts)
        self._traces = Traces()
        self._fits: list[Fit] | None = None
        self._earlier: dict[tuple[int, ...], Fit] = {}
        self.tally = Tally()

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
            self._fits = [
                Fit(alike, self._earlier.get(alike.blocks), self.tally)
                for alike in self._traces.alike()
            ]
            self._earlier = {fit.blocks: fit for fit in self._fits}
        return self._fits

    def insides(self, size: Size, grads_resident: bool) -> dict[int, Inside]:
        """Return what is inside blocks at a size, in a step of that gradient state."""
        found: dict[int, Inside] = {}
        for fit in self.fits():
            found.update(dict.fromkeys(fit.blocks, fit.at(size, grads_resident)))
        return found

    def _suffice(self, same: list[Sample], all_samples: list[Sample]) -> bool:
        """Whether samples of one gradient state are enough without the others.

        Where there are few, one that is left out may have been the largest or the smallest.
        """
        return super()._suffice(same, all_samples) and _range(same) == _range(all_samples)

    def _fit_anew(self) -> None:
        """Drop the fits and the plans made with them: there may be better ones now."""
        self.forget_fits()

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
