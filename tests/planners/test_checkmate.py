from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimose.costs import Infeasible, Profile, predict_peak, predict_seconds
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.checkmate import graph_of, variants
from mimose.planners.static import StepCosts
from mimose.records import ModelInfo, Situation
from mimose.schedule import Schedule
from mimose.solvers.block_graph import postponed, to_schedule, to_tables
from mimose.solvers.bruteforce import all_plans
from mimose.solvers.graph import simulate

RESIDENT = 1000


@st.composite
def steps(draw, least=1, most=4, cuts=True):
    """The costs of a step with small numbers, as a function of the budget."""
    count = draw(st.integers(least, most))

    def numbers(low, high, length=count):
        return tuple(draw(st.lists(st.integers(low, high), min_size=length, max_size=length)))

    output, activation, temporary = numbers(0, 4), numbers(0, 20), numbers(0, 5)
    level = [sum(output[:i]) + wobble for i, wobble in enumerate(numbers(1, 3))]
    kept_peak = tuple(a + o + t for a, o, t in zip(activation, output, temporary))
    forward = numbers(1, 9)
    profile = Profile(
        activation=activation,
        output=output,
        level=tuple(level),
        kept_peak=kept_peak,
        checkpoint_peak=tuple(
            max(p - a, o) for p, a, o in zip(kept_peak, activation, output)
        ),
        backward_peak=tuple(x + a + t for x, a, t in zip(level, activation, numbers(0, 9))),
        forward_seconds=forward,
        first_peak=0,
        head_peak=level[-1] + output[-1] + draw(st.integers(0, 9)),
        tail_peak=0,
        optimizer_peak=0,
        recompute_seconds=tuple(min(f, r) for f, r in zip(forward, numbers(0, 9))),
        backward_seconds=numbers(1, 9),
        outside_seconds=draw(st.integers(0, 9)),
    )
    info = ModelInfo(
        block_names=tuple(f"layer.{i}" for i in range(count)),
        exact=True,
        cuts=tuple(sorted(draw(st.sets(st.integers(1, count), max_size=2)))) if cuts else (),
        keep_only=frozenset(draw(st.sets(st.integers(0, count - 1), max_size=1))) if cuts else (),
        grad_bytes=numbers(0, 5),
        other_grad_bytes=draw(st.integers(0, 5)),
    )
    situation = Situation(RESIDENT, grads_resident=draw(st.booleans()))

    def costs(budget=None):
        return StepCosts((1, 1), profile, replace(info, budget_bytes=budget), situation, 0)

    return costs


def uniform(count=6, **facts):
    profile = Profile(
        activation=(20,) * count,
        output=(4,) * count,
        level=tuple(5 + 4 * i for i in range(count)),
        kept_peak=(26,) * count,
        checkpoint_peak=(12,) * count,
        backward_peak=tuple(5 + 4 * i + 36 for i in range(count)),
        forward_seconds=(2.0,) * count,
        first_peak=6,
        head_peak=4 * count + 10,
        tail_peak=8,
        optimizer_peak=10,
        recompute_seconds=(1.0,) * count,
        backward_seconds=(4.0,) * count,
        outside_seconds=1.0,
    )
    info = ModelInfo(tuple(f"layer.{i}" for i in range(count)), exact=True, cuts=())

    def costs(budget=None):
        own = replace(info, budget_bytes=budget, **facts)
        return StepCosts((1, 1), profile, own, Situation(RESIDENT), 0)

    return costs


def cut(plan, costs):
    return plan.cut(costs.cuts)


quick = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@quick
@given(steps())
def test_the_graph_counts_what_the_peak_model_counts(step):
    costs = step()
    graph = graph_of(costs)
    for plan in all_plans(costs.num_blocks):
        if plan != plan.cut(costs.cuts) or plan.recomputed - set(costs.blocks):
            continue
        schedule = Schedule.from_plan(plan)
        tables = to_tables(graph, schedule)
        usage = simulate(graph, *tables)
        assert to_schedule(tables[0]) == schedule
        for judged in (plan, schedule):
            assert RESIDENT + usage.peak == costs.peak_bytes(judged)
            assert usage.cost == costs.seconds(judged)


@quick
@given(steps(), st.data())
def test_never_slower_than_rotor_and_within_the_budget(step, data):
    costs = step()
    least = make_planner("rotor").solve(step(10**6)).least_budget_bytes
    everything = costs.need_bytes(Plan.keep_all(costs.num_blocks))
    budget = data.draw(st.integers(least, max(everything, least)))
    rotor = make_planner("rotor").solve(step(budget))
    for start in ("tree", "none"):
        found = make_planner("checkmate", gap=0, start=start).solve(step(budget))
        assert found.predicted_seconds <= rotor.predicted_seconds
        assert found.need_bytes <= budget
        assert found.details["status"] == "optimal"
        assert found.predicted_seconds >= found.details["bound_seconds"] - 1e-6
    try:
        rounded = make_planner("checkmate-lp").solve(step(budget))
    except Infeasible as error:
        assert "checkmate-lp" in str(error)  # noqa: PT017 - rounding may find nothing
        assert error.least_budget_bytes == 0 or error.least_budget_bytes > budget
    else:
        assert rounded.need_bytes <= budget
        assert rounded.predicted_seconds >= found.predicted_seconds - 1e-9


@settings(deadline=None, max_examples=15)
@given(steps(least=2, most=3, cuts=False), st.data())
def test_no_schedule_of_all_is_faster(step, data):
    costs = step()
    every = every_schedule(costs.num_blocks)
    needs = [costs.need_bytes(s) for s in every]
    budget = data.draw(st.integers(min(needs), max(needs)))
    fastest = min(costs.seconds(s) for s, need in zip(every, needs) if need <= budget)
    assert make_planner("checkmate", gap=0).solve(step(budget)).predicted_seconds == fastest


def every_schedule(count):
    """All schedules in which each stage of backward runs any blocks again, in order."""
    stages = [
        [[i for i in range(last + 1) if mask >> i & 1] for mask in range(2 ** (last + 1))]
        for last in reversed(range(count))
    ]
    found = set()
    for chosen in product(*stages):
        words = [f"f{i}" for i in range(count)]
        instructions = [(i, False) for i in range(count)]
        for last, again in zip(reversed(range(count)), chosen):
            instructions += [*((i, False) for i in again), (last, True)]
        del words
        from mimose.schedule import Instruction

        try:
            found.add(Schedule(count, tuple(Instruction(*i) for i in instructions)))
        except ValueError:
            continue
    return sorted(found, key=str)
