"""What every planner here begins with: the facts about the model that it is bound to."""

from __future__ import annotations

from mimose.plan import Plan
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


def recompute_all(info: ModelInfo) -> Plan:
    """Return the plan that recomputes each block that may be and that frees anything."""
    return Plan.recompute_each(info.num_blocks, recomputable(info))


def recomputable(info: ModelInfo) -> list[int]:
    """Return the blocks that may be recomputed and save something."""
    return [b for b in range(info.num_blocks) if b not in info.free and b not in info.keep_only]
