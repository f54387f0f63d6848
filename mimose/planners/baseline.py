"""Plain PyTorch: every activation is kept."""

from __future__ import annotations

from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.constant import Constant
from mimose.records import Decision, Situation, Size


class Baseline(Constant):
    """Recomputes nothing, and is not rescued: its out-of-memory is the result."""

    name: ClassVar[str] = "baseline"
    rescued: ClassVar[bool] = False

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return the empty plan."""
        return Decision(Plan.keep_all(self.info.num_blocks))
