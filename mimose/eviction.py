"""Plans that name a policy instead of blocks: tensors are evicted while the step runs.

DTR (Kirisame et al., ICLR 2021, arXiv 2006.09616) and DELTA (arXiv 2203.15980) decide within the
step, tensor by tensor. What a planner decides beforehand is how they do so: an :class:`Eviction`.
What came of it in a step are :class:`EvictionFigures`.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args

from mimose.units import format_bytes

System = Literal["dtr", "delta"]
Heuristic = Literal["h_DTR", "h_DTR_eq", "h_DTR_local", "lru", "largest", "msps", "random"]
Trigger = Literal["threshold", "after", "oom"]
Actions = Literal["recompute", "swap", "both"]
Filter = Literal["base", "lru", "greedy"]

SYSTEMS: tuple[str, ...] = get_args(System)
HEURISTICS: tuple[str, ...] = get_args(Heuristic)
TRIGGERS: tuple[str, ...] = get_args(Trigger)
ACTIONS: tuple[str, ...] = get_args(Actions)
FILTERS: tuple[str, ...] = get_args(Filter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Eviction:
    """How a step's tensors are evicted; what tensor-level planners decide on.

    Attributes:
        system: ``dtr``, which recomputes what it evicted, or ``delta``, which may swap it, too.
        heuristic: What DTR evicts first; DELTA has its ``filter`` instead.
        sampling: Look at about ``2 sqrt(n)`` of ``n`` candidates only.
        ignore_small: Leave storages of less than 1 % of the mean size alone.
        trigger: When to evict: before an operator whose output would not fit (``threshold``),
            ``after`` one that went over the budget, or once an allocation has failed (``oom``).
        reserve_bytes: The policy's own budget is the budget less this, which is left for
            fragmentation and for what the policy does not see.
        synchronous: Wait for the device after each operator, to time it, as the original does.
        thrash_limit: Give a step up that takes more than this times as long as the model's own
            operators; None never does.
        actions: What DELTA may do with a storage that it releases.
        filter: How DELTA chooses which.
        prefetch: Whether DELTA brings swapped storages back ahead of their use.

    Raises:
        ValueError: If a field is none of its values.
    """

    system: System
    heuristic: Heuristic = "h_DTR_eq"
    sampling: bool = True
    ignore_small: bool = True
    trigger: Trigger = "threshold"
    reserve_bytes: int = 0
    synchronous: bool = True
    thrash_limit: float | None = 10.0
    actions: Actions = "recompute"
    filter: Filter = "base"
    prefetch: bool = False

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(_no_choice(name, getattr(self, name)))
        for name in ("sampling", "ignore_small", "synchronous", "prefetch"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"{name} of an eviction is true or false, not {getattr(self, name)!r}"
                )
        reserve = self.reserve_bytes
        if isinstance(reserve, bool) or not isinstance(reserve, int) or reserve < 0:
            raise ValueError(
                f"reserve_bytes of an eviction is a whole number, 0 or more, not {reserve!r}"
            )
        limit = self.thrash_limit
        if limit is not None and not (_is_number(limit) and 1 < limit < math.inf):
            raise ValueError(f"thrash_limit of an eviction is a number above 1, not {limit!r}")
        if self.system == "dtr" and (self.actions != "recompute" or self.prefetch):
            raise ValueError("dtr recomputes what it evicts: swapping and prefetching are delta's")

    @property
    def recomputed(self) -> frozenset[int]:
        """None: what is recomputed are operators, and which ones only the step shows."""
        return frozenset()

    @property
    def num_recomputed(self) -> int:
        """0: no block is chosen to be recomputed."""
        return 0

    def own_budget(self, budget_bytes: int | None) -> int | None:
        """Return what the policy keeps to under a budget, in bytes; None without one."""
        return None if budget_bytes is None else budget_bytes - self.reserve_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the eviction as plain data."""
        data = asdict(self)
        return {"eviction": data.pop("system"), **data}

    @classmethod
    def from_json(cls, data: Any) -> Eviction:
        """Return the eviction that :meth:`to_json` wrote.

        Raises:
            ValueError: If ``data`` is not such an eviction.
        """
        if not isinstance(data, dict) or "eviction" not in data:
            raise ValueError('an eviction in JSON is {"eviction": "dtr", "heuristic": ..., ...}')
        given = dict(data)
        unknown = given.keys() - {"eviction"} - {field.name for field in fields(cls)}
        if unknown or "system" in given:
            raise ValueError(f"an eviction has no field {min(unknown | ({'system'} & set(given)))}")
        return cls(system=given.pop("eviction"), **given)

    def __str__(self) -> str:
        if self.system == "dtr":
            parts = [f"evict {self.heuristic}"]
        else:
            what = {"recompute": "recompute", "swap": "swap", "both": "recompute or swap"}
            parts = [f"evict by filter {self.filter}", what[self.actions]]
            parts += ["prefetch"] if self.prefetch else []
        parts += ["sampling"] if self.sampling else []
        parts += ["ignoring small"] if self.ignore_small else []
        parts += [_TRIGGER_WORDS[self.trigger]]
        parts += ["synchronous"] if self.synchronous else []
        parts += [f"reserve {format_bytes(self.reserve_bytes)}"] if self.reserve_bytes else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvictionFigures:
    """What a tensor-level policy did in one step. Seconds do not overlap.

    Attributes:
        num_evictions: Storages evicted, whatever became of them.
        num_dropped: Of these, those that are computed again if asked for, not copied back.
        num_rematerializations: Operators run again.
        num_swaps_out: Storages copied to the host.
        num_swaps_in: Storages brought back.
        swapped_bytes: Bytes copied, both ways.
        num_operators: Operators of the model's own.
        operator_seconds: Their time.
        recompute_seconds: Time of those run again.
        search_seconds: Time spent choosing what to evict.
        maintenance_seconds: Time spent keeping costs and access times up to date.
        swap_wait_seconds: Time that the model waited for copies.
        overhead_seconds: Time spent on seeing each operator, which belongs to none of the others.
    """

    num_evictions: int = 0
    num_dropped: int = 0
    num_rematerializations: int = 0
    num_swaps_out: int = 0
    num_swaps_in: int = 0
    swapped_bytes: int = 0
    num_operators: int = 0
    operator_seconds: float = 0.0
    recompute_seconds: float = 0.0
    search_seconds: float = 0.0
    maintenance_seconds: float = 0.0
    swap_wait_seconds: float = 0.0
    overhead_seconds: float = 0.0

    def extra(self) -> dict[str, float]:
        """Return the figures by the names that records and tables have for them."""
        return {column: getattr(self, name) for column, name in COLUMNS.items()}


COLUMNS: dict[str, str] = {
    "num_evictions": "num_evictions",
    "num_rematerializations": "num_rematerializations",
    "swapped_bytes": "swapped_bytes",
    "recompute_seconds": "recompute_seconds",
    "eviction_search_seconds": "search_seconds",
    "eviction_maintenance_seconds": "maintenance_seconds",
    "eviction_overhead_seconds": "overhead_seconds",
    "swap_wait_seconds": "swap_wait_seconds",
}
"""The keys of a record's ``extra``, which are columns of ``steps.parquet``, too."""

_CHOICES: dict[str, tuple[str, ...]] = {
    "system": SYSTEMS,
    "heuristic": HEURISTICS,
    "trigger": TRIGGERS,
    "actions": ACTIONS,
    "filter": FILTERS,
}

_TRIGGER_WORDS = {"threshold": "threshold", "after": "after", "oom": "on out of memory"}


def _no_choice(name: str, value: object) -> str:
    allowed = _CHOICES[name]
    return f"{name} of an eviction is {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}"


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
