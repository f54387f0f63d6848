"""What planners share whose decision does not depend on what they observe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mimose.records import ModelInfo, StepRecord


class Constant:
    """A planner that learns nothing: it remembers the model's facts and ignores the steps."""

    def __init__(self) -> None:
        self._info: ModelInfo | None = None

    @property
    def info(self) -> ModelInfo:
        """The model's facts.

        Raises:
            RuntimeError: If :meth:`bind` has not been called yet.
        """
        if self._info is None:
            raise RuntimeError("a planner must be bound to a model before it plans: call bind()")
        return self._info

    def bind(self, info: ModelInfo) -> None:
        """Take the facts about the model."""
        self._info = info

    def observe(self, record: StepRecord) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dictionary: nothing was learned."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing back."""
