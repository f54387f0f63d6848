"""What plans are made of: regions that are recomputed, and blocks that let single values go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive blocks ``first..last`` (both included) that are recomputed as one.

    Attributes:
        first: Number of the region's first block.
        last: Number of its last block.
        inner: Regions within this one that are recomputed again while it is; blocks in none of
            them are kept then. Sorted, disjoint, and none as large as the region itself.
    """

    first: int
    last: int
    inner: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"a region runs from a block to the same or a later one, not {self}")
        check_order(self.inner, self.first, self.last)
        if any(r.first == self.first and r.last == self.last for r in self.inner):
            raise ValueError(f"region {self.first}-{self.last} holds itself as an inner region")

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Remade:
    """A kept block that lets some of the values go that it saves for backward.

    Values are numbered as in its :class:`mimose.menu.BlockGraph`.

    Attributes:
        block: The block's number.
        dropped: Values that are made again, sorted.
        offloaded: Values that are in the host's memory meanwhile, sorted.
        graph: Digest of that graph, which tells whether the numbers mean the same when the plan is
            carried out; empty where nobody asks.
    """

    block: int
    dropped: tuple[int, ...] = ()
    offloaded: tuple[int, ...] = ()
    graph: str = ""

    def __post_init__(self) -> None:
        values = self.dropped + self.offloaded
        ordered = all(list(v) == sorted(v) for v in (self.dropped, self.offloaded))
        if not values or len(set(values)) < len(values) or min(values) < 0 or not ordered:
            raise ValueError(
                f"a block drops or offloads at least one value, each once and in order, not {self}"
            )


def check_order(regions: Sequence[Region], first: int, last: int) -> None:
    """Check that regions are in order, disjoint and within blocks ``first..last``.

    Raises:
        ValueError: If they are not.
    """
    previous = first - 1
    for region in regions:
        if region.first <= previous or region.last > last:
            raise ValueError(
                f"regions must be in order, disjoint and within blocks {first}-{last}; "
                f"{region.first}-{region.last} is not"
            )
        previous = region.last


def cut(region: Region, cuts: frozenset[int]) -> Iterator[Region]:
    """Yield the pieces of a region that is split where it may not span.

    Args:
        region: The region.
        cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and block ``c``.
    """
    first = region.first
    for end in range(region.first, region.last + 1):
        if end != region.last and end + 1 not in cuts:
            continue
        piece = (first, end)
        inner: list[Region] = []
        for sub in (s for r in region.inner for s in cut(r, cuts)):
            if sub.first > end or sub.last < first:
                continue
            if (sub.first, sub.last) == piece:
                # The piece is as small as its inner region now: recomputing it once is the same.
                inner.extend(sub.inner)
            else:
                inner.append(sub)
        yield Region(first, end, tuple(inner))
        first = end + 1
