"""Full recomputation: every block on its own, at every size."""

from __future__ import annotations

from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.constant import Constant
from mimose.records import Decision, ModelInfo, Situation, Size


class Full(Constant):
    """Recomputes every block that can be, one region a block."""

    name: ClassVar[str] = "full"
    rescued: ClassVar[bool] = True

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return the plan that recomputes every block but free and keep-only ones."""
        return Decision(recompute_all(self.info))


def recompute_all(info: ModelInfo) -> Plan:
    """Return the plan that recomputes each block that may be and that frees anything."""
    return Plan.recompute_each(info.num_blocks, recomputable(info))


def recomputable(info: ModelInfo) -> list[int]:
    """Return the blocks that may be recomputed and save something."""
    return [b for b in range(info.num_blocks) if b not in info.free and b not in info.keep_only]
