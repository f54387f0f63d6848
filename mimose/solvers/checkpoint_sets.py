"""Schedules that hold a set of checkpoints and recompute what lies between them, on any graph.

Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv:1604.06174, cut a chain
into segments. On other graphs Jain et al. (MLSys 2020) cut at *articulation points*, the forward
nodes that no edge passes by, or take the nodes in topological order for a chain ("linearized").
Held are the checkpoints, until their last use. A segment is recomputed once, as soon as anything
in it is needed, and its results are held until their last use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from math import isqrt

from mimose.solvers.graph import Graph
from mimose.solvers.rounding import Tables, complete

_BOUNDS = 24


def articulation_points(graph: Graph) -> list[int]:
    """Return the forward nodes, the last one left out, that no forward edge passes by."""
    forward = _forward(graph)
    return [
        v
        for v in forward[:-1]
        if not any(i < v < k for i, k in graph.edges if k not in graph.backward)
    ]


def rivals(graph: Graph) -> Iterator[tuple[str, Tables]]:
    """Yield the schedules of all segmenting strategies with their names.

    Square root of n segments, every number of equal segments, and Chen's greedy rule (a checkpoint
    once so many bytes have gathered) for many bounds; at articulation points and linearized; the
    last segment recomputed or kept.
    """
    forward = _forward(graph)
    sizes = {i: graph.memory[i] for i in forward}
    seen: set[frozenset[int]] = set()
    for where, points in (("", articulation_points(graph)), ("linearized ", forward[:-1])):
        if not points:
            continue
        chosen = [("sqrt(n)", equal(points, isqrt(len(points))))]
        chosen += [("equal", equal(points, count)) for count in range(1, len(points) + 1)]
        total = sum(sizes.values())
        chosen += [
            ("greedy", greedy(points, sizes, total * step // _BOUNDS)) for step in range(_BOUNDS)
        ]
        for name, held in chosen:
            for last in (
                frozenset[int](),
                frozenset(i for i in forward if i > max(held, default=0)),
            ):
                if held | last not in seen:
                    seen.add(held | last)
                    yield where + name, hold(graph, held | last)


def equal(points: Sequence[int], count: int) -> frozenset[int]:
    """Return ``count`` checkpoints evenly spread over the points."""
    count = max(min(count, len(points)), 1)
    return frozenset(points[(j + 1) * len(points) // count - 1] for j in range(count))


def greedy(points: Sequence[int], sizes: dict[int, int], bound: int) -> frozenset[int]:
    """Return checkpoints at each point up to which more than ``bound`` bytes have gathered."""
    held, gathered, allowed = set(), 0, set(points)
    for node, size in sizes.items():
        gathered += size
        if node in allowed and gathered > bound:
            held.add(node)
            gathered = 0
    return frozenset(held)


def hold(graph: Graph, checkpoints: Collection[int]) -> Tables:
    """Return the schedule that holds these forward nodes and recomputes the others by segments."""
    users, forward = graph.users(), _forward(graph)
    until = [max((graph.stage[k] for k in ks), default=-1) for ks in users]
    needed = [
        min((graph.stage[k] for k in ks if k in graph.backward), default=graph.num_stages)
        for ks in users
    ]
    start: dict[int, int] = {}
    segment: list[int] = []
    for i in [*forward, -1]:
        if i in checkpoints or i == -1:
            first = min((needed[j] for j in segment), default=0)
            start |= dict.fromkeys(segment, first)
            segment = []
        else:
            segment.append(i)
    held_through = graph.kept_until()
    kept = []
    for t in range(graph.num_stages):
        row = [graph.stage[i] < t <= until[i] for i in range(len(graph))]
        for i, first in start.items():
            row[i] = row[i] and (t <= held_through[i] or t > first)
        kept.append(row)
    return complete(graph, kept, 0.5, forward_again=False)


def _forward(graph: Graph) -> list[int]:
    return [i for i in range(len(graph)) if i not in graph.backward]
