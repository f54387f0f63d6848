"""The allocator model against slow, readable references of the same rules."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.devices.allocator import AllocatorModel
from mimose.units import KIB, MIB


@dataclass(eq=False)
class Block:
    size: int
    live: bool = False
    mapped: bool = True


@dataclass(eq=False)
class Segment:
    small: bool
    blocks: list[Block]

    @property
    def wholly_free(self) -> bool:
        return len(self.blocks) == 1 and not self.blocks[0].live


@dataclass
class Reference:
    """Segments as plain lists, searched from end to end."""

    limit: int | None
    segments: list[Segment] = field(default_factory=list)
    num_alloc_retries: int = 0
    num_ooms: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0

    @property
    def allocated(self) -> int:
        return sum(b.size for s in self.segments for b in s.blocks if b.live)

    @property
    def reserved(self) -> int:
        return sum(b.size for s in self.segments for b in s.blocks)

    def malloc(self, request: int) -> Block | None:
        size = max(512, -(-request // 512) * 512)
        small = size <= MIB
        block = self.find(size, small)
        if block is None and self.reserve(size, small) is None:
            self.release_cache()
            self.num_alloc_retries += 1
            if self.reserve(size, small) is None:
                self.num_ooms += 1
                return None
        block = block or self.find(size, small)
        assert block is not None
        rest = block.size - size
        if (rest >= 512) if small else (rest > MIB):
            blocks = self.owner(block).blocks
            blocks.insert(blocks.index(block) + 1, Block(rest))
            block.size = size
        block.live = True
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def find(self, size: int, small: bool) -> Block | None:
        fitting = [
            b
            for s in self.segments
            for b in s.blocks
            if s.small == small and not b.live and b.size >= size
        ]
        return min(fitting, key=lambda b: b.size, default=None)  # the first of equals

    def reserve(self, size: int, small: bool) -> Segment | None:
        if small:
            num_bytes = 2 * MIB
        elif size < 10 * MIB:
            num_bytes = 20 * MIB
        else:
            num_bytes = -(-size // (2 * MIB)) * 2 * MIB
        if self.limit is not None and self.reserved + num_bytes > self.limit:
            return None
        self.segments.append(Segment(small, [Block(num_bytes)]))
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self.segments[-1]

    def free(self, block: Block) -> None:
        segment = self.owner(block)
        block.live = False
        merged: list[Block] = []
        for each in segment.blocks:
            if merged and not merged[-1].live and not each.live:
                merged[-1].size += each.size
            else:
                merged.append(each)
        segment.blocks = merged

    def release_cache(self) -> None:
        self.segments = [s for s in self.segments if not s.wholly_free]

    def owner(self, block: Block) -> Segment:
        return next(s for s in self.segments if any(b is block for b in s.blocks))

    @property
    def free_sizes(self) -> list[int]:
        return [b.size for s in self.segments for b in s.blocks if not b.live]

    @property
    def num_segments(self) -> int:
        return len(self.segments)


ENDLESS = 1 << 48


@dataclass
class Expandable:
    """Two endless ranges of addresses as plain lists: live, free and unmapped blocks."""

    limit: int | None
    num_alloc_retries: int = 0
    num_ooms: int = 0
    peak_allocated: int = 0
    peak_reserved: int = 0

    def __post_init__(self) -> None:
        self.pools = {small: [Block(ENDLESS, mapped=False)] for small in (True, False)}

    def blocks(self) -> list[Block]:
        return [b for pool in self.pools.values() for b in pool]

    @property
    def allocated(self) -> int:
        return sum(b.size for b in self.blocks() if b.live)

    @property
    def reserved(self) -> int:
        return sum(b.size for b in self.blocks() if b.mapped)

    @property
    def free_sizes(self) -> list[int]:
        return [b.size for b in self.blocks() if b.mapped and not b.live]

    @property
    def num_segments(self) -> int:
        return sum(
            len("".join("m" if b.mapped else " " for b in pool).split())
            for pool in self.pools.values()
        )

    def malloc(self, request: int) -> Block | None:
        size = max(512, -(-request // 512) * 512)
        small = size <= MIB
        block = self.find(size, small)
        if block is None:
            if self.over(size, small):
                self.release_cache()
                self.num_alloc_retries += 1
                if self.over(size, small):
                    self.num_ooms += 1
                    return None
            block = self.expand(size, small)
        pool = self.pools[small]
        if block.size > size:
            pool.insert(pool.index(block) + 1, Block(block.size - size))
            block.size = size
        block.live = True
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def find(self, size: int, small: bool) -> Block | None:
        pool = self.pools[small]
        free = sorted((b for b in pool if b.mapped and not b.live), key=lambda b: b.size)
        fitting = [b for b in free if b.size >= size]

        def room(block: Block) -> int:
            after = pool[pool.index(block) + 1]
            return block.size + (0 if after.mapped else after.size)

        for block, larger in pairwise(fitting):
            if room(larger) >= room(block):
                return block
        return fitting[-1] if fitting else None

    def over(self, size: int, small: bool) -> bool:
        tested = (
            2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        )
        return self.limit is not None and self.reserved + tested > self.limit

    def expand(self, size: int, small: bool) -> Block:
        pool, page = self.pools[small], (2 if small else 20) * MIB
        for start, block in enumerate(pool):
            stretch = []
            for each in pool[start:]:
                if each.live:
                    break
                stretch.append(each)
            # A free block is a start only where memory can be mapped right after it.
            mappable = block in stretch and (not block.mapped or len(stretch) > 1)
            if mappable and sum(b.size for b in stretch) >= size:
                break
        have = 0
        for each in stretch:
            if have >= size:
                break
            if not each.mapped:
                mapped = min(each.size, -(-(size - have) // page) * page)
                if mapped < each.size:
                    rest = Block(each.size - mapped, mapped=False)
                    pool.insert(pool.index(each) + 1, rest)
                each.size, each.mapped = mapped, True
            have += each.size
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        self.merge()
        return block

    def free(self, block: Block) -> None:
        block.live = False
        self.merge()

    def release_cache(self) -> None:
        for small, pool in self.pools.items():
            page = (2 if small else 20) * MIB
            address, parts = 0, []
            for block in pool:
                end = address + block.size
                first, last = -(-address // page) * page, end // page * page
                if block.live or not block.mapped or first >= last:
                    parts.append(block)
                else:
                    parts += [
                        Block(first - address),
                        Block(last - first, mapped=False),
                        Block(end - last),
                    ]
                address = end
            pool[:] = [part for part in parts if part.size]
        self.merge()

    def merge(self) -> None:
        for pool in self.pools.values():
            merged: list[Block] = []
            for each in pool:
                last = merged[-1] if merged else None
                if last and not last.live and not each.live and last.mapped == each.mapped:
                    last.size += each.size
                else:
                    merged.append(each)
            pool[:] = merged


EDGES = [
    1,
    512,
    513,
    MIB - 512,
    MIB,
    MIB + 1,
    2 * MIB,
    10 * MIB - 512,
    10 * MIB,
    11 * MIB,
    19 * MIB,
]
requests = st.one_of(
    st.sampled_from(EDGES),
    st.integers(1, 4 * KIB),
    st.integers(1, 2 * MIB),
    st.integers(1, 40 * MIB),
)
limits = st.one_of(
    st.none(), st.integers(0, 150 * MIB), st.integers(0, 30).map(lambda n: n * 2 * MIB)
)
actions = st.one_of(
    st.tuples(st.just("malloc"), requests),
    st.tuples(st.just("malloc"), requests),
    st.tuples(st.just("free"), st.integers(0, 1000)),
    st.tuples(st.just("limit"), limits),
    st.tuples(st.just("release"), st.none()),
)


@pytest.mark.parametrize("kind", [Reference, Expandable])
@settings(max_examples=150, deadline=None)
@given(limit=limits, sequence=st.lists(actions, max_size=120))
def test_same_figures_after_every_request(kind, limit, sequence) -> None:
    model, reference = AllocatorModel(limit, expandable=kind is Expandable), kind(limit)
    live = []
    for action, value in sequence:
        if action == "malloc":
            handle, block = model.malloc(value), reference.malloc(value)
            assert (handle is None) == (block is None)
            if handle is not None:
                live.append((handle, block))
        elif action == "free" and live:
            handle, block = live.pop(value % len(live))
            model.free(handle)
            reference.free(block)
        elif action == "limit":
            model.set_limit(value)
            reference.limit = value
        elif action == "release":
            model.release_cache()
            reference.release_cache()
        stats = model.stats()
        assert (
            stats.allocated,
            stats.reserved,
            stats.peak_allocated,
            stats.peak_reserved,
            stats.num_alloc_retries,
            stats.num_ooms,
            stats.num_segments,
            stats.largest_free_block,
        ) == (
            reference.allocated,
            reference.reserved,
            reference.peak_allocated,
            reference.peak_reserved,
            reference.num_alloc_retries,
            reference.num_ooms,
            reference.num_segments,
            max(reference.free_sizes, default=0),
        )
