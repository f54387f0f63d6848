"""Evict and bring back storages so that a computation stays within a budget.

The scheme is DTR's (Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021): before an
operator runs, its arguments are locked, those that are gone are computed again (which may need
others to be computed again first), and storages are evicted until its outputs have room. *Which*
storages is a policy's choice, *how* data is made, freed and moved is a backend's: the engine is the
book-keeping between the two and knows neither torch nor a device.

One operator of the model goes like this::

    engine.request(parents)         # they are there, and stay
    engine.make_room(size)          # size: bytes of its new outputs
    ...                             # run it
    engine.complete(parents, outputs, cost, payload)

A caller that knows the outputs before the operator has run, as the log player does, announces
them first: ``operator = engine.announce(...)``, then ``request(operator.parents)``, ``make_room``
and ``finish(operator)``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from time import perf_counter
from typing import Any, Literal, Protocol

from mimose.runtime.eviction.graph import Operator, Storage, Tensor
from mimose.runtime.eviction.pool import Pool

Trigger = Literal["threshold", "after", "oom"]
"""When storages are evicted: before an operator for its outputs, after it, or when asked to."""

Output = tuple[int, Tensor | None]
"""Bytes of new storage, or 0 and the tensor whose storage it lies in."""

SMALL_SHARE = 0.01
"""Share of the mean size below which a storage is small (DTR's paper). As in the prototype, it is
compared when it is made, with the mean of all made so far."""


class Backend(Protocol):
    """What the engine needs done."""

    def now(self) -> float:
        """Return the time, in the unit of the operators' costs."""

    def usage(self) -> int:
        """Return the bytes in use that the budget bounds."""

    def rerun(self, operator: Operator) -> None:
        """Make the data of every output again; room was made, the arguments are there.

        Outputs that are ``defined`` have data already, maybe on the host: what is made of them a
        second time is freed.
        """

    def drop(self, storage: Storage) -> None:
        """Free the data, which lies on the host if ``storage.on_host``."""

    def swap_out(self, storage: Storage) -> None:
        """Copy the data to the host and free it."""

    def swap_in(self, storage: Storage) -> None:
        """Bring the data back from the host; room was made."""


class Policy(Protocol):
    """Who goes, and how; the notifications keep what the choice needs up to date.

    Attributes:
        watches: The notifications are wanted.
    """

    watches: bool

    def begin(self, stats: Stats) -> None:
        """Forget everything; count into ``stats`` from now on."""

    def choose(self, pool: Pool, now: float) -> Storage | None:
        """Return a storage of a pool that is not empty, or None for none of them."""

    def action(self, storage: Storage) -> Literal["drop", "swap"]:
        """Return how it is to go."""

    def announced(self, operator: Operator) -> None:
        """An operator joined the graph; if it has not run yet, its new storages are missing."""

    def evicted(self, storage: Storage) -> None:
        """A storage lost its data and is not on the host."""

    def restored(self, storages: Sequence[Storage]) -> None:
        """Storages that were missing are resident: computed again, or for the first time."""


class Stats:
    """Counts and times since the step began.

    Attributes:
        num_operators: Operators of the model that ran.
        num_evictions: Storages dropped by choice.
        num_released: Storages dropped because nobody outside could ask for them any more.
        num_rematerializations: Operators that ran again.
        num_swaps_out: Storages copied to the host.
        num_swaps_in: Storages brought back from there.
        swapped_bytes: Bytes moved, both ways together.
        operator_cost: Cost of the model's operators, in the unit of the backend's clock.
        recompute_cost: Cost of those that ran again.
        evaluations: Storages whose worth was computed to choose one.
        accesses: Storages and tensors looked at to compute that, and to keep metadata.
        read: Those of them looked at to compute it, the storages themselves left out.
        search_seconds: Time spent choosing.
        maintenance_seconds: Time spent keeping metadata.
    """

    __slots__ = (
        "accesses",
        "evaluations",
        "maintenance_seconds",
        "num_evictions",
        "num_operators",
        "num_released",
        "num_rematerializations",
        "num_swaps_in",
        "num_swaps_out",
        "operator_cost",
        "read",
        "recompute_cost",
        "search_seconds",
        "swapped_bytes",
    )

    def __init__(self) -> None:
        self.num_operators = 0
        self.num_evictions = 0
        self.num_released = 0
        self.num_rematerializations = 0
        self.num_swaps_out = 0
        self.num_swaps_in = 0
        self.swapped_bytes = 0
        self.operator_cost: float = 0
        self.recompute_cost: float = 0
        self.evaluations = 0
        self.accesses = 0
        self.read = 0
        self.search_seconds = 0.0
        self.maintenance_seconds = 0.0


class NoRoom(Exception):  # noqa: N818 - a result, not a fault of anyone's
    """Nothing is left to evict and the budget is still exceeded.

    Attributes:
        need: Bytes asked for.
        usage: Bytes in use.
        budget: The budget.
        pinned_bytes: Bytes of storages that stay for good.
        locked_bytes: Bytes of storages that an operator holds right now.
        small_bytes: Bytes of storages that are no candidates, being small.
        kept: What keeps storages alive, if that was looked up.
    """

    kept = ""

    def __init__(self, need: int, usage: int, budget: int, storages: Iterable[Storage]) -> None:
        self.need = need
        self.usage = usage
        self.budget = budget
        self.pinned_bytes = self.locked_bytes = self.small_bytes = 0
        for storage in storages:
            if not storage.resident:
                continue
            if storage.pinned:
                self.pinned_bytes += storage.size
            elif storage.locks:
                self.locked_bytes += storage.size
            elif storage.small:
                self.small_bytes += storage.size
        super().__init__(
            f"{need} bytes are asked for with {usage} of {budget} in use, "
            f"{self.pinned_bytes} of them pinned and {self.locked_bytes} locked, "
            "and nothing can be evicted"
        )


class Thrashing(Exception):  # noqa: N818 - a result, not a fault of anyone's
    """Computing again costs more than the limit allows.

    Attributes:
        recompute_cost: What computing again has cost in this step.
        operator_cost: What the step's own operators cost.
        limit: The limit on the sum of the two over the latter.
    """

    def __init__(self, recompute_cost: float, operator_cost: float, limit: float) -> None:
        self.recompute_cost = recompute_cost
        self.operator_cost = operator_cost
        self.limit = limit
        super().__init__(
            f"computing again has cost {recompute_cost:g} beside the {operator_cost:g} of the "
            f"step itself, more than {limit:g} times in all"
        )


class Engine:
    """The book-keeping of one training step at a time.

    Args:
        backend: Makes, frees and moves data.
        policy: Chooses.
        budget: Bytes that ``backend.usage()`` is not to exceed; None for no limit.
        trigger: ``threshold``: room for an operator's outputs is made before it runs. ``after``:
            the prototype's way, storages are evicted after an operator while the budget is
            exceeded, its arguments and outputs excepted. ``oom``: only when :meth:`evict_one` is
            called.
        eager: Drop a storage when its last outside reference goes. It can still be computed again.
        ignore_small: Storages under 1 % of the mean size of those made so far are no candidates.
        thrash_limit: Times that the step's own operators' cost may grow to by computing again.

    Attributes:
        stats: Counts and times since the last :meth:`begin`.
        expected_cost: Cost of the last whole step's own operators, if it is known: while a step
            is young, computing again is compared with this.
        pool: The storages that may be evicted.
        spare: Bytes of the budget that are kept free as long as anything can be evicted.
    """

    def __init__(
        self,
        backend: Backend,
        policy: Policy,
        budget: int | None,
        *,
        trigger: Trigger = "threshold",
        eager: bool = True,
        ignore_small: bool = False,
        thrash_limit: float | None = None,
    ) -> None:
        self.backend = backend
        self.policy = policy
        self.budget = budget
        self.spare = 0
        self.expected_cost: float = 0
        self._trigger = trigger
        self._eager = eager
        self._ignore_small = ignore_small
        self._most_times = thrash_limit
        self.begin()

    def begin(self) -> None:
        """Forget all storages and operators, and count from 0: a step begins."""
        self.stats = Stats()
        self.pool = Pool()
        self.storages: list[Storage] = []
        self._num_tensors = 0
        self._bytes_made = 0
        self._leaving: deque[Tensor] = deque()
        self._before = self._trigger == "threshold" and self.budget is not None
        self._after = self._trigger == "after" and self.budget is not None
        self._thrash_limit = self._most_times
        self.policy.begin(self.stats)

    def lift(self) -> None:
        """Heed neither the budget nor the limit on computing again, until the next step begins."""
        self._before = self._after = False
        self._thrash_limit = None

    @property
    def kept_to(self) -> int:
        """Bytes that are not exceeded as long as anything can be evicted; 0 without a budget."""
        return 0 if self.budget is None else max(0, self.budget - self.spare)

    # The graph

    def constant(self, size: int) -> Tensor:
        """Return a tensor in a storage of its own that is resident for good."""
        storage = self._new_storage(size)
        tensor = self._new_tensor(storage, None)
        storage.resident = tensor.defined = storage.pinned = True
        storage.missing = False
        storage.locks = 1
        storage.accessed = self.backend.now()
        return tensor

    def announce(
        self, parents: Iterable[Tensor], outputs: Iterable[Output], cost: float, payload: Any = None
    ) -> Operator:
        """Add an operator that is going to run, and its outputs, each with one outside reference.

        Args:
            parents: Its arguments, repeated where the same one is passed twice.
            outputs: For each of its results, bytes and None, or 0 and the argument it is a view of.
            cost: What running it costs, in the unit of the backend's clock.
            payload: For the backend.
        """
        operator = Operator(tuple(parents), cost, payload)
        for size, base in outputs:
            storage = self._new_storage(size) if base is None else base.storage
            operator.size += size if base is None else 0
            if not storage.tensors or storage.tensors[-1].operator is not operator:
                storage.cost += cost
            operator.outputs.append(self._new_tensor(storage, operator))
        for parent in operator.parents:
            parent.read_by(operator)
        if self.policy.watches:
            start = perf_counter()
            self.policy.announced(operator)
            self.stats.maintenance_seconds += perf_counter() - start
        return operator

    def _new_storage(self, size: int) -> Storage:
        storage = Storage(size, self._num_tensors)
        self.storages.append(storage)
        if self._ignore_small:
            self._bytes_made += size
            storage.small = size < SMALL_SHARE * self._bytes_made / len(self.storages)
        return storage

    def _new_tensor(self, storage: Storage, operator: Operator | None) -> Tensor:
        tensor = Tensor(storage, operator)
        storage.tensors.append(tensor)
        storage.references += 1
        self._num_tensors += 1
        return tensor

    # One operator of the model

    def request(self, parents: Sequence[Tensor]) -> None:
        """Make arguments available and lock them: they stay until the operator is done.

        First all that are there are locked, then the others are brought back and locked one by
        one, in order; until it is reached, one that comes back beside another may be evicted again.

        Raises:
            NoRoom: If the budget does not allow it; nothing is locked then.
            Thrashing: If computing again costs too much; likewise.
        """
        if self._leaving:
            self.settle()
        pending = self._open(parents)
        if pending:
            self._bring_back(parents, pending)

    def make_room(self, size: int) -> None:
        """Evict storages until ``size`` more bytes are within the budget.

        Does nothing unless the trigger is ``threshold``.

        Raises:
            NoRoom: If nothing is left to evict.
        """
        if self._before:
            self._evict_down_to(size)

    def complete(
        self, parents: Iterable[Tensor], outputs: Iterable[Output], cost: float, payload: Any = None
    ) -> Operator:
        """Note that an operator has run whose arguments were requested; see :meth:`announce`.

        Raises:
            NoRoom: With the trigger ``after``, if nothing is left to evict.
        """
        # The same as announce and finish, in one go: this is run for every operator of a step.
        if self._after:
            self._evict_down_to(0)
        stats, pool = self.stats, self.pool
        stats.num_operators += 1
        stats.operator_cost += cost
        operator = Operator(tuple(parents), cost, payload)
        results = operator.outputs
        now = self.backend.now()
        first = None
        for size, base in outputs:
            if base is None:
                storage = self._new_storage(size)
                storage.resident = True
                storage.missing = False
                storage.cost = cost
                operator.size += size
                if not results:
                    first = storage
                elif not storage.small:
                    pool[storage] = None
            else:
                storage = base.storage
                if storage.tensors[-1].operator is not operator:
                    storage.cost += cost
            storage.accessed = now
            output = self._new_tensor(storage, operator)
            output.defined = True
            results.append(output)
        if first is not None and not first.small:
            pool[first] = None
        for parent in operator.parents:
            parent.read_by(operator)
        self._unlock(operator.parents)
        if self.policy.watches:
            start = perf_counter()
            self.policy.announced(operator)
            stats.maintenance_seconds += perf_counter() - start
        return operator

    def finish(self, operator: Operator) -> None:
        """Note that an announced operator has run, and unlock its arguments.

        Raises:
            NoRoom: With the trigger ``after``, if nothing is left to evict.
        """
        if self._after:
            self._evict_down_to(0)
        stats = self.stats
        stats.num_operators += 1
        stats.operator_cost += operator.cost
        if operator.outputs:
            self._made(operator.outputs, operator.outputs[0])
        self._unlock(operator.parents)
        now = self.backend.now()
        for output in operator.outputs:
            output.storage.accessed = now

    def cancel(self, parents: Iterable[Tensor]) -> None:
        """Unlock the arguments of an operator that failed."""
        self._unlock(parents)

    # What is asked for from outside

    def retain(self, tensor: Tensor) -> None:
        """Note one more outside reference."""
        tensor.storage.references += 1

    def release(self, tensor: Tensor) -> None:
        """Note that an outside reference went; with eager eviction, the last one frees the data.

        Raises:
            RuntimeError: If there is none.
        """
        storage = tensor.storage
        if storage.references < 1:
            raise RuntimeError(f"{storage!r} has no outside reference that could go")
        storage.references -= 1
        if storage.references or not self._eager or storage.pinned or storage.missing:
            return
        if storage.locks:
            storage.condemned = True
        else:
            self._discard(storage)

    def release_soon(self, tensor: Tensor) -> None:
        """Release a tensor before the engine next does anything.

        For callbacks that may come in the middle of its work, as those of weak references do.
        """
        self._leaving.append(tensor)

    def settle(self) -> None:
        """Carry out what :meth:`release_soon` put off; every request and eviction does so first."""
        while self._leaving:
            self.release(self._leaving.popleft())

    def surrender(self, storage: Storage) -> None:
        """Note that the data of a storage was overwritten or taken away: it is missing from now on.

        That is no eviction of the engine's, and the backend is not asked to free anything. It may
        be locked, as the argument of the operator that took it.
        """
        if not storage.missing:
            self.pool.pop(storage, None)
            self._lost(storage)

    def fetch(self, tensors: Iterable[Tensor], pin: bool = False) -> None:
        """Bring tensors back, one after the other; pinned, they all stay.

        Raises:
            NoRoom: If the budget does not allow it.
            Thrashing: If computing again costs too much.
        """
        for tensor in tensors:
            if not tensor.defined or not tensor.storage.resident:
                self._bring_back((tensor,), [tensor])
                self._unlock((tensor,))
            if pin:
                self.pin(tensor)

    def pin(self, tensor: Tensor) -> None:
        """Keep a resident tensor's storage for good."""
        storage = tensor.storage
        if not storage.pinned:
            storage.pinned = True
            storage.locks += 1
            self.pool.pop(storage, None)

    def unpin(self, tensor: Tensor) -> None:
        """Let a pinned storage be evicted again."""
        storage = tensor.storage
        if storage.pinned:
            storage.pinned = False
            self._unlock((tensor,))

    def evict_one(self) -> bool:
        """Evict one storage; return whether there was any."""
        if self._leaving:
            self.settle()
        if not self.pool:
            return False
        start = perf_counter()
        chosen = self.policy.choose(self.pool, self.backend.now())
        self.stats.search_seconds += perf_counter() - start
        if chosen is None:
            return False
        if self.policy.action(chosen) == "swap":
            self.swap_out(chosen)
        else:
            self.stats.num_evictions += 1
            self._drop(chosen)
        return True

    def evict_after(self, num_failures: int) -> bool:
        """Evict for an allocation that has failed so many times; return whether there was anything.

        One storage at first and four times as many each time: a failure takes the allocator far
        longer than evicting does.
        """
        count = 4 ** (num_failures - 1)
        evicted = 0
        while evicted < count and self.evict_one():
            evicted += 1
        return evicted > 0

    def swap_out(self, storage: Storage) -> None:
        """Move a storage of the pool to the host: its tensors stay defined."""
        del self.pool[storage]
        self.backend.swap_out(storage)
        storage.resident = False
        storage.on_host = True
        self.stats.num_swaps_out += 1
        self.stats.swapped_bytes += storage.size

    def swap_in(self, storage: Storage) -> None:
        """Bring a storage back from the host; it is a candidate from then on.

        Raises:
            NoRoom: If nothing is left to evict.
        """
        if self._before:
            self._evict_down_to(storage.size)
        self.backend.swap_in(storage)
        if self._after:
            self._evict_down_to(0)
        storage.on_host = False
        storage.resident = True
        self.stats.num_swaps_in += 1
        self.stats.swapped_bytes += storage.size
        if not storage.locks and not storage.small:
            self.pool[storage] = None

    # How it is done

    def _open(self, parents: Sequence[Tensor]) -> list[Tensor] | None:
        """Note the use of arguments, lock those that are there and return the others, if any."""
        now = self.backend.now()
        pool = self.pool
        pending = None
        for parent in parents:
            storage = parent.storage
            storage.accessed = now
            if parent.defined and storage.resident:
                storage.locks += 1
                if storage.locks == 1:
                    pool.pop(storage, None)
            elif pending is None:
                pending = [parent]
            else:
                pending.append(parent)
        return pending

    def _bring_back(self, parents: Sequence[Tensor], pending: list[Tensor]) -> None:
        """Bring back and lock ``pending``, which are some of ``parents``.

        What Python's recursion would hold is in a list: a chain of any length comes back.
        """
        frames = [_Frame(None, None, parents, pending)]
        try:
            while True:
                frame = frames[-1]
                if frame.reached < len(frame.pending):
                    tensor = frame.pending[frame.reached]
                    if not tensor.defined:
                        operator = tensor.operator
                        if operator is None:
                            raise LookupError(f"{tensor!r} is a constant whose data is gone")
                        others = self._open(operator.parents)
                        frames.append(_Frame(operator, tensor, operator.parents, others or []))
                        continue
                    storage = tensor.storage
                    if not storage.resident:
                        self.swap_in(storage)
                    storage.locks += 1
                    if storage.locks == 1:
                        self.pool.pop(storage, None)
                    frame.reached += 1
                elif frame.operator is None:
                    return
                else:
                    self._run_again(frame.operator, frame.wanted)
                    frames.pop()
                    self._unlock(frame.parents)
                    self._check_thrashing()
        except BaseException:
            for frame in frames:
                self._unlock(frame.held())
            raise

    def _run_again(self, operator: Operator, wanted: Tensor | None) -> None:
        """Run an operator whose arguments are locked, for one of its outputs."""
        if self._before:
            self._evict_down_to(operator.size)
        # Taken down before anything is evicted: an output that was there is not made anew.
        absent = [output for output in operator.outputs if not output.defined]
        self.backend.rerun(operator)
        if self._after:
            self._evict_down_to(0)
        stats = self.stats
        stats.num_rematerializations += 1
        stats.recompute_cost += operator.cost
        self._made(absent, wanted)

    def _check_thrashing(self) -> None:
        if self._thrash_limit is not None:
            stats = self.stats
            own = max(stats.operator_cost, self.expected_cost)
            if stats.recompute_cost > (self._thrash_limit - 1) * own:
                raise Thrashing(stats.recompute_cost, own, self._thrash_limit)

    def _made(self, outputs: Iterable[Tensor], wanted: Tensor | None) -> None:
        """Note that outputs have data; the storage of the one that was wanted comes last."""
        fresh = []
        for output in outputs:
            output.defined = True
            if output is not wanted and not output.storage.resident:
                output.storage.resident = True
                fresh.append(output.storage)
        if wanted is not None and not wanted.storage.resident:
            wanted.storage.resident = True
            fresh.append(wanted.storage)
        if not fresh:
            return
        pool = self.pool
        for storage in fresh:
            storage.missing = False
            if not storage.small and not storage.locks:
                pool[storage] = None
        if self.policy.watches:
            start = perf_counter()
            self.policy.restored(fresh)
            self.stats.maintenance_seconds += perf_counter() - start

    def _unlock(self, tensors: Iterable[Tensor]) -> None:
        pool = self.pool
        for tensor in tensors:
            storage = tensor.storage
            storage.locks -= 1
            if not storage.locks and storage.resident:
                if storage.condemned:
                    storage.condemned = False
                    if not storage.references:
                        self._discard(storage)
                        continue
                if not storage.small:
                    pool[storage] = None

    def _evict_down_to(self, size: int) -> None:
        budget = self.budget
        assert budget is not None
        usage = self.backend.usage
        while usage() + size > budget - self.spare:
            if not self.evict_one():
                if usage() + size <= budget:
                    return
                raise NoRoom(size, usage(), budget, self.storages)

    def _discard(self, storage: Storage) -> None:
        """Drop a storage that nobody outside can ask for."""
        self.stats.num_released += 1
        self._drop(storage)

    def _drop(self, storage: Storage) -> None:
        self.pool.pop(storage, None)
        self.backend.drop(storage)
        self._lost(storage)

    def _lost(self, storage: Storage) -> None:
        storage.resident = storage.on_host = False
        storage.missing = True
        storage.condemned = False
        for tensor in storage.tensors:
            tensor.defined = False
        if self.policy.watches:
            start = perf_counter()
            self.policy.evicted(storage)
            self.stats.maintenance_seconds += perf_counter() - start


class _Frame:
    """An operator that waits for its arguments, or what was asked for in the first place.

    Attributes:
        operator: What is to run again; None at the bottom.
        wanted: The output that it is run for.
        parents: Its arguments.
        pending: Those that were not there when it was opened.
        reached: How many of these are locked by now.
    """

    __slots__ = ("operator", "parents", "pending", "reached", "wanted")

    def __init__(
        self,
        operator: Operator | None,
        wanted: Tensor | None,
        parents: Sequence[Tensor],
        pending: list[Tensor],
    ) -> None:
        self.operator = operator
        self.wanted = wanted
        self.parents = parents
        self.pending = pending
        self.reached = 0

    def held(self) -> list[Tensor]:
        """Return the arguments that it has locked."""
        others = self.pending[self.reached :]
        held = []
        for parent in self.parents:
            if parent in others:
                others.remove(parent)
            else:
                held.append(parent)
        return held
