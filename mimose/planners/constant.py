"""What planners share whose decision does not depend on what they observe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mimose.planners.bound import Bound
from mimose.records import StepRecord


class Constant(Bound):
    """A planner that learns nothing: it remembers the model's facts and ignores the steps."""

    def observe(self, record: StepRecord) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return an empty dictionary: nothing was learned."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take nothing back."""
