from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.costs import Infeasible, Profile, grown_gradients, predict_peak, predict_seconds
from mimose.plan import Plan
from mimose.planners import candidates, make_planner
from mimose.planners.sqrt_n import best_count
from mimose.planners.static import StepCosts
from mimose.records import ModelInfo, Situation
from mimose.solvers.block_chain import block_chain
from mimose.solvers.bruteforce import all_plans
from mimose.solvers.chain import simulate

CHAIN_PLANNERS = ("sublinear", "sublinear-greedy", "sqrt-n", "periodic", "revolve", "rotor")
RESIDENT = 1000


@st.composite
def steps(draw, least=1, most=5, unlimited=False):
    """The costs of a step with small numbers; ``of(budget)`` sets the budget."""
    count = draw(st.integers(least, most))

    def numbers(low, high, length=count):
        return tuple(draw(st.lists(st.integers(low, high), min_size=length, max_size=length)))

    output, activation = numbers(0, 4), numbers(0, 20)
    level, now = [], draw(st.integers(0, 5))
    for i, wobble in enumerate(numbers(0, 2)):
        level.append(now + sum(output[:i]) + wobble)
    profile = Profile(
        activation=activation,
        output=output,
        level=tuple(level),
        kept_peak=tuple(a + o + t for a, o, t in zip(activation, output, numbers(0, 20))),
        checkpoint_peak=tuple(o + t for o, t in zip(output, numbers(0, 20))),
        backward_peak=tuple(x + a + t for x, a, t in zip(level, activation, numbers(0, 9))),
        forward_seconds=numbers(1, 9),
        first_peak=draw(st.integers(0, 30)),
        head_peak=level[-1] + output[-1] + draw(st.integers(0, 9)),
        tail_peak=draw(st.integers(0, 30)),
        optimizer_peak=draw(st.integers(0, 30)),
        recompute_seconds=numbers(0, 9),
        backward_seconds=numbers(1, 9),
        outside_seconds=draw(st.integers(0, 9)),
    )
    info = ModelInfo(
        block_names=tuple(f"layer.{i}" for i in range(count)),
        exact=True,
        cuts=tuple(sorted(draw(st.sets(st.integers(1, count), max_size=2)))),
        free=frozenset(draw(st.sets(st.integers(0, count - 1), max_size=1))),
        keep_only=frozenset(draw(st.sets(st.integers(0, count - 1), max_size=1))),
        grad_bytes=numbers(0, 5),
        other_grad_bytes=draw(st.integers(0, 5)),
    )
    return profile, info, Situation(RESIDENT, grads_resident=draw(st.booleans()))


def costs_of(step, budget=None, **facts):
    profile, info, situation = step
    info = replace(info, budget_bytes=budget, **facts)
    return StepCosts((1, 1), profile, info, situation, margin_bytes=0)


def allowed_plans(costs):
    chain = candidates.chain_of(costs)
    return [plan for plan in all_plans(costs.num_blocks) if chain.allows(plan)]


def solve(name, step, budget=None, **options):
    """Return the solution, or the least budget where there is none."""
    try:
        return make_planner(name, **options).solve(costs_of(step, budget))
    except Infeasible as error:
        return error.least_budget_bytes


@settings(deadline=None, max_examples=50)
@given(steps(most=4))
def test_a_chain_needs_what_the_peak_model_says(step):
    profile, info, situation = step
    grown = None if situation.grads_resident else grown_gradients(info, profile.num_blocks)
    chain = block_chain(profile, grown)
    # What lies outside the chain does not count here.
    inside = replace(profile, first_peak=0, tail_peak=-1000, optimizer_peak=-1000)
    for plan in all_plans(profile.num_blocks):
        found = simulate(chain, plan)
        peak = predict_peak(inside, plan, info, situation).bytes
        assert RESIDENT + profile.level[0] + found.peak == peak
        assert found.makespan == predict_seconds(profile, plan)


@settings(deadline=None, max_examples=40)
@given(steps(most=4), st.data())
def test_rotor_is_the_fastest_of_all_plans(step, data):
    costs = costs_of(step)
    plans = allowed_plans(costs)
    needs = [costs.need_bytes(plan) for plan in plans]
    budget = data.draw(st.integers(min(needs), max(needs)))
    fastest = min(costs.seconds(p) for p, need in zip(plans, needs) if need <= budget)
    found = solve("rotor", step, budget)
    assert found.predicted_seconds == fastest
    assert found.need_bytes <= budget
    assert found.plan in plans


@settings(deadline=None, max_examples=40)
@given(steps(most=4))
def test_rotor_names_the_least_budget_of_all_plans(step):
    costs = costs_of(step)
    least = min(costs.need_bytes(plan) for plan in allowed_plans(costs))
    assert solve("rotor", step, least).least_budget_bytes == least
    assert solve("rotor", step, least - 1) == least


@settings(deadline=None, max_examples=10)
@given(steps(least=6, most=9))
def test_more_memory_is_never_slower_and_rotor_never_slower_than_others(step):
    costs = costs_of(step)
    everything = costs.need_bytes(Plan.keep_all(costs.num_blocks))
    rotor = {}
    for name in reversed(CHAIN_PLANNERS):
        before = None
        for budget in range(RESIDENT, everything + 1, max((everything - RESIDENT) // 12, 1)):
            found = solve(name, step, budget)
            if isinstance(found, int):
                assert found > budget
                assert before is None
                continue
            assert found.need_bytes <= budget
            assert found.least_budget_bytes <= budget
            assert before is None or found.predicted_seconds <= before
            before = found.predicted_seconds
            rotor.setdefault(budget, found.predicted_seconds)
            assert rotor[budget] <= before


@settings(deadline=None, max_examples=25)
@given(steps(least=2, most=8))
def test_the_least_budget_that_is_named_does(step):
    for name in CHAIN_PLANNERS:
        least = solve(name, step, RESIDENT - 1)
        assert isinstance(least, int)
        assert solve(name, step, least).need_bytes == least


@settings(deadline=None, max_examples=25)
@given(steps(least=2, most=8))
def test_no_plan_recomputes_what_it_must_not(step):
    costs = costs_of(step)
    chain = candidates.chain_of(costs)
    for name in CHAIN_PLANNERS:
        for budget in (None, solve(name, step, RESIDENT - 1)):
            plan = solve(name, step, budget).plan
            assert chain.allows(plan)
            assert plan.recomputed <= set(costs.blocks)


@pytest.mark.parametrize("name", ["sublinear", "sublinear-greedy", "periodic", "rotor"])
def test_without_a_budget_nothing_is_recomputed(name):
    assert solve(name, uniform()).plan == Plan.keep_all(12)


def test_unknown_data_flow_leaves_single_blocks():
    costs = costs_of(uniform(), cuts=None)
    for name in CHAIN_PLANNERS:
        plan = make_planner(name).solve(costs).plan
        assert not plan.spans_blocks


def test_sqrt_n():
    step = uniform()
    assert best_count(costs_of(step)) == 8  # sqrt(12 * (20 + 4) / 4)
    found = solve("sqrt-n", step)
    assert found.details["segments"] == 8
    text = "recompute 0-1 | recompute 2-3 | recompute 4-5 | recompute 6-7 | recompute each 8-10"
    assert found.plan == Plan.parse(text, 12)
    found = solve("sqrt-n", step, segments="3")
    assert found.plan == Plan.parse("recompute 0-3 | recompute 4-7", 12)
    with pytest.raises(ValueError, match="12 blocks make 1 to 12 segments, not 13"):
        solve("sqrt-n", step, segments=13)
    with pytest.raises(ValueError, match="segments must be a whole number, 1 or more"):
        make_planner("sqrt-n", segments=0)


def test_sqrt_n_without_a_profile():
    planner = make_planner("sqrt-n", segments=3)
    planner.bind(uniform()[1])
    assert planner.unprofiled() == Plan.parse("recompute 0-3 | recompute 4-7", 12)
    planner = make_planner("sqrt-n")
    planner.bind(uniform()[1])
    with pytest.raises(ValueError, match="has to see it first"):
        planner.unprofiled()


def test_periodic_has_every_number_of_segments():
    costs = costs_of(uniform())
    plans = candidates.equal_segments(costs)
    assert len(set(plans)) == 12
    assert Plan.keep_all(12) in plans


def test_a_slower_plan_of_nested_regions_fits_into_less():
    step = uniform()
    flat, nested = (solve(name, step, RESIDENT - 1) for name in ("sublinear", "rotor"))
    assert nested < flat
    plan = solve("rotor", step, nested).plan
    assert any(region.inner for region in plan.regions)


def test_few_slots_are_enough_for_a_plan():
    step = uniform()
    exact = [solve("rotor", step, b).predicted_seconds for b in (1150, 1200)]
    rough = [solve("rotor", step, b, slots="20").predicted_seconds for b in (1150, 1200)]
    assert exact[0] <= rough[0]
    assert exact[1] <= rough[1]
    with pytest.raises(ValueError, match="slots must be a whole number, 1 or more"):
        make_planner("rotor", slots=0)


def test_schedules_are_remembered_for_another_budget(monkeypatch):
    step = uniform(seconds=3)
    first = solve("rotor", step, 1150)
    monkeypatch.setattr("mimose.solvers.rotor.solve", None)
    assert solve("rotor", step, 1150) == first
    assert solve("rotor", step, 1240).predicted_seconds <= first.predicted_seconds


def uniform(count=12, seconds=2):
    profile = Profile(
        activation=(20,) * count,
        output=(4,) * count,
        level=tuple(5 + 4 * i for i in range(count)),
        kept_peak=(26,) * count,
        checkpoint_peak=(12,) * count,
        backward_peak=tuple(5 + 4 * i + 36 for i in range(count)),
        forward_seconds=(seconds,) * count,
        first_peak=6,
        head_peak=4 * count + 10,
        tail_peak=8,
        optimizer_peak=10,
        recompute_seconds=(seconds - 1,) * count,
        backward_seconds=(2 * seconds,) * count,
        outside_seconds=1,
    )
    info = ModelInfo(tuple(f"layer.{i}" for i in range(count)), exact=True, cuts=())
    return profile, info, Situation(RESIDENT)
