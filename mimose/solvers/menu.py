"""Which saved values of a block are worth dropping: its candidates and, at one size, their front.

A candidate is a set of values that can be made again once all of them are gone. Which operators
that takes follows from the block's graph alone, so it is worked out once; bytes and seconds at a
size are then two products of matrices. Of the candidates at a size only those matter that free
more than all that are no slower: the front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import compress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mimose.menu import BlockGraph, Traced, moments_in_bits, runs_again

Vector = NDArray[np.float64]

MOST_TRIED = 10
"""Of so many values, the largest, every set is tried; further ones are added one by one."""
MOST_CANDIDATES = 256
MOST_WEIGHED = 4000
"""About so many sets are weighed while further values are added, and those that are the cheapest by
what they free: a block of many values (an adapter in each layer) takes a fraction of a second."""
_MOST_REMEMBERED, _MOST_COURSES, _MOST_ASKED = 64, 512, 1 << 14
_TINY = 0.01
"""Values that are together less than this share of what the block saves are kept."""


class Front(NamedTuple):
    """What may be dropped at one size, least freed first.

    Attributes:
        places: For each entry the place of its candidate.
        freed: The bytes that each frees, less those that it has held instead.
        seconds: What making them again takes; none is as fast as one that frees less.
    """

    places: NDArray[np.intp]
    freed: Vector
    seconds: Vector


@dataclass(frozen=True, eq=False, slots=True)
class Candidates:
    """Sets of values of a block that may be dropped.

    Attributes:
        sets: The sets, each sorted.
        dropped: A row a set, a column a value: 1 if it is dropped.
        runs: A row a set, a column an operator: how often it runs again.
        holds: For each set whether it takes inputs that the block does not save.
        weighed: How many sets were weighed to find them.
    """

    sets: tuple[tuple[int, ...], ...]
    dropped: Vector
    runs: Vector
    holds: NDArray[np.bool_]
    weighed: int = 0

    def front(self, sizes: Vector, seconds: Vector, inputs: float = 0.0) -> Front:
        """Return the candidates worth choosing from at one size.

        Args:
            sizes: Bytes of each value.
            seconds: Seconds of each operator.
            inputs: Bytes of inputs that stay only if something is made again from them.
        """
        freed, taken = self.dropped @ sizes - inputs * self.holds, self.runs @ seconds
        # Slowest last, and of equally slow ones the one that frees least: each that frees more
        # than all before it stays.
        order = np.lexsort((-freed, taken))
        ordered = freed[order]
        highest = np.maximum.accumulate(np.maximum(ordered, 0.0))
        new = ordered > np.concatenate([[0.0], highest[:-1]])
        places = order[new]
        return Front(places, freed[places], taken[places])

    def worth(self, sizes: Vector, seconds: Vector) -> list[int]:
        """Return the places of those on the front for any bytes of inputs.

        Args:
            sizes: Bytes of each value.
            seconds: Seconds of each operator.
        """
        places = self.front(sizes, seconds).places.tolist()
        if self.holds.any():
            # In between nothing else comes: where inputs are dear none of the rest is worse off.
            dear = float(sizes.sum()) + 1.0
            places += self.front(sizes, seconds, dear).places.tolist()
        return list(dict.fromkeys(places))

    def best(self, sizes: Vector, seconds: Vector, most: int) -> list[int]:
        """Return about ``most`` of :meth:`worth`: those cheapest by what they free, and some more.

        Args:
            sizes: Bytes of each value.
            seconds: Seconds of each operator.
            most: How many; those on the lower hull of the front all stay.
        """
        places = self.worth(sizes, seconds)
        if len(places) <= most:
            return places
        front = self.front(sizes, seconds)
        freed, taken = [0.0, *front.freed.tolist()], [0.0, *front.seconds.tolist()]
        ends = [0]
        for end in range(1, len(freed)):
            while len(ends) > 1:
                a, b = ends[-2:]
                if (taken[b] - taken[a]) * (freed[end] - freed[a]) < (taken[end] - taken[a]) * (
                    freed[b] - freed[a]
                ):
                    break
                ends.pop()
            ends.append(end)
        hull = front.places[[end - 1 for end in ends[1:]]].tolist()
        return list(dict.fromkeys([*hull, *_spread(places, most - len(hull))]))

    def among(self, places: Sequence[int]) -> Candidates:
        """Return the candidates at these places alone."""
        chosen = list(places)
        return Candidates(
            tuple(self.sets[p] for p in chosen),
            self.dropped[chosen],
            self.runs[chosen],
            self.holds[chosen],
        )


def candidates(graph: BlockGraph, traced: Sequence[Traced]) -> Candidates:
    """Return the sets of a block's values that are worth dropping at any of some sizes.

    Left out is what would take more memory in the block's backward than keeping everything does.

    Args:
        graph: The block.
        traced: What it takes, at one size or more.
    """
    sizes = [np.array(t.bytes, np.float64) for t in traced]
    seconds = [np.array(t.seconds, np.float64) for t in traced]
    ranked = _relevant(graph, sizes)
    table = _all_sets(graph, tuple(ranked[:MOST_TRIED]))
    weighed = len(table.sets)
    further = ranked[MOST_TRIED:]
    most = MOST_WEIGHED // max(1, 2 * len(further) * len(traced))
    for value in further:
        best = {p for s, t in zip(sizes, seconds) for p in table.best(s, t, most)}
        table = _with(graph, table.among(sorted(best)), value)
        weighed += len(table.sets)
    chosen: set[int] = set()
    for one in traced:
        chosen.update(_spread(_within(table, graph, one), MOST_CANDIDATES))
    return replace(table.among(sorted(chosen)), weighed=weighed)


def _spread(places: Sequence[int], most: int) -> Sequence[int]:
    """Return about ``most`` of the places, at even distances; all if they are fewer."""
    return places[:: 1 + len(places) // max(1, most)]


def _within(table: Candidates, graph: BlockGraph, one: Traced) -> list[int]:
    """Return the front of the sets that take no more memory in backward than keeping everything."""
    sizes, seconds = np.array(one.bytes, np.float64), np.array(one.seconds, np.float64)
    most = _working_bytes(graph, (), sizes)
    left = list(range(len(table.sets)))
    good: set[int] = set()
    while True:
        front = [left[p] for p in table.among(left).worth(sizes, seconds)]
        bad = {
            p for p in front if p not in good and _working_bytes(graph, table.sets[p], sizes) > most
        }
        if not bad:
            return front
        good.update(p for p in front if p not in bad)
        left = [p for p in left if p not in bad]


def _working_bytes(graph: BlockGraph, dropped: tuple[int, ...], sizes: Vector) -> float:
    """Return the most that is alive of a block's values at any moment of its backward."""
    return float((_alive(graph, dropped) @ sizes).max())


@lru_cache(maxsize=_MOST_COURSES)
def _alive(graph: BlockGraph, dropped: tuple[int, ...]) -> Vector:
    """Return a row a moment of a block's backward, a column a value: 1 if it is there."""
    moments = dict.fromkeys(alive for _, alive, _ in moments_in_bits(graph, dropped))
    return rows_of(list(moments), graph.num_values).astype(np.float64)


def rows_of(sets: Sequence[int], num_values: int) -> NDArray[np.uint8]:
    """Return a row a set of values, which is given as bits, a column a value: 1 if it is in it."""
    width = (num_values + 7) // 8
    packed = b"".join(values.to_bytes(width, "little") for values in sets)
    rows = np.frombuffer(packed, np.uint8).reshape(len(sets), width)
    return np.unpackbits(rows, axis=1, count=num_values, bitorder="little")


@lru_cache(maxsize=_MOST_ASKED)
def _runs(graph: BlockGraph, dropped: tuple[int, ...]) -> Vector:
    return np.array(runs_again(graph, dropped), np.float64)


def _relevant(graph: BlockGraph, sizes: Sequence[Vector]) -> list[int]:
    """Return the values worth dropping, largest first, at any of some sizes."""
    counted = sorted(graph.saved - graph.fixed)
    shares = np.zeros(graph.num_values)
    for each in sizes:
        total = each[counted].sum()
        if total > 0:
            shares = np.maximum(shares, each / total)
    ranked = sorted(graph.droppable(), key=lambda v: (-shares[v], v))
    tail = 0.0
    while ranked and tail + shares[ranked[-1]] < _TINY:
        tail += shares[ranked.pop()]
    return ranked


@lru_cache(maxsize=_MOST_REMEMBERED)
def _all_sets(graph: BlockGraph, values: tuple[int, ...]) -> Candidates:
    """Return every set of ``values`` but the empty one; a sample more asks again."""
    ordered = sorted(values)
    chosen = np.arange(1, 1 << len(values))[:, None] >> np.arange(len(values)) & 1 == 1
    dropped = np.zeros((len(chosen), graph.num_values))
    dropped[:, ordered] = chosen
    sets = tuple(tuple(compress(ordered, row)) for row in chosen.tolist())
    return _candidates(graph, sets, dropped, _runs_of_all(graph, ordered, chosen))


def _runs_of_all(graph: BlockGraph, values: Sequence[int], dropped: NDArray[np.bool_]) -> Vector:
    """Return :func:`mimose.menu.runs_again` of many sets at once.

    Args:
        graph: The block.
        values: The values of which sets are made.
        dropped: A row a set, a column each of these values: whether it is dropped.
    """
    runs = np.zeros((len(dropped), len(graph.operators)))
    columns = {value: column for column, value in enumerate(values)}
    kept = graph.saved.difference(values)
    held = np.zeros_like(dropped)
    left = Counter(value for value in graph.uses if value in columns)
    for value in graph.uses:
        if value not in columns:
            continue
        there, made = ~dropped | held, np.zeros_like(dropped)
        last = graph.makers[value]
        needed = {last: ~there[:, columns[value]]}
        for place in range(last, -1, -1):
            now = needed.get(place)
            if now is None:
                continue
            runs[:, place] += now
            for each in graph.operators[place].outputs:
                if each in columns:
                    made[:, columns[each]] |= now
            for each in graph.operators[place].inputs:
                if each not in kept:
                    more = now & ~there[:, columns[each]] if each in columns else now
                    maker = graph.makers[each]
                    needed[maker] = needed[maker] | more if maker in needed else more
        left[value] -= 1
        held |= made & dropped
        held[:, [columns[v] for v, uses in left.items() if not uses]] = False
    return runs


def _with(graph: BlockGraph, table: Candidates, value: int) -> Candidates:
    """Return the sets of a table, and each of them and the empty one with a value more."""
    more = tuple(tuple(sorted((*s, value))) for s in ((), *table.sets))
    dropped = np.vstack([table.dropped, np.zeros((1, graph.num_values)), table.dropped])
    dropped[len(table.sets) :, value] = 1.0
    runs = np.vstack([table.runs, *(_runs(graph, s) for s in more)])
    return _candidates(graph, (*table.sets, *more), dropped, runs)


def _candidates(
    graph: BlockGraph, sets: tuple[tuple[int, ...], ...], dropped: Vector, runs: Vector
) -> Candidates:
    holding = np.array([op.holds for op in graph.operators], np.float64)
    return Candidates(sets, dropped, runs, runs @ holding > 0)
