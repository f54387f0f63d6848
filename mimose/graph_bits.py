"""A block's graph with sets of its values as bits, so that questions about many sets take little.

Planners ask of hundreds of sets of values what making them again takes, and after each sample more
for nearly the same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mimose.menu import BlockGraph

_MOST_GRAPHS, _MOST_ASKED = 256, 1 << 13


def bits_of(values: Iterable[int]) -> int:
    """Return a set of values as bits."""
    bits = 0
    for value in values:
        bits |= 1 << value
    return bits


def values_in(bits: int) -> Iterator[int]:
    """Yield the values of such a set, in order."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


class GraphBits:
    """A graph with sets of values as bits, and what was worked out of it.

    Attributes:
        inputs: What each operator reads.
        outputs: What it makes.
        saved: The values that are saved.
        fixed: Those of them that are held by others.
        uses: The graph's uses.
        last: For each saved value the place of its last use.
        over: For each use the values that are not used any more after it.
        droppable: Those that can be made again once they are gone.
    """

    def __init__(self, graph: BlockGraph) -> None:
        self.inputs = [bits_of(op.inputs) for op in graph.operators]
        self.outputs = [bits_of(op.outputs) for op in graph.operators]
        self.saved, self.fixed = bits_of(graph.saved), bits_of(graph.fixed)
        self.uses = graph.uses
        self.last = {value: moment for moment, value in enumerate(graph.uses)}
        self.over = [0] * len(graph.uses)
        for value, moment in self.last.items():
            self.over[moment] |= 1 << value
        self._makers = graph.makers
        self._above = [0] * graph.num_values
        self._known: dict[tuple[int, int], tuple[int, ...]] = {}
        able = 0
        for operator, inputs, outputs in zip(graph.operators, self.inputs, self.outputs):
            above = inputs
            for value in operator.inputs:
                above |= self._above[value]
            for value in operator.outputs:
                self._above[value] = above
            if operator.repeatable and not inputs & ~(able | self.saved):
                able |= outputs
        self.droppable = frozenset(values_in(able & self.saved & ~self.fixed))

    def remaking(self, value: int, there: int) -> tuple[int, ...]:
        """Return what :meth:`mimose.menu.BlockGraph.remaking` does."""
        key = value, there & self._above[value]
        found = self._known.get(key)
        if found is None:
            needed, pending = 0, 1 << self._makers[value]
            while pending:
                # The last one first: what it reads was made before it, so that none comes twice.
                place = pending.bit_length() - 1
                pending ^= 1 << place
                needed |= 1 << place
                for each in values_in(self.inputs[place] & ~there):
                    pending |= 1 << self._makers[each]
            if len(self._known) >= _MOST_ASKED:
                self._known.clear()
            found = self._known[key] = tuple(values_in(needed))
        return found

    def releases(self, places: Sequence[int], dropped: int) -> list[int]:
        """Return what :func:`mimose.menu.releases` does."""
        found, later = [0] * len(places), 0
        made = 0
        for place in places:
            made |= self.outputs[place]
        for turn in reversed(range(len(places))):
            touched = self.inputs[places[turn]] | self.outputs[places[turn]]
            found[turn] = touched & made & ~dropped & ~later
            later |= touched
        return found


@lru_cache(maxsize=_MOST_GRAPHS)
def bits_for(graph: BlockGraph) -> GraphBits:
    """Return what there is of a graph; equal graphs share one."""
    return GraphBits(graph)
