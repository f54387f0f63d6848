"""The search for the most that may be chosen for, and what blocks are offered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.costs import Profile
from mimose.menu import BlockGraph, Operator, Traced
from mimose.plan import Plan, Remade
from mimose.planners.auto.choosing import _LEAST, _SLACK, InsideForecast, Offers, _Search
from mimose.planners.auto.fits import Fit
from mimose.planners.auto.traces import Traces
from mimose.planners.mimose.storages import Packing
from mimose.records import ModelInfo, Situation
from mimose.solvers.packing import LARGE_SEGMENT


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


CAST, NORM = 0, 1
SAVED, INPUT = (3072, 1536), 2048


@pytest.fixture
def forecast() -> InsideForecast:
    """Two blocks that save what they cast their input to, and a norm of it; and not the input."""
    graph = BlockGraph(
        (
            Operator("to_copy", (), (CAST,), True, holds=True),
            Operator("norm", (CAST,), (NORM,), True),
        ),
        uses=(NORM, CAST),
    )
    traces = Traces()
    for length in (8, 16, 24):
        values = tuple(size * length // 8 for size in SAVED)
        blocks = [Traced(block, graph, values, (1e-4, 1e-4)) for block in (0, 1)]
        traces.learn(blocks, (1, length), warm_up=False)
    (alike,) = traces.alike()
    profile = Profile(
        activation=(sum(SAVED) - INPUT,) * 2,
        output=(INPUT,) * 2,
        level=(INPUT, 2 * INPUT),
        kept_peak=(9000,) * 2,
        checkpoint_peak=(9000,) * 2,
        backward_peak=(20_000, 22_000),
        forward_seconds=(1e-2,) * 2,
        first_peak=INPUT,
        head_peak=30_000,
        tail_peak=0,
        optimizer_peak=0,
        freed=(INPUT,) * 2,
    )
    return InsideForecast(profile, inside=dict.fromkeys((0, 1), Fit(alike).at((1, 8))))


def test_what_is_made_from_an_input_has_its_bytes_held(forecast):
    info = ModelInfo(("a", "b"), exact=True, grad_bytes=(0, 0), other_grad_bytes=0)

    def more(*dropped):
        plan = Plan(2, (), (), (Remade(0, dropped, (), forecast.inside[0].fit.graph.digest),))
        peaks = (forecast.peak(p, info, Situation(0)).bytes for p in (plan, Plan.keep_all(2)))
        return list(forecast.holding(plan)), next(peaks) - next(peaks)

    assert more(NORM) == ([], -SAVED[NORM])
    assert more(CAST) == ([0], INPUT - SAVED[CAST])
    assert more(CAST, NORM) == ([0], INPUT - sum(SAVED))


def test_entries_keep_the_input_where_they_read_it(forecast):
    offers = Offers(forecast, (0, 1))
    menu = offers.menus[offers.of[0]]
    everything = sum(SAVED) - INPUT
    # Dropping the cast alone frees less than the norm's output does, and is no faster.
    assert menu.kept.tolist() == [0, everything - SAVED[NORM], everything]


@pytest.mark.parametrize(("moment", "segments"), [(1 << 20, 0), (3 << 20, 1), (10 << 20, 0)])
def test_what_is_there_for_a_moment_takes_a_segment(forecast, moment, segments):
    """Where nothing else lies in one of its kind: then it is there in any case."""
    inside = replace(forecast.inside[0], bytes=np.array([float(moment), 1536.0]))
    told = replace(forecast, inside={0: inside}, packing=packing(1000))
    found, plain = told.packed(Plan.keep_all(2)), packing(1000).pack(())
    assert found.segments == replace(plain.segments, medium=segments)
    assert found.waste_bytes == plain.waste_bytes + segments * LARGE_SEGMENT
    beside = replace(told, packing=packing(2 << 20))
    assert beside.packed(Plan.keep_all(2)) == packing(2 << 20).pack(())


def packing(size):
    return Packing([size], np.ones((2, 1), np.int64), np.zeros((2, 1), np.int64))
