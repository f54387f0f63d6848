from __future__ import annotations

import _thread
import json
import signal
import threading
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.solvers import checkmate, highs, rounding
from mimose.solvers.graph import Graph, faults, keep_everything, simulate

CASES = json.loads((Path(__file__).parent / "data" / "checkmate_graphs.json").read_text())["cases"]


def graph_of(case):
    return Graph(
        tuple(case["cost_cpu"]),
        tuple(case["cost_ram"]),
        tuple((i, k) for i, k in case["edges"]),
        backward=frozenset(case["backward_nodes"]),
    )


def bits(table):
    return [[bool(x) for x in row] for row in table]


BUDGETS = [
    pytest.param(graph_of(case), result, id=f"{case['name']}-{result['budget']}")
    for case in CASES
    for result in case["results"]
]


def test_all_reference_cases_are_there():
    assert len(BUDGETS) == 42


@pytest.mark.parametrize(("graph", "result"), BUDGETS)
def test_equals_the_original(graph, result):
    expected = result["highs"]["objective"]
    found = checkmate.solve(graph, result["budget"])
    if expected is None:
        assert found.status == "infeasible"
        assert found.computed is None
        return
    assert found.status == "optimal"
    assert found.cost == expected
    assert found.usage.peak <= result["budget"]
    assert found.bound <= found.cost
    assert found.gap < 1e-6


@pytest.mark.parametrize(("graph", "result"), BUDGETS)
def test_the_bound_equals_the_original(graph, result):
    found = checkmate.lower_bound(graph, result["budget"])
    assert found == pytest.approx(result["lp_bound"], abs=1e-5)


@pytest.mark.parametrize(
    ("graph", "result"), [p for p in BUDGETS if "U_max" in p.values[1]["gurobi"]]
)
def test_the_simulation_equals_the_original(graph, result):
    usage = simulate(graph, bits(result["gurobi"]["R"]), bits(result["gurobi"]["S"]))
    assert usage.peak == result["gurobi"]["U_max"]
    assert usage.cost == result["gurobi"]["objective"]


@pytest.mark.parametrize(
    ("nodes", "expected"), [(9, 7), pytest.param(17, 32, marks=pytest.mark.slow)]
)
def test_rounding_keeps_to_the_budget_and_finds_a_schedule(nodes, expected):
    found, feasible = 0, 0
    for graph, result in (p.values for p in BUDGETS):
        budget, optimum = result["budget"], result["highs"]["objective"]
        if len(graph) > nodes:
            continue
        rounded = rounding.solve(graph, budget)
        for computed, kept in rounded.tried:
            assert not faults(graph, computed, kept)
        if optimum is None:
            assert rounded.usage is None
            assert rounded.fitting == 0
            continue
        feasible += 1
        if rounded.usage is not None:
            found += 1
            assert rounded.usage.peak <= budget
            assert optimum <= rounded.cost <= 1.3 * optimum
            assert rounded.bound <= optimum
    assert (found, feasible) == (expected, expected)


def test_rounding_as_published_goes_over_the_budget():
    # One threshold, the published allowance: most schedules do not fit, and none of them is taken.
    tried = [
        rounding.solve(
            graph,
            result["budget"],
            thresholds=(0.5,),
            allowances=(0.1,),
            forms=("paper",),
            hold=False,
        )
        for graph, result in (p.values for p in BUDGETS)
        if result["highs"]["objective"] is not None
    ]
    assert any(r.usage is None and r.tried for r in tried)
    assert any(r.usage is not None for r in tried)


@st.composite
def graphs(draw, most=5):
    count = draw(st.integers(2, most))

    def numbers(low, high):
        return tuple(draw(st.lists(st.integers(low, high), min_size=count, max_size=count)))

    pairs = [(i, k) for k in range(count) for i in range(k)]
    edges = draw(st.sets(st.sampled_from(pairs)))
    first = draw(st.integers(1, count - 1))
    return Graph(
        numbers(1, 9), numbers(0, 9), tuple(sorted(edges)), backward=frozenset(range(first, count))
    )


def every_schedule(graph):
    """All schedules, row by row, that can be carried out."""
    count = len(graph)

    def grow(computed, kept):
        t = len(computed)
        if t == count:
            yield computed, kept
            return
        there = [i for i in range(t) if computed[-1][i] or kept[-1][i]] if t else []
        for held in product((False, True), repeat=len(there)):
            row = [False] * count
            for i, h in zip(there, held):
                row[i] = h
            for again in product((False, True), repeat=t):
                now = [*again, True, *[False] * (count - t - 1)]
                if all(now[i] or row[i] for i, k in graph.edges if now[k]):
                    yield from grow([*computed, now], [*kept, row])

    yield from grow([], [])


@settings(deadline=None, max_examples=25)
@given(graphs(most=4), st.data())
def test_equals_brute_force(graph, data):
    usages = [simulate(graph, *tables) for tables in every_schedule(graph)]
    peaks = [u.peak for u in usages]
    budget = data.draw(st.integers(max(min(peaks) - 1, 0), max(peaks)))
    fitting = [u.cost for u in usages if u.peak <= budget]
    found = checkmate.solve(graph, budget)
    if not fitting:
        assert found.status == "infeasible"
    else:
        assert found.cost == min(fitting)


@settings(deadline=None, max_examples=30)
@given(graphs(), st.integers(1, 40))
def test_large_figures_are_solved_as_small_ones_are(graph, budget):
    # In bytes that have no common divisor to count in, the solver's tolerance matters.
    large = Graph(
        tuple(c * 1e-4 for c in graph.cost),
        tuple(m * 123_456_789 for m in graph.memory),
        graph.edges,
        overhead=tuple((i % 2,) * len(graph) for i in range(len(graph))),
        backward=graph.backward,
    )
    small = checkmate.solve(graph, budget)
    found = checkmate.solve(large, budget * 123_456_789 + 1)
    assert found.status == small.status
    if small.computed is not None:
        assert found.cost == pytest.approx(small.cost * 1e-4)
        assert found.usage.peak <= budget * 123_456_789 + 1


@settings(deadline=None, max_examples=30)
@given(graphs(), st.integers(0, 40))
def test_not_computing_again_in_forward_is_only_a_restriction(graph, budget):
    free, bound = (checkmate.solve(graph, budget, forward_again=f) for f in (True, False))
    assert bound.cost >= free.cost
    if bound.computed is not None:
        for t, row in enumerate(bound.computed[: graph.forward_stages]):
            assert [i for i, now in enumerate(row) if now] == [t]


def test_a_start_is_taken_and_one_that_does_not_fit_is_left_aside():
    graph = graph_of(CASES[3])
    start = keep_everything(graph)
    peak = simulate(graph, *start).peak
    assert checkmate.solve(graph, peak, start=start).cost == graph.least_cost
    assert checkmate.solve(graph, peak - 1, start=start).cost > graph.least_cost


def hard():
    count = 20
    nodes = 2 * count + 1
    edges = [(i, i + 1) for i in range(nodes - 1)]
    edges += [(i, 2 * count - i) for i in range(count)]
    return Graph(
        tuple(3.0 + i % 5 for i in range(nodes)),
        tuple(2 + i % 7 for i in range(nodes)),
        tuple(edges),
        backward=frozenset(range(count, nodes)),
    )


def test_the_time_limit_ends_it_with_what_there_is():
    graph = hard()
    found = checkmate.solve(graph, 30, time_limit=0.01)
    assert found.status == "unknown"
    assert found.computed is None
    assert found.seconds < 5
    start = keep_everything(graph)
    peak = simulate(graph, *start).peak
    found = checkmate.solve(graph, peak, time_limit=0.01, start=start)
    assert found.status in ("feasible", "optimal")
    assert found.usage.peak <= peak


def test_ctrl_c_ends_it_with_what_there_is():
    seen = []

    def progress(seconds, best, bound):
        seen.append((seconds, best, bound))
        if len(seen) == 2:
            # As the terminal does: in the main thread, wherever it is.
            threading.Timer(0.01, _thread.interrupt_main).start()

    # A process in the background of a shell ignores Ctrl-C.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        found = checkmate.solve(hard(), 30, time_limit=60, progress=progress)
    finally:
        signal.signal(signal.SIGINT, before)
    assert found.interrupted
    # While it still ran, what was read of it would mean nothing.
    assert not any(thread.name == "highs" for thread in threading.enumerate())
    assert found.seconds < 30
    assert found.status in ("feasible", "unknown")
    assert len(seen) >= 2


def test_a_fault_of_the_callback_is_the_callers():
    def progress(*_):
        raise RuntimeError("told you")

    with pytest.raises(RuntimeError, match="told you"):
        checkmate.solve(hard(), 30, progress=progress)


def test_bad_arguments():
    graph = graph_of(CASES[0])
    for options in ({"time_limit": 0}, {"gap": -1}, {"time_limit": float("nan")}):
        with pytest.raises(ValueError, match="a time limit above 0"):
            checkmate.solve(graph, 3, **options)
    with pytest.raises(ValueError, match="from an earlier node"):
        Graph((1, 1), (1, 1), ((1, 0),))
    with pytest.raises(ValueError, match="a cost and a memory for each node"):
        Graph((1, 1), (1,), ())
    with pytest.raises(ValueError, match="stages begin at 0"):
        Graph((1, 1), (1, 1), (), stage=(0, 2))
    with pytest.raises(ValueError, match="overhead has 2 rows"):
        Graph((1, 1), (1, 1), (), overhead=((1, 1),))
    with pytest.raises(ValueError, match="without its input 0"):
        simulate(graph, [[i == t for i in range(5)] for t in range(5)], [[False] * 5] * 5)


def test_nothing_is_printed(capfd):
    checkmate.solve(graph_of(CASES[0]), 3)
    assert capfd.readouterr() == ("", "")


def test_a_relaxed_problem_has_no_integers():
    problem = highs.Problem()
    column = problem.column(cost=1.0, integer=True)
    problem.row([(column, 2.0)], lower=1.0)
    assert highs.solve(problem, relaxed=True).objective == pytest.approx(0.5)
    assert highs.solve(problem).objective == pytest.approx(1.0)
