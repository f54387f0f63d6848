"""How many bytes the CUDA caching allocator reserves for a set of tensors, beyond their own.

Requests of up to 1 MiB are cut from segments of 2 MiB, those below 10 MiB from segments of 20 MiB,
and larger ones are rounded up to 2 MiB (PyTorch's ``CUDACachingAllocator``). A segment's rest that
fits no other tensor is lost: of tensors of 0.7 MiB two fit into a small segment, which wastes 30 %.
How much is lost depends on the sizes and so jumps with the length of a batch; no margin learned at
one length says anything about the next, but the sizes do.

The segments needed are counted by first fit, largest tensors first, many equal ones at a time. The
allocator itself takes the best fit in the order of the requests. For equal tensors that is the
same. In general it needs between 9/11 and 3/2 of as many segments of either kind, give or take two;
for the layers of BERT-base at 16 to 512 tokens it is within 7 % of the bytes, in the mean 0.5 %.

Segments stay reserved after a step, and the next one uses those that suit it. What it must reserve
anew follows from what both need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROUND = 512
SMALL = 1 << 20
SMALL_SEGMENT = 2 << 20
LARGE = 10 << 20
LARGE_SEGMENT = 20 << 20
LARGE_ROUND = 2 << 20


@dataclass(frozen=True, slots=True)
class Segments:
    """What the allocator holds from the device.

    Attributes:
        small: Number of segments for small requests.
        medium: Number of segments for medium ones.
        large: Sizes of segments for one large tensor each and how many there are, largest first.
    """

    small: int = 0
    medium: int = 0
    large: tuple[tuple[int, int], ...] = ()

    @property
    def bytes(self) -> int:
        """Bytes reserved."""
        large = sum(size * count for size, count in self.large)
        return SMALL_SEGMENT * self.small + LARGE_SEGMENT * self.medium + large

    def beyond(self, cached: Segments) -> Segments:
        """Return what must be reserved anew where ``cached`` is at hand.

        A large tensor takes a segment of its size or more, the largest tensor the largest segment.
        Left out is what depends on the order of requests: that smaller tensors may be cut from
        large segments, and that an early tensor may take one that a later, larger one needs.
        """
        missing = []
        free = list(cached.large)
        for size, count in self.large:
            while count and free and free[0][0] >= size:
                length, number = free[0]
                taken = min(count, number)
                count -= taken
                if taken == number:
                    free.pop(0)
                else:
                    free[0] = length, number - taken
            if count:
                missing.append((size, count))
        small = max(0, self.small - cached.small)
        return Segments(small, max(0, self.medium - cached.medium), tuple(missing))

    def plus(self, more: Segments) -> Segments:
        """Return these segments and ``more``."""
        large: dict[int, int] = {}
        for size, count in (*self.large, *more.large):
            large[size] = large.get(size, 0) + count
        ordered = tuple(sorted(large.items(), reverse=True))
        return Segments(self.small + more.small, self.medium + more.medium, ordered)


def segments(sizes: Sequence[int], counts: Sequence[int]) -> Segments:
    """Return the segments reserved for ``counts[i]`` tensors of ``sizes[i]`` bytes each.

    Args:
        sizes: Sizes of tensors in bytes.
        counts: How many there are of each.
    """
    small: list[tuple[int, int]] = []
    medium: list[tuple[int, int]] = []
    large: dict[int, int] = {}
    for size, count in zip(sizes, counts):
        if count <= 0 or size <= 0:
            continue
        rounded = round_up(size, ROUND)
        if rounded <= SMALL:
            small.append((rounded, count))
        elif rounded < LARGE:
            medium.append((rounded, count))
        else:
            length = round_up(rounded, LARGE_ROUND)
            large[length] = large.get(length, 0) + count
    return Segments(
        _segments(small, SMALL_SEGMENT),
        _segments(medium, LARGE_SEGMENT),
        tuple(sorted(large.items(), reverse=True)),
    )


def allocated_bytes(sizes: Sequence[int], counts: Sequence[int]) -> int:
    """Return the bytes allocated to ``counts[i]`` tensors of ``sizes[i]`` bytes each."""
    return sum(round_up(s, ROUND) * n for s, n in zip(sizes, counts) if n > 0)


def round_up(value: int, unit: int) -> int:
    """Return ``value`` rounded up to a multiple of ``unit``."""
    return -(-value // unit) * unit


def _segments(tensors: list[tuple[int, int]], segment: int) -> int:
    """Return how many segments hold the tensors, each a size and how many there are of it."""
    tensors.sort(reverse=True)
    sizes = [size for size, _ in tensors]
    left = [count for _, count in tensors]
    segments = 0
    while True:
        room = segment
        used: list[tuple[int, int]] = []
        for index, size in enumerate(sizes):
            number = min(left[index], room // size)
            if number:
                used.append((index, number))
                room -= number * size
        if not used:
            return segments
        # The same filling again, as often as there are tensors for it.
        times = min(left[index] // number for index, number in used)
        for index, number in used:
            left[index] -= number * times
        segments += times
