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


@dataclass(slots=True)
class _Seen:
    """One block.

    Attributes:
        graph: Its graph; None once it was not the same at all sizes.
        bytes: By size, of each value.
        seconds: By size, of each operator the shortest time; warm-up is left out.
        levels: By size, the peaks within its backward, as far as they were measured.
    """

    graph: BlockGraph | None
    bytes: dict[Size, tuple[int, ...]] = field(default_factory=dict)
    seconds: dict[Size, tuple[float, ...]] = field(default_factory=dict)
    levels: dict[Size, tuple[int, ...]] = field(default_factory=dict)


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
        levels: A row a size, a column a use of a value: the highest peak of the blocks, NaN for a
            size of which none was measured.
    """

    blocks: tuple[int, ...]
    graph: BlockGraph
    sizes: tuple[Size, ...]
    bytes: Matrix
    seconds: Matrix
    levels: Matrix


class Traces:
    """Keeps what was traced, block by block.

    A block whose graph depends on the size is left alone: which of its graphs a size yet unseen
    has cannot be told.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}

    def learn(self, traced: Sequence[Traced], size: Size, *, warm_up: bool) -> int:
        """Take what one step has shown.

        Args:
            traced: What was seen inside blocks.
            size: The step's size.
            warm_up: Whether the step's times say nothing, since it was the first.

        Returns:
            How many figures were new.
        """
        new = 0
        for one in traced:
            seen = self._seen.setdefault(one.block, _Seen(one.graph))
            if seen.graph != one.graph:
                if seen.bytes.keys() - {size}:
                    seen.graph = None
                    continue
                # The same size looks different now: the model has changed.
                seen = self._seen[one.block] = _Seen(one.graph)
            if size not in seen.bytes:
                new += len(one.bytes)
                if len(seen.bytes) >= _CAPACITY:
                    oldest = next(iter(seen.bytes))
                    del seen.bytes[oldest]
                    seen.seconds.pop(oldest, None)
                    seen.levels.pop(oldest, None)
            seen.bytes[size] = one.bytes
            if one.levels:
                new += len(one.levels) * (size not in seen.levels)
                seen.levels[size] = one.levels
            if not warm_up and any(one.seconds):
                new += len(one.seconds) * (size not in seen.seconds)
                known = seen.seconds.get(size, one.seconds)
                seen.seconds[size] = tuple(map(min, known, one.seconds))
        return new

    def alike(self) -> list[Alike]:
        """Return the blocks of which times are known, equal ones together."""
        groups: dict[Any, list[int]] = {}
        for block, seen in self._seen.items():
            if seen.graph is not None and seen.seconds:
                key = seen.graph, frozenset(seen.bytes.items())
                groups.setdefault(key, []).append(block)
        return [self._together(blocks) for blocks in groups.values()]

    def _together(self, blocks: list[int]) -> Alike:
        first = self._seen[blocks[0]]
        assert first.graph is not None, "it is one of a group"
        sizes = tuple(first.bytes)
        seconds = np.full((len(sizes), len(first.graph.operators)), np.nan)
        for row, size in enumerate(sizes):
            known = [self._seen[b].seconds[size] for b in blocks if size in self._seen[b].seconds]
            if known:
                seconds[row] = np.median(np.array(known), axis=0)
        levels = np.full((len(sizes), len(first.graph.uses)), np.nan)
        for row, size in enumerate(sizes):
            peaks = [self._seen[b].levels[size] for b in blocks if size in self._seen[b].levels]
            if peaks:
                levels[row] = np.array(peaks).max(axis=0)
        values = np.array([first.bytes[size] for size in sizes], np.float64)
        return Alike(tuple(sorted(blocks)), first.graph, sizes, values, seconds, levels)

    def to_json(self) -> dict[str, Any]:
        """Return what was traced, as plain data; each graph once."""
        graphs: dict[BlockGraph, int] = {}
        blocks = [
            {
                "block": block,
                "graph": None if seen.graph is None else graphs.setdefault(seen.graph, len(graphs)),
                "bytes": [[list(size), list(values)] for size, values in seen.bytes.items()],
                "seconds": [[list(size), list(times)] for size, times in seen.seconds.items()],
                "levels": [[list(size), list(peaks)] for size, peaks in seen.levels.items()],
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
            for size, peaks in item["levels"]:
                seen.levels[_size(size)] = _size(peaks)
            self._seen[int(item["block"])] = seen
        return self


def _size(extents: Sequence[Any]) -> Size:
    return tuple(int(x) for x in extents)


def _graph_to_json(graph: BlockGraph) -> dict[str, Any]:
    return {
        "operators": [
            [op.name, list(op.inputs), list(op.outputs), op.repeatable] for op in graph.operators
        ],
        "uses": list(graph.uses),
        "fixed": sorted(graph.fixed),
    }


def _graph_from_json(data: Mapping[str, Any]) -> BlockGraph:
    operators = tuple(
        Operator(str(name), _size(inputs), _size(outputs), bool(repeatable))
        for name, inputs, outputs, repeatable in data["operators"]
    )
    return BlockGraph(operators, _size(data["uses"]), frozenset(_size(data["fixed"])))
