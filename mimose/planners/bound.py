"""What every planner here begins with: the facts about the model that it is bound to."""

from __future__ import annotations

from mimose.records import ModelInfo


class Bound:
    """A planner that remembers the model's facts."""

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
