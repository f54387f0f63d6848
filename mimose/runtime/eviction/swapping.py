"""Moves storages to the host ahead of need, and back ahead of use.

Called after each operator of the model's. Both ways are bounded in bytes under way, so that what is
copied next is chosen late; neither ever evicts anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.delta import Delta
from mimose.runtime.eviction.engine import Engine
from mimose.runtime.eviction.graph import Storage, Tensor
from mimose.runtime.eviction.uses import Uses

LOW_WATER = 0.5
"""Copying ahead starts when memory in use has passed this share of the way from what it was when
the step began to the budget. A model fills memory several times faster than the bus empties it
(tens of GB a second against 12), so what is to be free by the time that the budget is reached has
to be begun with long before; a model that never gets so far has nothing to swap. A step like one
that had to evict starts at once."""

UNDER_WAY_SECONDS = 0.003
"""Time's worth of copies under way, either way, that no further ones are added to: what is copied
next is chosen late that way. (Tried on a simulated V100 with BERT at 40 % of its memory: steps take
11 % longer with 10 ms, and half as long again with 30.)"""

_FADING = 0.98
"""What is left, an operator later, of the room that prefetching leaves for operators' outputs."""


class Swapper:
    """The low-water mark and the prefetcher of one engine.

    Args:
        engine: The engine.
        policy: Its filter and director.
        copies: The copies on the host.
        uses: When storages are used.
        start: Starts copying a storage to the host.
        bring: Starts bringing a storage back, if there is memory; returns whether it did.
        prefetch: Whether to bring storages back ahead of their use.
    """

    def __init__(
        self,
        engine: Engine,
        policy: Delta,
        copies: Copies,
        uses: Uses,
        start: Callable[[Storage], None],
        bring: Callable[[Storage], bool],
        *,
        prefetch: bool,
    ) -> None:
        self._engine = engine
        self._policy = policy
        self._copies = copies
        self._uses = uses
        self._start = start
        self._bring = bring
        assert policy.promises is not None
        self._promises = policy.promises
        self._prefetch = prefetch
        self._whole = False
        self._most_under_way = max(1, int(UNDER_WAY_SECONDS * copies.channel.bandwidth))
        self._mark = 0
        self._at_once = False
        self._margin = 0.0
        self._seen_gone = 0

    def begin(self) -> None:
        """A step begins."""
        engine = self._engine
        usage, budget = engine.backend.usage(), engine.kept_to
        self._uses.begin(0.0)
        self._promises.begin(usage, whole=self._whole)
        self._whole = False
        self._mark = usage if self._at_once else usage + int(LOW_WATER * (budget - usage))
        self._margin = 0.0
        self._seen_gone = 0

    def end(self) -> None:
        """The step is over."""
        stats = self._engine.stats
        self._at_once = stats.num_evictions + stats.num_swaps_out > 0
        self._whole = True
        self._copies.end()

    def abandon(self) -> None:
        """The step is given up."""
        self._uses.abandon()
        self._copies.end()

    def operated(
        self,
        key: Any,
        parents: Sequence[Tensor],
        outputs: Sequence[Tensor],
        need: int,
        *,
        backward: bool,
    ) -> None:
        """An operator of the model's own has run.

        Args:
            key: What it is; equal for equal ones in any step.
            parents: Its arguments.
            outputs: What it made.
            need: Bytes that room was made for.
            backward: Whether it belongs to backward.
        """
        engine, copies, promises = self._engine, self._copies, self._promises
        # The model's own time: what is waited, searched or computed again hides no transfer.
        work = engine.stats.operator_cost
        self._uses.note(key, parents, outputs, work, backward=backward)
        promises.note(parents, outputs, work)
        self._margin = max(_FADING * self._margin, need)
        promises.room = engine.kept_to - int(self._margin)
        if copies.outgoing or copies.arriving:
            copies.poll()
        if copies.away_bytes and self._prefetch:
            self._bring_back()
        if not backward and copies.outgoing_bytes < self._most_under_way:
            self._copy_ahead()

    def _copy_ahead(self) -> None:
        engine = self._engine
        backend = engine.backend
        if not engine.pool or backend.usage() < self._mark:
            return
        # Each look at the pool takes the host's time: none where all of the step is going to fit.
        if not self._at_once and self._promises.fits():
            return
        begun = perf_counter()
        now = backend.now()
        chosen = self._policy.next_to_copy(engine.pool, now)
        engine.stats.search_seconds += perf_counter() - begun
        if chosen is not None:
            self._start(chosen)

    def _bring_back(self) -> None:
        engine, copies, uses = self._engine, self._copies, self._uses
        gone = engine.stats.num_swaps_out + engine.stats.num_evictions
        if gone != self._seen_gone:
            self._seen_gone = gone
            uses.look_again()
        budget, backend = engine.kept_to, engine.backend
        work = engine.stats.operator_cost
        while copies.arriving_bytes < self._most_under_way:
            wanted = uses.next_wanted()
            if wanted is None:
                return
            until = uses.seconds_ahead(work)
            if self._gives_up(wanted, until):
                continue
            if backend.usage() + wanted.size + self._margin > budget:
                return
            self._promises.look(backend.now(), work)
            if not self._promises.stays(wanted.size, until) or not self._bring(wanted):
                return

    def _gives_up(self, storage: Storage, until: float) -> bool:
        """Drop a storage that would be back too late, if computing it again takes less than that.

        What is done with it was chosen when it left; how busy the bus and the memory would be was
        foretold only.

        Args:
            storage: The storage.
            until: Seconds until it is wanted.
        """
        if not self._policy.may_recompute:
            return False
        copies, engine = self._copies, self._engine
        late = copies.seconds_in_queue(engine.backend.now()) + copies.seconds(storage.size) - until
        if late <= 0 or self._policy.recompute_seconds(storage, late) >= late:
            return False
        copies.forget(storage)
        engine.surrender(storage)
        self._promises.drop(storage)
        self._uses.look_again()
        return True
