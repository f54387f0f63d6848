"""What was seen inside blocks: graphs and, by size, bytes of values and seconds of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mimose.menu import BlockGraph, Operator, Traced
from mimose.planners.mimose.features import Matrix
from mimose.records import Size

_CAPACITY = 128
_ENOUGH_SHAPES = 3


@dataclass(slots=True)
class _Seen:
    """One block.

    Attributes:
        graph: Its graph; None once it was not the same at all sizes.
        bytes: By size, of each value.
        seconds: By size, of each operator the shortest time; warm-up is left out.
        warm_up: The same of the first step, to go by while there is nothing else.
        levels: By size and whether gradients were resident, the levels within its backward as far
            as they were measured: the start of each use, then the peak of each, from the highest.
        unsure: Gradients that may have grown between a moment of its backward and the highest.
    """

    graph: BlockGraph | None
    bytes: dict[Size, tuple[int, ...]] = field(default_factory=dict)
    seconds: dict[Size, tuple[float, ...]] = field(default_factory=dict)
    warm_up: dict[Size, tuple[float, ...]] = field(default_factory=dict)
    levels: dict[tuple[Size, bool], tuple[int, ...]] = field(default_factory=dict)
    unsure: int = 0

    def level(self, size: Size, resident: bool) -> tuple[int, ...] | None:
        """Return what is known of the levels at a size, for steps of one gradient state."""
        found = self.levels.get((size, resident))
        if found is None:
            found = self.levels.get((size, not resident))
            if found is not None and resident:
                return tuple(level + self.unsure for level in found)
        return found


@dataclass(frozen=True, slots=True)
class Alike:
    """Blocks of one graph that take the same bytes at every size seen.

    Attributes:
        blocks: Their numbers.
        graph: Their graph.
        sizes: The sizes seen.
        bytes: A row a size, a column a value.
        seconds: A row a size, a column an operator: the median over the blocks, NaN for a size
            of which no time is known.
        levels: For steps that begin without gradients, and for those with them, a row a size and a
            column for the start of each use of a value and then for the peak of each, from a
            block's highest: the highest of the blocks, NaN for a size of which none is to be gone
            by.
    """

    blocks: tuple[int, ...]
    graph: BlockGraph
    sizes: tuple[Size, ...]
    bytes: Matrix
    seconds: Matrix
    levels: tuple[Matrix, Matrix]


class Traces:
    """Keeps what was traced, block by block.

    A block whose graph depends on the size is left alone: which of its graphs a size yet unseen
    has cannot be told.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def learn(
        self,
        traced: Sequence[Traced],
        size: Size,
        *,
        warm_up: bool,
        grown: Sequence[int] | None = None,
    ) -> int:
        """Take what one step has shown.

        Args:
            traced: What was seen inside blocks.
            size: The step's size.
            warm_up: Whether the step's times say nothing, since it was the first.
            grown: The gradients that have grown in the step, as
                :func:`mimose.costs.grown_gradients` has them; None if they were there before.

        Returns:
            How many figures were new, those of blocks that are alike once.
        """
        new = 0
        counted: set[tuple[str, tuple[int, ...]]] = set()
        for one in traced:
            more = self._learn(one, size, warm_up=warm_up, grown=grown)
            alike = one.graph.digest, one.bytes
            if more and alike not in counted:
                counted.add(alike)
                new += more
        return new

    def _learn(self, one: Traced, size: Size, *, warm_up: bool, grown: Sequence[int] | None) -> int:
        """Take what one block has shown; return how many figures were new."""
        new = 0
        seen = self._seen.setdefault(one.block, _Seen(one.graph))
        if seen.graph != one.graph:
            if seen.bytes.keys() - {size}:
                new += seen.graph is not None
                seen.graph = None
                return new
            # The same size looks different now: the model has changed.
            seen = self._seen[one.block] = _Seen(one.graph)
        if size not in seen.bytes:
            new += len(one.bytes)
            if len(seen.bytes) >= _CAPACITY:
                oldest = next(iter(seen.bytes))
                del seen.bytes[oldest]
                seen.seconds.pop(oldest, None)
                for resident in (False, True):
                    seen.levels.pop((oldest, resident), None)
        seen.bytes[size] = one.bytes
        if one.levels:
            key = size, grown is None
            new += len(one.levels) * (key not in seen.levels)
            if grown is not None:
                seen.unsure = grown[one.block] - grown[one.block + 1] + grown[-1]
            levels = *(one.starts or one.levels), *one.levels
            # Alike blocks differ by what there is beside them: gradients that add up, say.
            top = max(one.levels)
            seen.levels[key] = tuple(level - top for level in levels)
        if warm_up and any(one.seconds):
            seen.warm_up = {size: one.seconds}
        elif any(one.seconds):
            new += len(one.seconds) * (size not in seen.seconds)
            known = seen.seconds.get(size, one.seconds)
            seen.seconds[size] = tuple(map(min, known, one.seconds))
        return new

    def alike(self) -> list[Alike]:
        """Return the blocks of which times are known, equal ones together."""
        groups: dict[Any, list[int]] = {}
        for block, seen in self._seen.items():
            if seen.graph is not None and (seen.seconds or seen.warm_up):
                key = seen.graph, frozenset(seen.bytes.items())
                groups.setdefault(key, []).append(block)
        return [self._together(blocks) for blocks in groups.values()]

    def _together(self, blocks: list[int]) -> Alike:
        first = self._seen[blocks[0]]
        assert first.graph is not None, "it is one of a group"
        sizes = tuple(first.bytes)
        seconds = np.full((len(sizes), len(first.graph.operators)), np.nan)
        for row, size in enumerate(sizes):
            times = [self._seen[b].seconds or self._seen[b].warm_up for b in blocks]
            known = [by_size[size] for by_size in times if size in by_size]
            if known:
                seconds[row] = np.median(np.array(known), axis=0)
        values = np.array([first.bytes[size] for size in sizes], np.float64)
        uses = len(first.graph.uses)
        without, resident = (self._levels(blocks, sizes, uses, state) for state in (False, True))
        return Alike(
            tuple(sorted(blocks)), first.graph, sizes, values, seconds, (without, resident)
        )

    def _levels(
        self, blocks: list[int], sizes: tuple[Size, ...], num_uses: int, resident: bool
    ) -> Matrix:
        """Return the highest levels of some blocks by size, for steps of one gradient state.

        Those measured in steps of the other state count only where there are not enough of its own.
        """
        seen = [self._seen[b] for b in blocks]
        own = {size for size in sizes if any((size, resident) in s.levels for s in seen)}
        shapes = len({size[1:] for size in sizes})
        enough = len({size[1:] for size in own}) >= min(_ENOUGH_SHAPES, shapes)
        rows = np.full((len(sizes), 2 * num_uses), np.nan)
        for row, size in enumerate(sizes):
            if enough and size not in own:
                continue
            known = [level for s in seen if (level := s.level(size, resident)) is not None]
            if known:
                rows[row] = np.array(known).max(axis=0)
        return rows

    def to_json(self) -> dict[str, Any]:
        """Return what was traced, as plain data; each graph once."""
        graphs: dict[BlockGraph, int] = {}
        blocks = [
            {
                "block": block,
                "graph": None if seen.graph is None else graphs.setdefault(seen.graph, len(graphs)),
                "bytes": [[list(size), list(values)] for size, values in seen.bytes.items()],
                "seconds": [[list(size), list(times)] for size, times in seen.seconds.items()],
                "levels": [
                    [list(size), resident, list(levels)]
                    for (size, resident), levels in seen.levels.items()
                ],
                "unsure": seen.unsure,
            }
            for block, seen in self._seen.items()
        ]
        return {"graphs": [_graph_to_json(g) for g in graphs], "blocks": blocks}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Traces:
        """Return the traces that :meth:`to_json` wrote."""
        self = cls()
        graphs = [_graph_from_json(g) for g in data["graphs"]]
        for item in data["blocks"]:
            seen = _Seen(None if item["graph"] is None else graphs[item["graph"]])
            for size, values in item["bytes"]:
                seen.bytes[_size(size)] = tuple(int(v) for v in values)
            for size, times in item["seconds"]:
                seen.seconds[_size(size)] = tuple(float(t) for t in times)
            for size, resident, levels in item["levels"]:
                seen.levels[_size(size), bool(resident)] = _size(levels)
            seen.unsure = int(item["unsure"])
            self._seen[int(item["block"])] = seen
        return self


def _size(extents: Sequence[Any]) -> Size:
    return tuple(int(x) for x in extents)


def _graph_to_json(graph: BlockGraph) -> dict[str, Any]:
    return {
        "operators": [
            [op.name, list(op.inputs), list(op.outputs), op.repeatable, op.holds]
            for op in graph.operators
        ],
        "uses": list(graph.uses),
        "fixed": sorted(graph.fixed),
    }


def _graph_from_json(data: Mapping[str, Any]) -> BlockGraph:
    operators = tuple(
        Operator(str(name), _size(inputs), _size(outputs), bool(repeatable), bool(holds))
        for name, inputs, outputs, repeatable, holds in data["operators"]
    )
    return BlockGraph(operators, _size(data["uses"]), frozenset(_size(data["fixed"])))
