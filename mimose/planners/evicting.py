"""What DTR and DELTA share: one policy for every step, and the options that set it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from mimose.eviction import TRIGGERS, Eviction
from mimose.planners.constant import Constant
from mimose.planners.options import number, one_of, share_or_bytes, switch
from mimose.records import Decision, ModelInfo, Situation, Size
from mimose.units import format_bytes


class Evicting(Constant):
    """Decides on one :class:`mimose.eviction.Eviction` for every size.

    A step of theirs that runs out of memory is not repeated with blocks recomputed: like the
    baseline's, that is the result. They do without blocks.
    """

    rescued: ClassVar[bool] = False
    needs_blocks: ClassVar[bool] = False

    def __init__(self, policy: Eviction, reserve: int | float | str) -> None:
        super().__init__()
        self._policy = policy
        self._reserve = share_or_bytes("reserve", reserve)

    def bind(self, info: ModelInfo) -> None:
        """Take note of the model and its budget.

        Raises:
            ValueError: If the reserve leaves nothing of the budget.
        """
        budget = info.budget_bytes
        reserve = 0 if budget is None else self._reserve(budget)
        if budget is not None and reserve >= budget:
            raise ValueError(
                f"a reserve of {format_bytes(reserve)} leaves nothing of a budget of "
                f"{format_bytes(budget)}: give a smaller reserve or a larger budget"
            )
        super().bind(info)
        self._policy = replace(self._policy, reserve_bytes=reserve)

    def plan(self, size: Size, situation: Situation) -> Decision:
        """Return the policy; without a budget it evicts nothing."""
        return Decision(self._policy)


def policy(
    system: str,
    *,
    sampling: bool | str,
    ignore_small: bool | str,
    trigger: str,
    synchronous: bool | str,
    thrash_limit: float | str | None,
    **own: object,
) -> Eviction:
    """Return the policy that a planner's options, which may be text, describe.

    Raises:
        ValueError: If one is none of its values.
    """
    limit = thrash_limit
    if limit is not None and str(limit).strip().lower() != "none":
        limit = number("thrash_limit", limit, 1.0, above=True)
    else:
        limit = None
    return Eviction(
        system=system,  # type: ignore[arg-type]  # it checks these values itself
        sampling=switch("sampling", sampling),
        ignore_small=switch("ignore_small", ignore_small),
        trigger=one_of("trigger", trigger, TRIGGERS),  # type: ignore[arg-type]
        synchronous=switch("synchronous", synchronous),
        thrash_limit=limit,
        **own,  # type: ignore[arg-type]
    )
