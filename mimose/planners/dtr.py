"""DTR: dynamic tensor rematerialization (Kirisame et al., ICLR 2021, arXiv 2006.09616)."""

from __future__ import annotations

from typing import ClassVar

from mimose.eviction import HEURISTICS
from mimose.planners.evicting import Evicting, policy
from mimose.planners.options import one_of


class DTR(Evicting):
    """Evicts single tensors when memory runs short and recomputes them when they are asked for.

    The defaults are those of the original's runs in the paper: its prototype's heuristic, sampling
    and the filter for small tensors (github.com/buaa-hipo/mimose-transformers), and a budget of its
    own below the one that is enforced: 7 to 10 GB less 1.5 to 3 GB there.

    Args:
        heuristic: What to evict first: ``h_DTR``, ``h_DTR_eq`` (the prototype's), ``h_DTR_local``,
            ``lru``, ``largest``, ``msps`` or ``random``.
        sampling: Whether to look at about ``2 sqrt(n)`` of ``n`` candidates only: a bool, ``on`` or
            ``off``, as are the other switches.
        ignore_small: Whether storages of less than 1 % of the mean size stay.
        trigger: ``threshold``, before an operator whose output would not fit (as the original's
            simulator); ``after``, once an operator has gone over the budget (as its prototype); or
            ``oom``, once an allocation has failed.
        reserve: Part of the budget that is left for fragmentation: bytes, or a share such as
            ``"25%"``.
        synchronous: Whether to wait for the device after each operator, as the original does to
            time it.
        thrash_limit: Give up a step that takes more than so many times as long as the model's own
            operators; None (``none``) never does.
    """

    name: ClassVar[str] = "dtr"

    def __init__(
        self,
        *,
        heuristic: str = "h_DTR_eq",
        sampling: bool | str = True,
        ignore_small: bool | str = True,
        trigger: str = "threshold",
        reserve: int | float | str = "25%",
        synchronous: bool | str = True,
        thrash_limit: float | str | None = 10.0,
    ) -> None:
        chosen = policy(
            "dtr",
            sampling=sampling,
            ignore_small=ignore_small,
            trigger=trigger,
            synchronous=synchronous,
            thrash_limit=thrash_limit,
            heuristic=one_of("heuristic", heuristic, HEURISTICS),
        )
        super().__init__(chosen, reserve)
