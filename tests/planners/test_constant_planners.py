from __future__ import annotations

import json

import pytest

from mimose.plan import Plan
from mimose.planners.baseline import Baseline
from mimose.planners.fixed import Fixed
from mimose.planners.full import Full
from mimose.records import ModelInfo, Situation, StepRecord

SITUATION = Situation(0)
INFO = ModelInfo(tuple("abcd"), exact=True, free=frozenset({0}), keep_only=frozenset({3}))


def decide(planner, info=INFO):
    planner.bind(info)
    return planner.plan((12, 100), Situation(0))


def test_baseline_keeps_everything_and_is_not_rescued():
    decision = decide(Baseline())
    assert decision.plan == Plan.keep_all(4)
    assert decision.phase == "static"
    assert decision.predicted_peak_bytes is None
    assert not Baseline.rescued


def test_full_leaves_out_what_must_not_or_need_not_run_twice():
    assert decide(Full()).plan == Plan.recompute_each(4, [1, 2])
    assert decide(Full(), ModelInfo(tuple("ab"))).plan == Plan.recompute_each(2)
    assert Full.rescued


def test_unbound_planner_says_so():
    with pytest.raises(RuntimeError, match="bind"):
        Full().plan((1, 1), Situation(0))


def test_state_of_a_planner_that_learns_nothing():
    planner = Baseline()
    planner.load_state_dict(planner.state_dict())
    assert planner.state_dict() == {}


@pytest.mark.parametrize("given", ["recompute 1-2", Plan.parse("recompute 1-2", 4)])
def test_fixed_takes_text_or_a_plan(given):
    assert str(decide(Fixed(given)).plan) == "keep 0 | recompute 1-2 | keep 3"


@pytest.mark.parametrize("as_text", [True, False])
def test_fixed_takes_a_file(tmp_path, as_text):
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(Plan.recompute_each(4, [2]).to_json()))
    plan = decide(Fixed(str(path) if as_text else path)).plan
    assert plan == Plan.recompute_each(4, [2])


def test_fixed_files_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        Fixed(str(tmp_path / "none.json"))
    path = tmp_path / "half.json"
    path.write_text('{"num_blocks": 4')
    with pytest.raises(ValueError, match="is not JSON"):
        Fixed(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="a plan in JSON is"):
        Fixed(path)


@pytest.mark.parametrize("plan", ["keep 0-9", Plan.keep_all(3), Plan.keep_all(5)])
def test_fixed_with_the_wrong_number_of_blocks(plan):
    with pytest.raises(ValueError, match="but the model has 4"):
        decide(Fixed(plan))


def test_fixed_waits_for_the_true_number_of_blocks():
    guess = ModelInfo(("shared",))
    assert decide(Fixed("recompute 0-5"), guess).plan.num_blocks == 6


def observed(planner, carried_out, **figures):
    planner.observe(StepRecord((4, 64), Plan.parse(carried_out, 4), "static", SITUATION, **figures))


@pytest.mark.parametrize("kept", ["recompute 0", "recompute 0 | recompute each 1-2"])
def test_fixed_says_once_that_nothing_of_what_it_remakes_applies(kept):
    planner = Fixed("recompute 0 | remake 1-2 #3f9c2a1b [2 5]")
    decide(planner)
    observed(planner, "recompute 0", outcome="oom")
    observed(planner, "recompute each 0-3")  # It may have run out of memory before.
    with pytest.warns(UserWarning, match="no block has the graph #3f9c2a1b that it was made for"):
        observed(planner, kept)
    observed(planner, kept)


def test_fixed_says_nothing_of_a_plan_that_applies_somewhere():
    planner = Fixed("remake 1-2 #3f9c2a1b [2 5]")
    observed(planner, "recompute 1 | remake 2 #3f9c2a1b [2 5]")
    observed(planner, "keep 0")
    observed(Fixed("recompute 0"), "keep 0")


def test_fixed_without_a_digest_lacks_values():
    with pytest.warns(UserWarning, match="no block has such values"):
        observed(Fixed("remake 1-2 [2 5]"), "keep 0")


def test_fixed_refuses_what_is_no_plan():
    with pytest.raises(ValueError, match="not 3"):
        Fixed(3)
    with pytest.raises(ValueError, match="plan 'nonsense'"):
        Fixed("nonsense")
