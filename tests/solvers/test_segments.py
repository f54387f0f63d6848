from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimose.plan import Plan
from mimose.solvers import segments

sizes = st.lists(st.integers(0, 20), min_size=1, max_size=12)
points = st.sets(st.integers(1, 12), max_size=3)


def algorithm_3(size, bound, candidates):
    """Algorithm 3 of Chen et al. line by line: the blocks whose output is stored."""
    temp, stored = 0, []
    for v in range(len(size)):
        temp += size[v]
        if v in candidates and temp > bound:
            stored.append(v)
            temp = 0
    return stored


@given(sizes, st.integers(-1, 120), st.sets(st.integers(0, 11)))
def test_chen_equals_the_algorithm_line_by_line(size, bound, candidates):
    stored = algorithm_3(size, bound, candidates)
    found = segments.chen(size, bound, candidates)
    ends = [last for _, last in found]
    # What follows the last stored output is a segment, too.
    assert ends == sorted({*stored, len(size) - 1})
    assert [first for first, _ in found] == [0, *(e + 1 for e in ends[:-1])]


@given(sizes, points)
def test_all_distinct_segmentations_are_found(size, cuts):
    found = list(segments.all_chen(size, cuts=cuts))
    every = {tuple(segments.chen(size, b, cuts=cuts)) for b in range(-1, sum(size) + 1)}
    assert {tuple(f) for f in found} == every
    assert len(found) == len(every)


@given(sizes, st.integers(-1, 120), points)
def test_chen_respects_cuts(size, bound, cuts):
    for first, last in segments.chen(size, bound, cuts=cuts):
        assert not any(first < c <= last for c in cuts)


@given(st.integers(1, 40), st.data())
def test_equal_segments(num_blocks, data):
    count = data.draw(st.integers(1, num_blocks))
    found = segments.equal(num_blocks, count)
    lengths = [last - first + 1 for first, last in found]
    assert sum(lengths) == num_blocks
    assert len(lengths) == count
    assert max(lengths) - min(lengths) <= 1
    assert [b for f, e in found for b in range(f, e + 1)] == list(range(num_blocks))


def test_periodic_is_as_checkpoint_sequential_cuts():
    assert segments.periodic(7, 3) == [(0, 1), (2, 3), (4, 6)]
    assert segments.periodic(12, 1) == [(0, 11)]
    assert segments.periodic(12, 12) == [(b, b) for b in range(12)]


@pytest.mark.parametrize("cut", [segments.equal, segments.periodic])
@pytest.mark.parametrize("count", [0, 13])
def test_impossible_counts(cut, count):
    with pytest.raises(ValueError, match="12 blocks make 1 to 12 segments"):
        cut(12, count)


def test_sqrt_count():
    # GPT-3: 96 layers, internal over input (34 + 5 * 96 * 2048 / 12288) / 2 = 57.
    assert segments.sqrt_count(96, 57, 1) == 74
    assert segments.sqrt_count(12, 1, 1) == 3
    assert segments.sqrt_count(12, 500, 1) == 12
    assert segments.sqrt_count(12, 0, 1) == 1
    assert segments.sqrt_count(12, 1, 0) == 12


def test_plans():
    found = [(0, 2), (3, 5), (6, 7)]
    assert segments.to_plan(8, found) == Plan.parse("recompute 0-2 | recompute 3-5 | recompute 6-7")
    kept = segments.to_plan(8, found, keep_last=True)
    assert kept == Plan.parse("recompute 0-2 | recompute 3-5 | keep 6-7")
    split = segments.to_plan(8, found, cuts=(2, 6), keep=(4,))
    text = "recompute 0-1 | recompute each 2-3 | keep 4 | recompute 5 | recompute 6-7"
    assert split == Plan.parse(text)
    assert segments.to_plan(3, [(0, 2)], keep=(0, 1, 2)) == Plan.keep_all(3)
