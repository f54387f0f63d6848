"""The greedy choice of blocks to recompute: Mimose's Algorithm 1, and the authors' code for it.

Xu et al., "Exploiting Input Tensor Dynamics in Activation Checkpointing for Efficient Training on
GPU", IPDPS 2023, Algorithm 1. The printed algorithm and the released code
(``buaa-hipo/mimose-transformers``, ``src/transformers/manager.py``) pick differently where blocks
differ in size; both are here, with one signature.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

SIMILAR = 0.9
"""Blocks above this share of a bucket's first (largest) block belong to the bucket."""


def printed(
    est_mem: Sequence[int],
    excess: int,
    candidates: Iterable[int] | None = None,
    order: Sequence[int] | None = None,
) -> list[int]:
    """Choose blocks by Algorithm 1 as printed (lines 3 to 21).

    Of the buckets whose largest block frees more than the excess, the one nearest to it gives its
    earliest block; where there is none, the bucket of the largest blocks does.

    Args:
        est_mem: Estimated bytes that recomputing each block frees.
        excess: Bytes to free.
        candidates: Blocks that may be chosen, all by default. Blocks that free nothing never are.
        order: A forward timestamp for each block; by default blocks are numbered in that order.

    Returns:
        The chosen blocks, first choice first; all candidates if even they free too little.
    """
    buckets = [
        _Bucket(blocks, est_mem, order) for blocks in _similar(est_mem, candidates, strict=True)
    ]
    chosen: list[int] = []
    while excess > 0 and buckets:
        # Largest first, so the last that suffices is the nearest to the excess.
        index = 0
        for i, bucket in enumerate(buckets):
            if bucket.largest() > excess:
                index = i
        block = buckets[index].take()
        if not buckets[index].by_time:
            del buckets[index]
        chosen.append(block)
        excess -= est_mem[block]
    return chosen


def authors(
    est_mem: Sequence[int],
    excess: int,
    candidates: Iterable[int] | None = None,
    order: Sequence[int] | None = None,
) -> list[int]:
    """Choose blocks as the released code does.

    It scans from the bucket of the smallest blocks upwards, earliest block first, and takes the
    first block that frees the whole excess. Where none does it falls back on the last element of
    its reversed list, the earliest block of the *smallest* bucket, against line 17 of the printed
    algorithm. Buckets are closed by "at least", not "more than", 0.9 of their first block.

    Arguments and result are those of :func:`printed`.
    """
    buckets = [
        _Bucket(blocks, est_mem, order) for blocks in _similar(est_mem, candidates, strict=False)
    ]
    chosen: list[int] = []
    while excess > 0 and buckets:
        enough = [bucket for bucket in buckets if bucket.largest() >= excess]
        if enough:
            earliest_first = reversed(enough[-1].by_time)
            chosen.append(next(b for b in earliest_first if est_mem[b] >= excess))
            break
        block = buckets[-1].take()
        if not buckets[-1].by_time:
            del buckets[-1]
        chosen.append(block)
        excess -= est_mem[block]
    return chosen


class _Bucket:
    """Blocks of similar size; hands out the earliest and knows the largest that is left."""

    def __init__(
        self, blocks: list[int], est_mem: Sequence[int], order: Sequence[int] | None
    ) -> None:
        key = None if order is None else order.__getitem__
        self.by_time = sorted(blocks, key=key, reverse=True)
        self._by_size = blocks[::-1]
        self._est_mem = est_mem
        self._taken: set[int] = set()

    def largest(self) -> int:
        while self._by_size[-1] in self._taken:
            self._by_size.pop()
        return self._est_mem[self._by_size[-1]]

    def take(self) -> int:
        block = self.by_time.pop()
        self._taken.add(block)
        return block


def _similar(
    est_mem: Sequence[int], candidates: Iterable[int] | None, *, strict: bool
) -> list[list[int]]:
    """Return the blocks in buckets of similar size, largest first in and among them."""
    allowed = range(len(est_mem)) if candidates is None else sorted(candidates)
    blocks = sorted((b for b in allowed if est_mem[b] > 0), key=lambda b: -est_mem[b])
    buckets: list[list[int]] = []
    bound = 0.0
    for block in blocks:
        size = est_mem[block]
        if not buckets or size < bound or (strict and size == bound):
            buckets.append([])
            bound = SIMILAR * size
        buckets[-1].append(block)
    return buckets
