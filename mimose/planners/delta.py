"""DELTA: dynamically evicts tensors and recomputes or swaps them (arXiv 2203.15980; TACO 2024)."""

from __future__ import annotations

from typing import ClassVar

from mimose.eviction import ACTIONS, FILTERS
from mimose.planners.evicting import Evicting, policy
from mimose.planners.options import one_of, switch


class Delta(Evicting):
    """Evicts single tensors, and recomputes them or swaps them to the host: what costs less.

    Args:
        actions: What may be done with a tensor: ``recompute``, ``swap`` or ``both``.
        filter: How tensors are chosen: ``base`` (bytes saved against bytes moved and staleness),
            ``lru`` (the one not used for longest) or ``greedy`` (the largest).
        prefetch: Whether swapped tensors are brought back ahead of their use.
        sampling: As for :class:`mimose.planners.dtr.DTR`, as are the others.
        ignore_small: See there.
        trigger: See there.
        reserve: See there. By default 10 %: the original has no such option, but what is enforced
            here is what the allocator reserves, pieces that cannot be used included.
        synchronous: See there. Off by default: copies are to overlap with operators.
        thrash_limit: See there.
    """

    name: ClassVar[str] = "delta"

    def __init__(
        self,
        *,
        actions: str = "both",
        filter: str = "base",
        prefetch: bool | str = True,
        sampling: bool | str = True,
        ignore_small: bool | str = True,
        trigger: str = "threshold",
        reserve: int | float | str = "10%",
        synchronous: bool | str = False,
        thrash_limit: float | str | None = 10.0,
    ) -> None:
        chosen = policy(
            "delta",
            sampling=sampling,
            ignore_small=ignore_small,
            trigger=trigger,
            synchronous=synchronous,
            thrash_limit=thrash_limit,
            actions=one_of("actions", actions, ACTIONS),
            filter=one_of("filter", filter, FILTERS),
            prefetch=switch("prefetch", prefetch) and actions != "recompute",
        )
        super().__init__(chosen, reserve)
