"""Which storage to evict: the heuristics of DTR and those that it is compared with.

Kirisame et al., "Dynamic Tensor Rematerialization", ICLR 2021, and the simulator of
github.com/uwsampl/dtr-prototype, whose order of candidates and ties is followed. With ``c`` the
cost of a storage's own operators, ``m`` its bytes and ``s`` its staleness (time since its last
use), the storage with the least of the following goes; among equals, the last in the pool.

* :class:`Dtr`, h_DTR: ``c`` and the costs of all evicted storages that it would have to be made
  from, or that would need it, over ``m s``.
* :class:`DtrEq`, h_DTR_eq: the same with the components of evicted neighbours, kept by union-find.
* :class:`DtrLocal`, h_DTR_local: ``c / (m s)``.
* :class:`Msps`: ``c`` and the costs of what it would have to be made from, over ``m`` (Peng et al.,
  "Capuchin", ASPLOS 2020).
* :class:`Lru`: its last use. :class:`Largest`: ``1 / m``. :class:`AtRandom`: any.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from random import Random
from typing import Literal

from mimose.runtime.eviction.engine import Stats
from mimose.runtime.eviction.graph import Operator, Storage
from mimose.runtime.eviction.pool import Pool


class Heuristic:
    """Evicts the storage of least worth, by dropping it; keeps no metadata.

    Args:
        sampling: Look at about ``2 sqrt(n)`` of the ``n`` candidates only.
        seed: For sampling and other random choices, the same in every step.
    """

    watches = False

    def __init__(self, *, sampling: bool = False, seed: int = 0) -> None:
        self.sampling = sampling
        self.random = Random(seed)
        self._seed = seed
        self.stats = Stats()

    def begin(self, stats: Stats) -> None:
        """Forget everything; count into ``stats`` from now on."""
        self.stats = stats
        self.random = Random(self._seed)

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return what it is worth to keep a storage."""
        raise NotImplementedError

    def choose(self, pool: Pool, now: float) -> Storage | None:
        """Return the storage of least worth, the last one among equals."""
        candidates: Iterable[Storage] = pool.sample(self.random) if self.sampling else pool
        evaluate, before = self.evaluate, self.stats.accesses
        lowest, chosen, count = inf, None, 0
        for storage in candidates:
            count += 1
            worth = evaluate(storage, now)
            if worth <= lowest:
                lowest, chosen = worth, storage
                if worth == 0:
                    break
        self.stats.read += self.stats.accesses - before
        self.stats.evaluations += count
        self.stats.accesses += count
        return chosen

    def action(self, storage: Storage) -> Literal["drop", "swap"]:
        """Return how the storage is to go: it is dropped, to be computed again."""
        return "drop"

    def announced(self, operator: Operator) -> None:
        """An operator joined the graph."""

    def evicted(self, storage: Storage) -> None:
        """A storage lost its data."""

    def restored(self, storages: Sequence[Storage]) -> None:
        """Storages that were missing are resident."""


class DtrLocal(Heuristic):
    """``c / (m s)``: h_DTR without any neighbours."""

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return own cost per byte and staleness."""
        scale = storage.size * (now - storage.accessed)
        return storage.cost / scale if scale > 0 else inf


class Lru(Heuristic):
    """The least recently used."""

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return the time of the last use."""
        return storage.accessed


class Largest(Heuristic):
    """The largest."""

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return the inverse of the size."""
        return 1 / storage.size if storage.size > 0 else inf


class AtRandom(Heuristic):
    """Any."""

    def choose(self, pool: Pool, now: float) -> Storage | None:
        """Return any storage."""
        self.stats.evaluations += 1
        self.stats.accesses += 1
        return list(pool)[self.random.randrange(len(pool))]


def parents(storage: Storage) -> list[Storage]:
    """Return the storages that its operators read, some of them repeatedly."""
    return [
        parent.storage
        for tensor in storage.tensors
        if tensor.operator is not None
        for parent in tensor.operator.parents
    ]


def children(storage: Storage) -> list[Storage]:
    """Return the storages that operators make from it, some of them repeatedly."""
    return [
        output.storage
        for tensor in storage.tensors
        for operator in tensor.children
        for output in operator.outputs
    ]


Direction = Callable[[Storage], list[Storage]]


class _Neighbourhood(Heuristic):
    """Knows the cost of missing storages around a resident one.

    They are found by walking the graph, when a choice needs it. What was found stays with a storage
    until one of those that it reaches through missing storages is evicted, restored or joins the
    graph; whom that concerns is found by the same walk the other way round, before the next choice.
    """

    watches = True

    def begin(self, stats: Stats) -> None:
        """Forget everything; count into ``stats`` from now on."""
        super().begin(stats)
        self._changed: set[Storage] = set()

    def choose(self, pool: Pool, now: float) -> Storage | None:
        """Return the storage of least worth, the last one among equals."""
        if self._changed:
            self._forget()
        return super().choose(pool, now)

    def ancestors(self, storage: Storage) -> float:
        """Return the cost of the missing storages that it would have to be made from."""
        if storage.ancestors is None:
            missing, _ = self._walk((storage,), parents)
            storage.ancestors = sum([other.cost for other in missing])
        return storage.ancestors

    def descendants(self, storage: Storage) -> float:
        """Return the cost of the missing storages that would need it to be made."""
        if storage.descendants is None:
            missing, _ = self._walk((storage,), children)
            storage.descendants = sum([other.cost for other in missing])
        return storage.descendants

    def announced(self, operator: Operator) -> None:
        """What its outputs hang from has more missing descendants."""
        for output in operator.outputs:
            self._changed.add(output.storage)

    def evicted(self, storage: Storage) -> None:
        """What reaches it has more missing neighbours."""
        self._changed.add(storage)

    def restored(self, storages: Sequence[Storage]) -> None:
        """What reaches them has fewer missing neighbours."""
        self._changed.update(storages)

    def _forget(self) -> None:
        # Whatever path led to a change, its first changed storage is reached through missing ones
        # that are missing still: what is told to forget now is what should have been at the time.
        changed = self._changed
        for storage in changed:
            storage.ancestors = storage.descendants = None
        for above in self._walk(changed, parents)[1]:
            above.descendants = None
        for below in self._walk(changed, children)[1]:
            below.ancestors = None
        self._changed = set()

    def _walk(
        self, storages: Collection[Storage], onward: Direction
    ) -> tuple[list[Storage], list[Storage]]:
        """Return the missing storages reached through missing ones only, and the others met."""
        missing: list[Storage] = []
        met: list[Storage] = []
        seen = set(storages)
        stack = list(storages)
        accesses = 0
        while stack:
            neighbours = onward(stack.pop())
            accesses += len(neighbours)
            for neighbour in neighbours:
                if neighbour not in seen:
                    seen.add(neighbour)
                    if neighbour.missing:
                        missing.append(neighbour)
                        stack.append(neighbour)
                    else:
                        met.append(neighbour)
        self.stats.accesses += accesses
        return missing, met


class Dtr(_Neighbourhood):
    """``(c + missing ancestors + missing descendants) / (m s)``: h_DTR."""

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return the cost of the storage and its missing neighbourhood per byte and staleness."""
        scale = storage.size * (now - storage.accessed)
        if scale <= 0:
            return inf
        return (storage.cost + self.ancestors(storage) + self.descendants(storage)) / scale


class Msps(_Neighbourhood):
    """``(c + missing ancestors) / m``."""

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return the cost of making the storage again per byte."""
        if storage.size <= 0:
            return inf
        return (storage.cost + self.ancestors(storage)) / storage.size


class _Component:
    """A node of a union-find forest; the root carries the cost of all."""

    __slots__ = ("cost", "parent")

    def __init__(self, cost: float) -> None:
        self.cost = cost
        self.parent: _Component | None = None


class DtrEq(Heuristic):
    """``(c + components of missing neighbours) / (m s)``: h_DTR_eq.

    Missing storages are put into one component with their missing neighbours when they are evicted.
    A restored one takes its cost out of its component and leaves the links behind, so that
    components only ever grow together: the price of never walking the graph. One that is announced
    but not computed yet is missing at no cost, and its cost comes off what it was put together with
    when it is computed, as in the simulator.
    """

    watches = True

    def evaluate(self, storage: Storage, now: float) -> float:
        """Return the cost of the storage and its missing neighbours' components, per byte and s."""
        scale = storage.size * (now - storage.accessed)
        return self.cost(storage) / scale if scale > 0 else inf

    def cost(self, storage: Storage) -> float:
        """Return the cost of the storage and its missing neighbours' components."""
        cost = storage.cost
        neighbours = storage.neighbours
        if neighbours is None:
            neighbours = self._neighbours(storage)
        roots: list[_Component] = []
        self.stats.accesses += len(neighbours)
        for neighbour in neighbours:
            if neighbour.missing:
                root = neighbour.component
                if root.parent is not None:
                    root = self._root(root)
                if root not in roots:
                    roots.append(root)
                    cost += root.cost
        return cost

    def announced(self, operator: Operator) -> None:
        """New storages are components without cost."""
        for output in operator.outputs:
            storage = output.storage
            if storage.missing and storage.component is None:
                storage.component = _Component(0)
            storage.neighbours = None
        for parent in operator.parents:
            parent.storage.neighbours = None

    def evicted(self, storage: Storage) -> None:
        """It is put together with its missing neighbours."""
        root = _Component(storage.cost)
        storage.component = root
        neighbours = storage.neighbours
        if neighbours is None:
            neighbours = self._neighbours(storage)
        self.stats.accesses += len(neighbours)
        for neighbour in neighbours:
            if neighbour.missing:
                other = self._root(neighbour.component)
                if other is not root:
                    other.parent = root
                    root.cost += other.cost

    def restored(self, storages: Sequence[Storage]) -> None:
        """They take out their cost."""
        for storage in storages:
            self._root(storage.component).cost -= storage.cost
            storage.component = None

    def _neighbours(self, storage: Storage) -> list[Storage]:
        neighbours = dict.fromkeys([*parents(storage), *children(storage)])
        neighbours.pop(storage, None)
        storage.neighbours = list(neighbours)
        return storage.neighbours

    def _root(self, component: _Component) -> _Component:
        root, steps = component, 1
        while root.parent is not None:
            root = root.parent
            steps += 1
        while component is not root:
            component.parent, component = root, component.parent
        self.stats.accesses += steps
        return root


HEURISTICS: dict[str, type[Heuristic]] = {
    "h_DTR": Dtr,
    "h_DTR_eq": DtrEq,
    "h_DTR_local": DtrLocal,
    "lru": Lru,
    "largest": Largest,
    "msps": Msps,
    "random": AtRandom,
}
