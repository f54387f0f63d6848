"""The allocator model against a slow, readable reference of the same rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.devices.allocator import AllocatorModel
from mimose.units import KIB, MIB


@dataclass(eq=False)
class Block:
    size: int
    live: bool = False


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


@settings(max_examples=200, deadline=None)
@given(limit=limits, sequence=st.lists(actions, max_size=120))
def test_same_figures_after_every_request(limit, sequence) -> None:
    model, reference = AllocatorModel(limit), Reference(limit)
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
        free_blocks = [b.size for s in reference.segments for b in s.blocks if not b.live]
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
            len(reference.segments),
            max(free_blocks, default=0),
        )
