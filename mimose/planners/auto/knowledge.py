"""Mimose's knowledge of a model, and what is inside its blocks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mimose.planners.auto.fits import Fit
from mimose.planners.auto.traces import Traces
from mimose.planners.mimose.knowledge import Knowledge
from mimose.records import ModelInfo, StepRecord

if TYPE_CHECKING:
    from typing_extensions import Self


class InsideKnowledge(Knowledge):
    """Knows blocks from the inside, too."""

    def __init__(self, block_names: tuple[str, ...], *, casts: bool = True) -> None:
        super().__init__(block_names, casts=casts)
        self._traces = Traces()
        self._fits: list[Fit] | None = None

    def learn(self, record: StepRecord, info: ModelInfo) -> int:
        """Take what a finished step shows, of the inside of its blocks, too.

        Returns:
            How many figures were taken as samples.
        """
        learned = 0
        if record.collected is not None and record.collected.traced:
            learned = self._traces.learn(
                record.collected.traced, record.size, warm_up=self.iterations == 0
            )
            if learned:
                self._fits = None
                self.plans.clear()
        return learned + super().learn(record, info)

    def fits(self) -> list[Fit]:
        """Return what is known of the insides of blocks, equal ones together."""
        if self._fits is None:
            self._fits = [Fit(alike) for alike in self._traces.alike()]
        return self._fits

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
