"""The search for the most that may be chosen for."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.planners.auto.choosing import _LEAST, _SLACK, _Search


@settings(max_examples=200, deadline=None)
@given(
    allowed=st.integers(10_000, 10**9),
    entry=st.integers(1, 10**6),
    segment=st.integers(1, 10**8),
    held=st.integers(0, 10**6),
)
def test_a_fit_is_found_where_half_of_the_memory_would_do(allowed, entry, segment, held):
    """What is chosen comes in entries, what it takes in segments, and something is held beside."""
    segment, held, entry = (min(x, allowed // 8) for x in (segment, held, entry))
    search, best = _Search(float(allowed)), None
    for _ in range(12):
        chosen = int(search.bytes) // max(entry, 1) * max(entry, 1)
        need = -(-(chosen + held) // max(segment, 1)) * max(segment, 1)
        if need <= allowed:
            best = max(best or 0, chosen)
        if not search.goes_on(allowed - need):
            break
    assert best is not None
    assert best >= allowed // 2 - entry


def test_the_same_choice_again_is_not_tried_for_ever():
    search = _Search(1000.0)
    seen = []
    while len(seen) < 20:
        seen.append(search.bytes)
        # One byte too much above 900, whatever is asked for.
        if not search.goes_on(-1 if search.bytes > 900 else 0):
            break
    assert 900 - 128 <= seen[-1] <= 900
    assert len(seen) <= 8
    assert seen == sorted(seen, reverse=True)


def test_room_that_is_left_is_used():
    search = _Search(1000.0)
    assert search.goes_on(100)
    assert search.bytes == 1100
    assert search.goes_on(-50)
    assert 1000 < search.bytes < 1100
    while search.goes_on(-50 if search.bytes > 1060 else 20):
        pass
    assert 1060 * (1 - 2 * _SLACK) <= search.bytes <= 1060 * (1 + 2 * _SLACK)
    assert not _Search(1000.0).goes_on(1000 * _LEAST)
