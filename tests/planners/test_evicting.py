from __future__ import annotations

import pytest

from mimose.eviction import Eviction
from mimose.planners import make_planner, planner_options
from mimose.records import ModelInfo, Situation
from mimose.units import GIB

SITUATION = Situation(0)


def decide(planner, budget=None, size=(12, 100)):
    planner.bind(ModelInfo(tuple("abcd"), budget_bytes=budget))
    return planner.plan(size, SITUATION)


@pytest.mark.parametrize("name", ["dtr", "delta"])
def test_one_policy_for_every_size_and_no_rescue(name):
    planner = make_planner(name)
    decision = decide(planner, 8 * GIB)
    assert decision == decide(planner, 8 * GIB, (1, 7))
    assert decision.phase == "static"
    assert decision.predicted_peak_bytes is None
    assert isinstance(decision.plan, Eviction)
    assert decision.plan.system == name
    assert not planner.rescued


def test_the_defaults_are_those_of_the_originals_runs():
    plan = decide(make_planner("dtr"), 8 * GIB).plan
    assert plan == Eviction(
        system="dtr",
        heuristic="h_DTR_eq",
        sampling=True,
        ignore_small=True,
        trigger="threshold",
        reserve_bytes=2 * GIB,
        synchronous=True,
    )
    delta = decide(make_planner("delta"), 8 * GIB).plan
    assert (delta.actions, delta.filter, delta.prefetch) == ("both", "base", True)
    assert not delta.synchronous


@pytest.mark.parametrize(
    ("given", "expected"),
    [("25%", 2 * GIB), (0.25, 2 * GIB), ("1.5GB", 3 * GIB // 2), (7, 7), (0, 0), ("0", 0)],
)
def test_a_reserve_in_bytes_or_as_a_share(given, expected):
    assert decide(make_planner("dtr", reserve=given), 8 * GIB).plan.reserve_bytes == expected


def test_without_a_budget_nothing_is_reserved():
    assert decide(make_planner("dtr", reserve="1GB")).plan.reserve_bytes == 0


@pytest.mark.parametrize("given", ["threshold", "after", "oom"])
def test_triggers_have_one_name_each(given):
    assert decide(make_planner("dtr", trigger=given)).plan.trigger == given
    with pytest.raises(ValueError, match="threshold, after or oom"):
        make_planner("dtr", trigger="before")


def test_options_as_text():
    planner = make_planner(
        "dtr", sampling="off", ignore_small="off", synchronous="off", thrash_limit="3"
    )
    plan = decide(planner).plan
    assert [plan.sampling, plan.ignore_small, plan.synchronous] == [False] * 3
    assert plan.thrash_limit == 3.0
    assert decide(make_planner("dtr", thrash_limit="none")).plan.thrash_limit is None


def test_only_what_is_swapped_can_be_fetched_ahead():
    assert not decide(make_planner("delta", actions="recompute", prefetch="on")).plan.prefetch


@pytest.mark.parametrize(
    ("name", "option", "value", "complaint"),
    [
        ("dtr", "heuristic", "oldest", "heuristic must be h_DTR, .* or random, not 'oldest'"),
        ("dtr", "sampling", "yes", "sampling must be on or off, not 'yes'"),
        ("dtr", "trigger", "never", "trigger must be threshold, after or oom"),
        ("dtr", "reserve", "much", "reserve must be 0, .* or a share of the budget such as 25%"),
        ("dtr", "reserve", "100%", "reserve must be a share from 0% to below 100%"),
        ("dtr", "reserve", "x%", "reserve must be a share from 0% to below 100%"),
        ("dtr", "reserve", -0.1, "reserve must be a share"),
        ("dtr", "thrash_limit", "1", "thrash_limit must be a number above 1"),
        ("dtr", "actions", "swap", "has no option actions"),
        ("delta", "actions", "move", "actions must be recompute, swap or both"),
        ("delta", "filter", "best", "filter must be base, lru or greedy"),
        ("delta", "prefetch", "maybe", "prefetch must be on or off"),
    ],
)
def test_bad_options_are_named(name, option, value, complaint):
    with pytest.raises(ValueError, match=complaint):
        make_planner(name, **{option: value})


def test_a_reserve_that_leaves_nothing():
    with pytest.raises(ValueError, match="leaves nothing of a budget"):
        decide(make_planner("dtr", reserve="8GB"), 8 * GIB)


def test_options_that_they_share_have_the_same_names():
    dtr, delta = planner_options("dtr"), planner_options("delta")
    assert set(dtr or ()) - set(delta or ()) == {"heuristic"}
