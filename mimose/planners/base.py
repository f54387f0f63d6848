"""What a planner is. One file a system; ``mimose.planners.PLANNERS`` names them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from mimose.records import Decision, ModelInfo, Situation, Size, StepRecord, Work


class Planner(Protocol):
    """Decides, before each step, what the step recomputes.

    The loop is the same for every planner: ``bind`` once and again whenever the facts about the
    model change, then for each step ``plan``, carry the plan out, ``observe``. Planners hold no
    tensors and import no torch.

    Attributes:
        name: The name on the command line.
        rescued: Whether a step that ran out of memory is undone and run again with every block
            recomputed. False for the baseline: its out-of-memory is the result.

    A planner with an attribute ``needs_blocks`` that is False is taken for models without blocks,
    too. One with a method ``ran_out(record, measuring=...)`` is told of steps for which the budget
    had no room in their forward or backward pass, which :meth:`observe` never sees; ``measuring``
    says whether the collector's own forward passes may have been what was too much.
    """

    name: ClassVar[str]
    rescued: ClassVar[bool]

    def bind(self, info: ModelInfo) -> None:
        """Take the facts about the model; may be called again with better ones."""

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return what to do for a mini-batch of ``size``.

        Raises:
            Infeasible: If no allowed plan fits the budget.
        """

    def observe(self, record: StepRecord) -> Work | None:
        """Learn from a finished step; return the work that this took, None for none to speak of."""

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, as plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned."""
