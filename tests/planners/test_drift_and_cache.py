from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mimose.plan import Plan
from mimose.planners.mimose.cache import Entry, round_up
from mimose.planners.mimose.drift import Drift
from mimose.planners.mimose.storages import Packed
from mimose.records import Situation


def sheltered_steps(raw, measured, steps):
    """Run with a systematic error; return the steps that were sheltered."""
    drift, found = Drift(), []
    for step in range(steps):
        if drift.due:
            found.append(step)
            drift.sheltered()
        else:
            drift.observe(raw, measured, 0)
    return drift, found


def test_predictions_that_hold_call_for_nothing():
    assert sheltered_steps(1000, 1019, 100)[1] == []
    assert sheltered_steps(1000, 981, 100)[1] == []


def test_a_miss_calls_for_one_sheltered_step_at_once():
    drift = Drift()
    drift.observe(1000, 1100, 0)
    assert drift.due
    drift.sheltered()
    assert not drift.due


def test_a_systematic_under_prediction_inflates_and_stops_sheltering():
    drift, found = sheltered_steps(1000, 1100, 500)
    # The second miss raises predictions, and none misses from then on.
    assert found == [1, 3]
    assert drift.inflation == pytest.approx(0.1)


def test_a_systematic_over_prediction_shelters_ever_more_rarely():
    drift, found = sheltered_steps(1000, 900, 2000)
    assert drift.inflation == 0.0
    assert 3 <= len(found) <= 12
    gaps = [b - a for a, b in pairwise(found)]
    assert all(b > a for a, b in pairwise(gaps))


def test_a_single_miss_does_not_inflate():
    drift = Drift()
    drift.observe(1000, 1100, 0)
    assert drift.inflation == 0.0


def test_inflation_ends_with_its_cause():
    drift, _ = sheltered_steps(1000, 1100, 20)
    for _ in range(50):
        drift.observe(1000, 1000, 0)
    assert drift.inflation == 0.0


def test_a_prediction_for_a_larger_size_may_be_too_high():
    drift = Drift()
    drift.observe(1000, 500, 0, exact_size=False)
    assert not drift.due
    drift.observe(1000, 1500, 0, exact_size=False)
    assert drift.due


def test_the_tolerance_is_of_the_whole_peak():
    drift = Drift()
    drift.observe(1000, 1100, 10_000)
    assert not drift.due


def test_rounding_up():
    assert round_up((12, 171), 5) == (12, 175)
    assert round_up((12, 175), 5) == (12, 175)
    assert round_up((7, 1, 512), 5) == (7, 5, 515)
    assert round_up((7, 13), 1) == (7, 13)


ENTRY = Entry(
    plan=Plan.recompute_each(4, [0]),
    size=(12, 175),
    resident_bytes=1000,
    grads_resident=True,
    optimizer_ready=True,
    needed_bytes=9500,
    step_bytes=7900,
    packed=Packed(waste_bytes=100),
    ends=(7600, 8000),
)


def holds(entry=ENTRY, margin=500, inflation=0.0, budget=10_000, slack=500, **changes):
    situation = replace(Situation(1000), **changes)
    return entry.holds(situation, margin, inflation, budget, slack)


def test_an_entry_holds_for_what_it_was_made_for():
    assert holds()
    assert holds(resident_bytes=900)
    assert holds(margin=900)


@pytest.mark.parametrize(
    "case",
    [
        {"resident_bytes": 1001},
        {"grads_resident": False},
        {"optimizer_ready": False},
        {"margin": 1001},
        {"inflation": 0.1},
        {"margin": 100, "slack": 399},
    ],
)
def test_an_entry_does_not_hold_for_anything_else(case):
    assert not holds(**case)


def test_an_empty_plan_cannot_be_too_careful():
    assert holds(replace(ENTRY, plan=Plan.keep_all(4)), margin=0, slack=0)


def test_a_plan_that_never_fitted_the_margin_is_not_made_again():
    entry = replace(ENTRY, needed_bytes=10_500)
    assert holds(entry, margin=1500, slack=5000)
    assert not holds(entry, margin=1501, slack=5000)


def test_prediction_within_an_entry_is_a_line():
    assert ENTRY.step_bytes_at((12, 175), 5) == 8000
    assert ENTRY.step_bytes_at((12, 171), 5) == 7600
    assert ENTRY.step_bytes_at((12, 173), 5) == 7800
    assert ENTRY.step_bytes_at((12, 175), 1) == 8000
