"""Counting segments, against the rules on paper and against the allocator model itself."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from mimose.devices.allocator import AllocatorModel
from mimose.solvers.packing import LARGE_SEGMENT, Segments, allocated_bytes, segments

MIB = 1 << 20


def test_small_requests_share_segments_of_two_mebibytes() -> None:
    # Two of 0.7 MiB fit into one, and the rest of 0.6 MiB takes one of 0.5.
    assert segments([7 * MIB // 10], [4]) == Segments(small=2)
    assert segments([7 * MIB // 10, MIB // 2], [4, 2]) == Segments(small=2)
    assert segments([7 * MIB // 10, MIB // 2], [4, 3]) == Segments(small=3)


def test_medium_requests_share_segments_of_twenty() -> None:
    assert segments([7 * MIB], [5]) == Segments(medium=3)
    assert segments([7 * MIB, 6 * MIB], [4, 2]) == Segments(medium=2)
    # One byte over a mebibyte is medium, one under ten still is.
    assert segments([MIB], [1]) == Segments(small=1)
    assert segments([MIB + 1], [1]) == Segments(medium=1)
    assert segments([10 * MIB - 512], [2]) == Segments(medium=1)


def test_large_requests_are_rounded_to_two_mebibytes_each() -> None:
    assert segments([10 * MIB, 13 * MIB], [1, 2]) == Segments(large=((14 * MIB, 2), (10 * MIB, 1)))
    assert segments([10 * MIB, 13 * MIB], [1, 2]).bytes == 38 * MIB


def test_nothing_takes_nothing() -> None:
    assert segments([], []) == Segments()
    assert segments([MIB, 0], [0, 5]).bytes == 0


def test_large_tensors_take_segments_of_their_size_or_more() -> None:
    cached = Segments(large=((30 * MIB, 1), (12 * MIB, 3)))
    assert Segments(large=((12 * MIB, 4),)).beyond(cached) == Segments()
    assert Segments(large=((12 * MIB, 5),)).beyond(cached) == Segments(large=((12 * MIB, 1),))
    assert Segments(large=((14 * MIB, 2),)).beyond(cached) == Segments(large=((14 * MIB, 1),))
    # The largest takes the largest: what is left serves the others.
    wanted = Segments(large=((28 * MIB, 1), (12 * MIB, 3)))
    assert wanted.beyond(cached) == Segments()


COUNTED = st.lists(
    st.tuples(st.integers(1, 40 * MIB), st.integers(1, 12)), min_size=1, max_size=6
).map(lambda pairs: segments([s for s, _ in pairs], [n for _, n in pairs]))


@given(COUNTED, COUNTED)
def test_cached_and_what_is_reserved_anew_are_enough(wanted: Segments, cached: Segments) -> None:
    anew = wanted.beyond(cached)
    assert wanted.beyond(wanted) == Segments()
    assert wanted.beyond(Segments()) == wanted
    assert anew.bytes <= wanted.bytes
    assert wanted.beyond(cached.plus(anew)) == Segments()
    assert cached.plus(anew).bytes == cached.bytes + anew.bytes


# What blocks keep: a few sizes, each many times over.
LAYERS = st.lists(st.tuples(st.integers(600, 14 * MIB), st.integers(1, 6)), min_size=1, max_size=5)


@given(LAYERS, st.integers(1, 12), st.randoms(use_true_random=False))
def test_the_allocator_reserves_what_was_counted(
    layer: list[tuple[int, int]], blocks: int, order: random.Random
) -> None:
    sizes, counts = [s for s, _ in layer], [n * blocks for _, n in layer]
    requests = [s for s, n in layer for _ in range(n)]
    order.shuffle(requests)
    model = AllocatorModel()
    for _ in range(blocks):
        for size in requests:
            assert model.malloc(size) is not None
    stats = model.stats()
    counted = segments(sizes, counts)
    # A rest of up to 1 MiB is not split off, and counts as allocated.
    assert allocated_bytes(sizes, counts) <= stats.allocated <= stats.reserved
    # The order of requests costs the allocator at most a segment in ten and one of each kind; it
    # saves where medium tensors are cut from what rounding leaves of large ones, which is rare.
    slack = counted.bytes // 10 + LARGE_SEGMENT + 2 * MIB
    assert abs(stats.reserved - counted.bytes) <= slack
