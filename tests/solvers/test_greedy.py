from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.solvers import greedy

blocks = st.lists(st.integers(0, 50), min_size=1, max_size=12)
excesses = st.integers(-5, 400)


def printed_slowly(est_mem, excess):
    """Algorithm 1 line by line, with plain lists."""
    layers = sorted((b for b in range(len(est_mem)) if est_mem[b]), key=lambda b: -est_mem[b])
    buckets = []
    while layers:
        first = layers.pop(0)
        bucket = [first]
        while layers and est_mem[layers[0]] > 0.9 * est_mem[first]:
            bucket.append(layers.pop(0))
        buckets.append(sorted(bucket))
    chosen = []
    while excess > 0 and any(buckets):
        buckets = [b for b in buckets if b]
        enough = [b for b in buckets if max(est_mem[x] for x in b) > excess]
        bucket = enough[-1] if enough else buckets[0]
        chosen.append(bucket.pop(0))
        excess -= est_mem[chosen[-1]]
    return chosen


def authors_slowly(est_mem, excess):
    layers = sorted((b for b in range(len(est_mem)) if est_mem[b]), key=lambda b: -est_mem[b])
    buckets = []
    for layer in layers:
        if buckets and est_mem[layer] >= 0.9 * est_mem[buckets[-1][0]]:
            buckets[-1].append(layer)
        else:
            buckets.append([layer])
    ordered = [layer for bucket in reversed(buckets) for layer in sorted(bucket)]
    fallback = [sorted(b) for b in buckets]
    chosen = []
    while excess > 0 and ordered:
        pick = next((x for x in ordered if est_mem[x] >= excess), None)
        if pick is None:
            pick = next(b for b in reversed(fallback) if b)[0]
        ordered.remove(pick)
        for bucket in fallback:
            if pick in bucket:
                bucket.remove(pick)
        chosen.append(pick)
        excess -= est_mem[pick]
    return chosen


@settings(deadline=None)
@given(blocks, excesses)
def test_printed_equals_the_algorithm_line_by_line(est_mem, excess):
    assert greedy.printed(est_mem, excess) == printed_slowly(est_mem, excess)


@settings(deadline=None)
@given(blocks, excesses)
def test_authors_equals_their_rule_done_slowly(est_mem, excess):
    assert greedy.authors(est_mem, excess) == authors_slowly(est_mem, excess)


@pytest.mark.parametrize("rule", [greedy.printed, greedy.authors])
@settings(deadline=None)
@given(est_mem=blocks, excess=excesses, data=st.data())
def test_frees_enough_of_the_candidates_and_no_more_picks_than_needed(rule, est_mem, excess, data):
    candidates = data.draw(st.sets(st.integers(0, len(est_mem) - 1)))
    chosen = rule(est_mem, excess, candidates)
    assert len(set(chosen)) == len(chosen)
    assert set(chosen) <= {b for b in candidates if est_mem[b] > 0}
    freed = sum(est_mem[b] for b in chosen)
    assert freed >= min(excess, sum(est_mem[b] for b in candidates))
    assert not chosen or freed - est_mem[chosen[-1]] < excess


def test_equal_blocks_go_in_forward_order():
    assert greedy.printed([10] * 5, 25) == [0, 1, 2]
    assert greedy.printed([10] * 5, 25, order=[4, 3, 2, 1, 0]) == [4, 3, 2]
    assert greedy.authors([10] * 5, 25, order=[4, 3, 2, 1, 0]) == [4, 3, 2]


def test_the_bucket_nearest_to_the_excess_is_used():
    assert greedy.printed([100, 60, 30, 10], 25) == [2]
    assert greedy.printed([100, 60, 30, 10], 55) == [1]


def test_where_no_block_suffices_the_rules_differ():
    est_mem = [100, 60, 30, 10]
    assert greedy.printed(est_mem, 150) == [0, 1]
    assert greedy.authors(est_mem, 150) == [3, 2, 1, 0]


def test_a_bucket_ends_at_nine_tenths_of_its_first_block():
    # 90 is exactly 0.9 of 100: outside for the print's "more than", inside for the code.
    assert greedy.printed([90, 100], 95) == [1]
    assert greedy.authors([90, 100], 85) == [0]
    # Similar blocks form one bucket, which gives its earliest although a later one is enough.
    assert greedy.printed([95, 100], 96) == [0, 1]


def test_nothing_to_free():
    assert greedy.printed([10, 10], 0) == []
    assert greedy.authors([10, 10], -5) == []
    assert greedy.printed([0, 0], 5) == []
