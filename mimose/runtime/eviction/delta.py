"""DELTA: which storages are released, and whether each is recomputed or swapped to the host.

DELTA (arXiv 2203.15980; ACM TACO 2024, doi 10.1145/3689338) has a *filter* that chooses what to
release, and a *director* that chooses how. Its texts publish no formulas: these are this project's,
and docs/planners.md gives the reasons. With ``m`` a storage's bytes and ``s`` its staleness:

* Cost of recomputing: that of its own operators and of those missing that it would be made from,
  which would have to run again. What lies on the host is not missing.
* Cost of swapping: how much longer operators would wait. On the way out that is the time until its
  copy is whole, nothing if it is already; on the way in, what :class:`Promises` makes of it: the
  bus is promised to other storages, and memory comes free only as the step goes on.
* The filter ``base`` releases the least of (the lesser cost) ``/ (m s)``, ``lru`` the least
  recently used and ``greedy`` the largest. The director takes the lesser cost.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import Literal

from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.engine import Stats
from mimose.runtime.eviction.graph import Storage
from mimose.runtime.eviction.heuristics import Heuristic
from mimose.runtime.eviction.pool import Pool
from mimose.runtime.eviction.promises import Promises
from mimose.runtime.eviction.uses import Uses

Actions = Literal["recompute", "swap", "both"]
Filter = Literal["base", "lru", "greedy"]

_YOUNG = 16
"""Of so many storages made last, most are temporary: they would be gone before they are copied."""

_MOST_LOOKED_AT = 64
"""Arguments looked at for the cost of recomputing one storage, which bounds a choice's time; so
many of them missing make it a bad one anyway."""


class Delta(Heuristic):
    """Filter and director.

    Args:
        copies: The copies on the host, and what they cost. None where ``actions`` is ``recompute``.
        uses: When storages are used next; likewise.
        filter: ``base``, ``lru`` or ``greedy``.
        actions: What may be done with a storage: ``recompute``, ``swap`` or ``both``.
        prefetch: Whether swapped storages are brought back ahead of their use.
        sampling: Look at about ``2 sqrt(n)`` of the ``n`` candidates only.
        seed: For sampling.

    Attributes:
        promises: What the bus is promised. None where ``actions`` is ``recompute``.
    """

    def __init__(
        self,
        copies: Copies | None,
        uses: Uses | None,
        *,
        filter: Filter = "base",
        actions: Actions = "both",
        prefetch: bool = True,
        sampling: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(sampling=sampling, seed=seed)
        self._copies = copies
        self._uses = uses
        self._filter = filter
        self._actions = actions
        self._prefetch = prefetch
        self._now = 0.0
        self.promises: Promises | None = None
        if copies is not None and uses is not None:
            self.promises = Promises(copies, uses)

    @property
    def may_recompute(self) -> bool:
        """Whether a storage that is away may be computed again instead of being brought back."""
        return self._actions == "both"

    # -- filter

    def begin(self, stats: Stats) -> None:
        """Forget everything; count into ``stats`` from now on."""
        super().begin(stats)
        # What it was of no use to copy, until something else leaves.
        self._useless: set[Storage] = set()
        self._gone = 0

    def choose(self, pool: Pool, now: float) -> Storage | None:
        """Return the storage to release."""
        self._look(now)
        return super().choose(pool, now)

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return what it is worth to keep a storage."""
        if self._filter == "lru":
            return storage.accessed
        if self._filter == "greedy":
            return 1 / storage.size if storage.size > 0 else inf
        scale = storage.size * (now - storage.accessed)
        return self.seconds(storage, now) / scale if scale > 0 else inf

    def seconds(self, storage: Storage, now: float) -> float:
        """Return what it costs to release a storage and get it back."""
        if self._actions == "recompute":
            return self.recompute_seconds(storage, inf)
        swap, out = self.swap_seconds(storage, now)
        if self._actions == "swap":
            return swap
        return min(swap, out + self.recompute_seconds(storage, swap - out))

    def _look(self, now: float) -> None:
        self._now = now
        if self.promises is not None:
            self.promises.look(now, self.stats.operator_cost)

    # -- director

    def action(self, storage: Storage) -> Literal["drop", "swap"]:
        """Return how the storage chosen last is to go."""
        if self._actions == "recompute":
            return "drop"
        if self._actions == "swap":
            return "swap"
        swap, out = self.swap_seconds(storage, self._now)
        if swap <= out + self.recompute_seconds(storage, swap - out):
            return "swap"
        assert self.promises is not None
        self.promises.drop(storage)
        return "drop"

    def recompute_seconds(self, storage: Storage, enough: float) -> float:
        """Return what computing a storage again takes; it may stop at what is ``enough``."""
        seconds = storage.cost
        stack = [storage]
        seen = {storage}
        looked_at = 0
        while stack and seconds < enough and looked_at < _MOST_LOOKED_AT:
            for tensor in stack.pop().tensors:
                if tensor.operator is None:
                    continue
                for parent in tensor.operator.parents:
                    looked_at += 1
                    other = parent.storage
                    if other.missing and other not in seen:
                        seen.add(other)
                        stack.append(other)
                        seconds += other.cost
        self.stats.accesses += looked_at
        return seconds

    def swap_seconds(self, storage: Storage, now: float) -> tuple[float, float]:
        """Return how long operators would wait for a storage that is swapped out now.

        Returns:
            That time, and the part of it that dropping the storage takes as well: its memory is
            not free before a copy under way has read it.
        """
        copies = self._copies
        assert copies is not None
        out = copies.seconds_out(storage, now)
        return out + self.seconds_in(storage), out if copies.has(storage) else 0.0

    def seconds_in(self, storage: Storage) -> float:
        """Return how much longer operators would wait if a storage had to come back, too.

        At the least it costs its submission, and at the most its own transfer.
        """
        assert self._copies is not None
        assert self.promises is not None
        own = self._copies.seconds(storage.size)
        if not self._prefetch:
            return own
        late = self.promises.seconds_late(storage, self.stats.operator_cost)
        return max(self._copies.channel.latency, min(own, late))

    # -- copying ahead

    def next_to_copy(self, pool: Pool, now: float) -> Storage | None:
        """Return the storage whose copy on the host will be of most use, if any is of use.

        Copies are made ahead so that memory is free at once when it is needed, at no cost if the
        stream of copies would be idle otherwise. So it gets what nothing else is good for: ``base``
        takes the most of (cost of recomputing) ``s / m``, as long as the way in is expected to be
        hidden better than that; the others, what they would release next.
        """
        candidates: Iterable[Storage] = pool.sample(self.random) if self.sampling else pool
        most, chosen, count = 0.0, None, 0
        before = self.stats.accesses
        self._look(now)
        gone = self.stats.num_evictions + self.stats.num_swaps_out
        if gone != self._gone:
            self._gone = gone
            self._useless.clear()
        for storage in candidates:
            count += 1
            if storage in self._useless or not self._worth_copying(storage):
                continue
            self.stats.evaluations += 1
            gain = self._gain(storage, now)
            if gain <= 0:
                self._useless.add(storage)
            if gain > most:
                most, chosen = gain, storage
        self.stats.read += self.stats.accesses - before
        self.stats.accesses += count
        return chosen

    def _worth_copying(self, storage: Storage) -> bool:
        copies, uses = self._copies, self._uses
        assert copies is not None
        assert uses is not None
        if copies.has(storage) or uses.age(storage) < _YOUNG or storage.size <= 0:
            return False
        # Else it would be back, or gone, before it has saved anything.
        until = uses.seconds_until(storage, self.stats.operator_cost)
        return 2 * copies.seconds(storage.size) <= until < inf

    def _gain(self, storage: Storage, now: float) -> float:
        stale = now - storage.accessed
        if self._filter == "greedy":
            return storage.size
        if self._filter == "lru" or self._actions == "swap":
            return stale
        seconds = self.recompute_seconds(storage, inf)
        if seconds <= self.seconds_in(storage):
            return 0.0
        return seconds * stale / storage.size
