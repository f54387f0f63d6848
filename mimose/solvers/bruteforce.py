"""Every plan of a small chain, one by one: what the solvers are tested against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from mimose.plan import Plan, Region
from mimose.solvers.chain import Chain, children, simulate

MOST_BLOCKS = 7
"""Seven blocks have 231,168 plans, eight have 2.2 million."""


class Found(NamedTuple):
    """A plan and its time."""

    plan: Plan
    makespan: float


def all_plans(num_blocks: int) -> Iterator[Plan]:
    """Yield every plan of ``num_blocks`` blocks.

    Raises:
        ValueError: If there are more than :data:`MOST_BLOCKS` blocks.
    """
    if num_blocks > MOST_BLOCKS:
        raise ValueError(f"brute force is for at most {MOST_BLOCKS} blocks, not {num_blocks}")
    for regions in _trees(0, num_blocks - 1):
        yield Plan(num_blocks, regions)


@cache
def _trees(first: int, last: int) -> tuple[tuple[Region, ...], ...]:
    if first > last:
        return ((),)
    trees = list(_trees(first + 1, last))
    for end in range(first, last + 1):
        trees += [
            (region, *rest) for region in _whole(first, end) for rest in _trees(end + 1, last)
        ]
    return tuple(trees)


@cache
def _whole(first: int, last: int) -> tuple[Region, ...]:
    """Return every region of exactly these blocks."""
    inner = list(_trees(first + 1, last))
    for end in range(first, last):
        inner += [
            (region, *rest) for region in _whole(first, end) for rest in _trees(end + 1, last)
        ]
    return tuple(Region(first, last, regions) for regions in inner)


def best_plan(chain: Chain, memory: int, *, simulated: bool = False) -> Found | None:
    """Return a fastest plan of a small chain within ``memory``, None if there is none.

    Args:
        chain: The chain.
        memory: Bytes, the chain's input included.
        simulated: Whether memory is that of :func:`mimose.solvers.chain.simulate` rather than
            Rotor's conditions (:func:`least_memory`).
    """
    best: Found | None = None
    for plan in all_plans(chain.num_blocks):
        if not chain.allows(plan):
            continue
        seconds, peak = simulate(chain, plan)
        if best is not None and seconds >= best.makespan:
            continue
        if (peak if simulated else least_memory(chain, plan)) <= memory:
            best = Found(plan, seconds)
    return best


def least_memory(chain: Chain, plan: Plan) -> int:
    """Return the least memory that Rotor's own conditions ask for, the chain's input included.

    They are a little weaker than the simulation: where a block is kept while a gradient larger
    than its own output waits, they do not count both at the peak of its forward. And they are a
    little stronger: what a forgotten forward needs is asked for each block, forgotten or not.
    """
    items = children(plan.regions, 0, plan.num_blocks - 1)
    return chain.x[0] + _need(chain, [*items, chain.num_blocks], chain.num_blocks)


def _need(chain: Chain, items: Sequence[Region | int], last: int) -> int:
    """Return the memory for stages up to ``last``, which are ``items``, beyond their input."""
    item, rest = items[0], items[1:]
    first = item if isinstance(item, int) else item.first
    if first == last:
        if isinstance(item, int):
            return chain.leaf(first)
        return _need(chain, [first], first)
    if not rest and not isinstance(item, int):
        # The whole of a recomputed region again: it runs once.
        return _need(chain, children(item.inner, first, last), last)
    need = chain.end(last) + max(chain.forgotten(j, j == first) for j in range(first, last))
    if isinstance(item, int):
        need = max(need, chain.leaf(first))
        return max(need, chain.saved[first] + _need(chain, rest, last))
    inside = _need(chain, children(item.inner, first, item.last), item.last)
    return max(need, inside, chain.x[item.last + 1] + _need(chain, rest, last))
