"""Full recomputation: every block on its own, at every size."""

from __future__ import annotations

from typing import ClassVar

from mimose.planners.bound import recompute_all
from mimose.planners.constant import Constant
from mimose.records import Decision, Situation, Size


class Full(Constant):
    """Recomputes every block that can be, one region a block."""

    name: ClassVar[str] = "full"
    rescued: ClassVar[bool] = True

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return the plan that recomputes every block but free and keep-only ones."""
        return Decision(recompute_all(self.info))
