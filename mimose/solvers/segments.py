"""Flat segments: Chen's bound on a segment's size, and segments of equal length.

Chen, Xu, Zhang and Guestrin, "Training Deep Nets with Sublinear Memory Cost", 2016, arXiv
1604.06174. A segmentation is a list of ``(first, last)`` blocks that covers every block that may be
recomputed, in order; :func:`to_plan` makes a plan of it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence

from mimose.plan import Plan, Region

Segments = list[tuple[int, int]]


def chen(
    sizes: Sequence[int],
    bound: int,
    candidates: Collection[int] | None = None,
    cuts: Collection[int] = (),
) -> Segments:
    """Return the segments of Chen's Algorithm 3 for one bound.

    Sizes are summed up in order; a candidate at which the sum exceeds the bound ends a segment:
    its output is stored, all else is dropped and recomputed.

    Args:
        sizes: Size of what each block computes.
        bound: The bound, B in the paper.
        candidates: Blocks after which a segment may end, all by default.
        cuts: Numbers ``c`` such that no segment may hold both block ``c - 1`` and ``c``.
    """
    return _chen(sizes, bound, candidates, cuts)[0]


def all_chen(
    sizes: Sequence[int],
    candidates: Collection[int] | None = None,
    cuts: Collection[int] = (),
) -> Iterator[Segments]:
    """Yield each segmentation that some bound of Algorithm 3 gives, shortest segments first.

    The paper searches a grid of bounds; this goes from each bound to the least greater one that
    changes anything. Arguments are those of :func:`chen`.
    """
    bound: int | None = -1
    while bound is not None:
        segments, bound = _chen(sizes, bound, candidates, cuts)
        yield segments


def _chen(
    sizes: Sequence[int],
    bound: int,
    candidates: Collection[int] | None,
    cuts: Collection[int],
) -> tuple[Segments, int | None]:
    """Return the segments and the next greater bound at which they change, None if there is none.

    With a greater bound below the least sum that ended a segment, every segment ends where it did.
    """
    segments: Segments = []
    first, total = 0, 0
    following: int | None = None
    last = len(sizes) - 1
    for block, size in enumerate(sizes):
        total += size
        forced = block == last or block + 1 in cuts
        if not forced:
            if total <= bound or (candidates is not None and block not in candidates):
                continue
            following = total if following is None else min(following, total)
        segments.append((first, block))
        first, total = block + 1, 0
    return segments, following


def equal(num_blocks: int, count: int) -> Segments:
    """Return ``count`` segments whose numbers of blocks differ by at most one, longer ones first.

    Raises:
        ValueError: If ``count`` is not from 1 to ``num_blocks``.
    """
    _check_count(num_blocks, count)
    short, longer = divmod(num_blocks, count)
    segments: Segments = []
    first = 0
    for index in range(count):
        last = first + short - (index >= longer)
        segments.append((first, last))
        first = last + 1
    return segments


def periodic(num_blocks: int, count: int) -> Segments:
    """Return ``count`` segments as PyTorch's ``checkpoint_sequential`` cuts them.

    All are ``num_blocks // count`` long but the last, which takes what is left.

    Raises:
        ValueError: If ``count`` is not from 1 to ``num_blocks``.
    """
    _check_count(num_blocks, count)
    length = num_blocks // count
    firsts = range(0, length * count, length)
    return [(f, f + length - 1) for f in firsts[:-1]] + [(firsts[-1], num_blocks - 1)]


def sqrt_count(num_blocks: int, internal: float, inputs: float) -> int:
    """Return the number of equal segments that takes the least memory.

    ``c`` checkpoints of ``inputs`` bytes and one segment of ``num_blocks / c`` blocks of
    ``internal`` bytes each are least at ``c = sqrt(num_blocks * internal / inputs)``.

    Args:
        num_blocks: Number of blocks.
        internal: Bytes that a block computes (mean).
        inputs: Bytes of a block's input (mean).

    Returns:
        The number, rounded, from 1 to ``num_blocks``.
    """
    if inputs <= 0:
        return num_blocks
    return min(max(round(math.sqrt(num_blocks * internal / inputs)), 1), num_blocks)


def to_plan(
    num_blocks: int,
    segments: Segments,
    *,
    keep_last: bool = False,
    cuts: Collection[int] = (),
    keep: Collection[int] = (),
) -> Plan:
    """Return the plan that recomputes each segment as one region.

    Args:
        num_blocks: Number of blocks.
        segments: The segments.
        keep_last: Keep the last segment, whose backward comes first.
        cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and ``c``: a segment
            is split there.
        keep: Blocks to keep: a segment is split around them.
    """
    chosen = segments[:-1] if keep_last else segments
    pieces = []
    for first, last in chosen:
        start = first
        for block in range(first, last + 1):
            if block in keep:
                pieces.append((start, block - 1))
                start = block + 1
            elif block + 1 in cuts:
                pieces.append((start, block))
                start = block + 1
        pieces.append((start, last))
    return Plan(num_blocks, tuple(Region(f, e) for f, e in pieces if f <= e))


def _check_count(num_blocks: int, count: int) -> None:
    if not 1 <= count <= num_blocks:
        raise ValueError(f"{num_blocks} blocks make 1 to {num_blocks} segments, not {count}")
