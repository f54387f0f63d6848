"""The same choice on another graph: a block that does its work in another way for some sizes.

Attention pads its mask for lengths that are no multiple of eight, say: another operator or two, and
every value behind them has another number. By their names they are found again.
"""

from __future__ import annotations

from collections.abc import Sequence

from mimose.menu import BlockGraph
from mimose.plan import Remade


def translated(remade: Remade, planned: BlockGraph, graph: BlockGraph) -> Remade | None:
    """Return what comes next to a plan's choice on another graph than it was made for.

    Args:
        remade: The choice.
        planned: The graph that it was made for.
        graph: The block's graph.

    Returns:
        The values of the same names, as far as they can go together; None if there are none.
    """
    dropped: list[int] = []
    for value in _named_alike(remade.dropped, planned, graph):
        if graph.can_drop([*dropped, value]):
            dropped.append(value)
    free = graph.saved - graph.fixed - set(dropped)
    away = [v for v in _named_alike(remade.offloaded, planned, graph) if v in free]
    if not dropped and not away:
        return None
    return Remade(remade.block, tuple(sorted(dropped)), tuple(sorted(away)), graph.digest)


def _named_alike(values: Sequence[int], planned: BlockGraph, graph: BlockGraph) -> list[int]:
    if not values:
        return []
    names, found = planned.names(), {name: v for v, name in enumerate(graph.names())}
    return [found[names[v]] for v in values if v < len(names) and names[v] in found]
