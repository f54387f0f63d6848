from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimose.costs import Infeasible, Profile
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.checkmate import graph_of
from mimose.planners.static import StepCosts
from mimose.records import ModelInfo, Situation
from mimose.schedule import Instruction, Schedule
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
        checkpoint_peak=tuple(max(p - a, o) for p, a, o in zip(kept_peak, activation, output)),
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


quick = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])


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
    with contextlib.suppress(Infeasible):  # Rounding may find nothing.
        rounded = make_planner("checkmate-lp").solve(step(budget))
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
        instructions = [(i, False) for i in range(count)]
        for last, again in zip(reversed(range(count)), chosen):
            instructions += [*((i, False) for i in again), (last, True)]
        with contextlib.suppress(ValueError):
            found.add(Schedule(count, tuple(Instruction(*i) for i in instructions)))
    return sorted(found, key=str)


def test_what_is_recomputed_runs_as_late_as_may_be():
    early = Schedule.parse("f0 F1 f2 F2 B2 F0 B1 B0")
    assert postponed(early) == early  # The output that B1 reads is that of F0.
    late = postponed(early, past_readers=True)
    assert str(late) == "f0 F1 f2 F2 B2 B1 F0 B0"
    assert late.to_plan() == Plan.parse("recompute 0 | keep 1 | recompute 2", 3)
    early = Schedule.parse("f0 f1 F2 F1 B2 F0 B1 B0")
    assert str(postponed(early)) == "f0 f1 F2 F1 B2 F0 B1 B0"


def test_a_schedule_that_is_no_tree():
    # Block 0 is kept, and its output let go and computed again.
    costs = uniform(2)()
    profile = replace(
        costs.profile,
        activation=(1, 40),
        output=(30, 1),
        level=(0, 30),
        kept_peak=(31, 41),
        checkpoint_peak=(30, 20),
        backward_peak=(40, 80),
        head_peak=31,
    )
    costs = StepCosts((1, 1), profile, costs.info, costs.situation, 0)
    for words in ("f0 F1 B1 F0 B0", "f0 f1 F1 B1 F0 B0", "F0 F1 B1 B0"):
        schedule = Schedule.parse(words)
        usage = simulate(graph_of(costs), *to_tables(graph_of(costs), schedule))
        assert RESIDENT + usage.peak == costs.peak_bytes(schedule)
        assert usage.cost == costs.seconds(schedule)


def test_without_a_budget_nothing_is_recomputed():
    for name in ("checkmate", "checkmate-lp"):
        assert make_planner(name).solve(uniform()()).plan == Plan.keep_all(6)


def test_a_budget_below_the_least_is_refused_with_the_least():
    least = make_planner("rotor").solve(uniform()(10**4)).least_budget_bytes
    for name in ("checkmate", "checkmate-lp"):
        with pytest.raises(Infeasible) as caught:
            make_planner(name).solve(uniform()(least - 1))
        assert str(caught.value).count(". ") == 0
    with pytest.raises(Infeasible) as caught:
        make_planner("checkmate").solve(uniform()(least - 1))
    assert caught.value.least_budget_bytes == least
    assert make_planner("checkmate").solve(uniform()(least)).need_bytes == least


def test_no_schedule_in_time_is_refused():
    planner = make_planner("checkmate", time_limit="1e-6", start="none")
    with pytest.raises(Infeasible, match=r"found no schedule for a budget of .* within 1e-06 s"):
        planner.solve(uniform(24)(1200))
    planner = make_planner("checkmate-lp", time_limit=1e-6)
    with pytest.raises(Infeasible, match="rounded no schedule within 1e-06 s"):
        planner.solve(uniform(24)(1200))
    least = make_planner("rotor").solve(uniform(24)()).least_budget_bytes
    with pytest.raises(Infeasible) as caught:
        planner.solve(uniform(24)(1200))
    assert caught.value.least_budget_bytes == least
    found = make_planner("checkmate", time_limit="1e-6").solve(uniform(24)(1200))
    assert found.need_bytes <= 1200
    assert found.predicted_seconds == found.details["tree_seconds"]


@settings(deadline=None, max_examples=8)
@given(steps(least=2, most=5))
def test_more_memory_is_never_slower(step):
    least = make_planner("rotor").solve(step(10**6)).least_budget_bytes
    costs = step()
    everything = max(costs.need_bytes(Plan.keep_all(costs.num_blocks)), least)
    for name, gap in (("checkmate", 0.001), ("checkmate-lp", 0.0)):
        before = float("inf")
        for share in range(4):
            budget = least + (everything - least) * share // 3
            found = None
            with contextlib.suppress(Infeasible):
                found = make_planner(name).solve(step(budget))
            if found is None:  # Rounding may find nothing.
                assert name == "checkmate-lp"
                assert before == float("inf")
                continue
            assert found.need_bytes <= budget
            assert found.predicted_seconds * (1 - gap) <= before
            before = found.predicted_seconds


def test_where_no_region_may_span_a_schedule_that_is_a_tree_is_cut():
    count = 6
    costs = uniform(count, cuts=tuple(range(1, count)))
    least = make_planner("rotor").solve(costs()).least_budget_bytes
    for name in ("checkmate", "checkmate-lp"):
        for more in (0, 30, 60):
            found = make_planner(name).solve(costs(least + more))
            if isinstance(found.plan, Plan):
                assert not found.plan.spans_blocks
            else:
                assert found.plan.to_plan() is None
            # Carried out, a schedule of whole blocks is one of single blocks.
            assert found.need_bytes <= least + more


def test_what_is_known_of_the_solution_is_said():
    found = make_planner("checkmate").solve(uniform(8)(1120))
    details = found.to_json()["details"]
    assert details["status"] == "optimal"
    assert 0 <= details["gap"] <= 0.001
    assert details["bound_seconds"] <= found.predicted_seconds + 1e-9
    assert details["columns"] > 0
    assert details["solver_seconds"] <= found.solve_seconds or found.solve_seconds == 0


def test_bad_options():
    for options in ({"time_limit": 0}, {"time_limit": "soon"}, {"gap": -0.1}, {"gap": "nan"}):
        with pytest.raises(ValueError, match="must be a number"):
            make_planner("checkmate", **options)
    with pytest.raises(ValueError, match="start must be tree or none, not 'here'"):
        make_planner("checkmate", start="here")
    with pytest.raises(ValueError, match="time_limit must be a number above 0"):
        make_planner("checkmate-lp", time_limit=-1)
