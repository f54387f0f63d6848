"""What is known of the levels within blocks' backward, in steps of either gradient state."""

from __future__ import annotations

import json

import numpy as np
import pytest

from mimose.menu import BlockGraph, Operator, Traced
from mimose.planners.auto.fits import Fit, Tally
from mimose.planners.auto.traces import Traces

GRAPH = BlockGraph(
    (Operator("mm", (), (0,), True), Operator("gelu", (0,), (1,), True)), uses=(1, 0)
)
GROWN = (90, 60, 10)
"""Of two blocks with 30 and 50 bytes of gradients, and 10 outside."""


def traced(block: int, length: int, beside: int = 0) -> Traced:
    levels = (beside + 10 * length, beside + 7 * length)
    starts = (beside + 6 * length, beside + 5 * length)
    return Traced(block, GRAPH, (2 * length, length), (1.0, 1.0), levels, starts)


def learned(*steps: tuple[int, bool]) -> Traces:
    traces = Traces()
    for length, resident in steps:
        found = [traced(0, length), traced(1, length, beside=1000)]
        grown = None if resident else GROWN
        traces.learn(found, (4, length), warm_up=False, grown=grown)
    return traces


def test_levels_are_told_from_the_highest_whatever_there_is_beside_a_block():
    (alike,) = learned((100, True), (200, True), (300, True)).alike()
    assert alike.blocks == (0, 1)
    expected = [[-4 * x, -5 * x, 0, -3 * x] for x in (100, 200, 300)]
    np.testing.assert_array_equal(alike.levels[True], expected)
    inside = Fit(alike).at((4, 250))
    assert inside.levels == pytest.approx([-1000, -1250, 0, -750])
    assert inside.rise(()) == 0
    # The second value is made again before backward is at its highest, the first one after that.
    assert inside.rise((1,)) == 0
    assert inside.rise((0,)) == -500


def test_a_graph_that_depends_on_the_size_is_left_alone_and_that_is_news():
    traces = learned((100, True))
    other = BlockGraph(GRAPH.operators, uses=(1, 1, 0))
    assert traces.alike()
    found = [Traced(block, other, (200, 100), (1.0, 1.0)) for block in (0, 1)]
    assert (
        traces.learn(found, (4, 200), warm_up=False) == 1
    )  # They are alike: what is new counts once.
    assert not traces.alike()
    assert traces.learn(found, (4, 200), warm_up=False) == 0


def test_steps_of_the_other_state_count_for_more_and_only_where_there_are_too_few():
    traces = learned((100, False), (200, False), (300, False), (400, True))
    (alike,) = Traces.from_json(json.loads(json.dumps(traces.to_json()))).alike()
    without, resident = alike.levels
    assert np.isnan(without[3]).all()
    np.testing.assert_array_equal(without[0], [-400, -500, 0, -300])
    # The second block's own gradients, and those outside, may not have been there yet.
    np.testing.assert_array_equal(resident[0], np.array([-400, -500, 0, -300]) + 60)
    np.testing.assert_array_equal(resident[3], [-1600, -2000, 0, -1200])


def test_candidates_stay_while_lengths_lie_between_those_seen():
    def fitted(earlier, *lengths):
        (alike,) = learned(*((x, True) for x in lengths)).alike()
        tally = Tally()
        fit = Fit(alike, earlier, tally)
        return fit, fit.candidates, tally.take()

    few, found, first = fitted(None, 100, 200, 300)
    assert found.sets
    _, between, less = fitted(few, 100, 200, 300, 250)
    assert between is found
    _, beyond, again = fitted(few, 100, 200, 300, 400)
    assert beyond is not found
    # Figures that are fitted, and sets that are weighed: at first, not at all, once more.
    assert first.updates == less.updates == again.updates == 2 + 2 + 2
    assert first.candidates == 3 * 6 + 4 * found.weighed
    assert (less.candidates, again.candidates) == (4 * 6, 4 * 6 + beyond.weighed)
