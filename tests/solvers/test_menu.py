"""What is worth dropping in a block: against every set of values, one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.menu import BlockGraph, Operator, Traced, cost_of, runs_again
from mimose.solvers import menu
from mimose.solvers.menu import candidates


@st.composite
def blocks(draw: st.DrawFn, most: int = 6) -> Traced:
    """A block of a few operators, some of two outputs, some that cannot run again."""
    operators: list[Operator] = []
    count = 0
    while count < draw(st.integers(2, most)):
        inputs = draw(st.sets(st.integers(0, count - 1), max_size=2)) if count else set[int]()
        outputs = tuple(range(count, count + draw(st.sampled_from([1, 1, 2]))))
        repeatable = draw(st.sampled_from([True, True, True, False]))
        holds = repeatable and draw(st.booleans())
        operators.append(Operator(f"op{count}", (*sorted(inputs),), outputs, repeatable, holds))
        count += len(outputs)
    uses = draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=count + 2))
    fixed = draw(st.sets(st.sampled_from(uses), max_size=1))
    graph = BlockGraph(tuple(operators), tuple(uses), frozenset(fixed))
    sizes = draw(st.lists(st.integers(1, 9), min_size=count, max_size=count))
    numbers = st.integers(1, 9)
    seconds = draw(st.lists(numbers, min_size=len(operators), max_size=len(operators)))
    return Traced(0, graph, tuple(512 * s for s in sizes), tuple(s * 1e-4 for s in seconds))


def every_set(graph: BlockGraph) -> list[tuple[int, ...]]:
    values = graph.droppable()
    sets = [s for n in range(1, len(values) + 1) for s in combinations(values, n)]
    return [s for s in sets if graph.can_drop(s)]


@settings(max_examples=80, deadline=None)
@given(blocks())
def test_what_runs_again_is_what_it_costs(traced: Traced) -> None:
    graph = traced.graph
    for dropped in every_set(graph):
        cost, runs = (
            cost_of(graph, dropped, traced.bytes, traced.seconds),
            runs_again(graph, dropped),
        )
        assert sum(runs) == cost.runs
        assert np.dot(runs, traced.seconds) == pytest.approx(cost.seconds)


@settings(max_examples=80, deadline=None)
@given(blocks(), st.sampled_from([0, 600, 2000]))
def test_the_front_is_that_of_all_sets(traced: Traced, inputs: int) -> None:
    graph, sizes = traced.graph, np.array(traced.bytes, float)
    most = cost_of(graph, (), traced.bytes, traced.seconds).working_bytes
    costs = [
        (sum(traced.bytes[v] for v in s) - inputs * graph.holds(s), c.seconds)
        for s in every_set(graph)
        for c in [cost_of(graph, s, traced.bytes, traced.seconds)]
        if c.working_bytes <= most
    ]
    costs = [cost for cost in costs if cost[0] > 0]
    expected = {
        (freed, round(taken, 9))
        for freed, taken in costs
        # Nothing frees as much in less time, nor more in as little.
        if not any(
            f >= freed and t <= taken + 1e-12 and (f > freed or t < taken - 1e-12) for f, t in costs
        )
    }
    found = candidates(graph, [traced])
    front = found.front(sizes, np.array(traced.seconds), inputs)
    assert {(int(f), round(t, 9)) for f, t in zip(front.freed, front.seconds)} >= expected
    assert (np.diff(front.freed) > 0).all()
    assert (np.diff(front.seconds) > 0).all()
    for dropped, holds in zip(found.sets, found.holds):
        assert graph.can_drop(dropped)
        assert holds == graph.holds(dropped)
        assert cost_of(graph, dropped, traced.bytes, traced.seconds).working_bytes <= most


def test_a_layer_s_cheap_values_come_first(bert_block) -> None:
    traced = bert_block(16, 384)
    found = candidates(traced.graph, [traced])
    front = found.front(np.array(traced.bytes, float), np.array(traced.seconds))
    names = traced.graph.names()
    dropped = [{names[v] for v in found.sets[p]} for p in front.places]
    saved = sum(traced.bytes[v] for v in traced.graph.saved - traced.graph.fixed)
    whole = sum(traced.seconds)
    cheap = {"gelu", "dropout#1", "softmax"}
    place = next(i for i, d in enumerate(dropped) if cheap <= d)
    assert front.freed[place] > 0.5 * saved
    assert front.seconds[place] < 0.15 * whole
    # Products are dropped last, and masks never.
    assert not any("linear" in name for name in dropped[place])
    assert any("linear#1" in d for d in dropped)
    assert not any("mask" in name for d in dropped for name in d)
    # Means and deviations are too small to be worth a thought.
    assert not any(name.endswith("]") for d in dropped for name in d)


def test_candidates_are_those_of_all_sizes(bert_block) -> None:
    short, long = bert_block(16, 32), bert_block(16, 512)
    graph = short.graph
    both = candidates(graph, [short, long])
    assert {*candidates(graph, [short]).sets} != {*candidates(graph, [long]).sets}
    for traced in (short, long):
        sizes, seconds = np.array(traced.bytes, float), np.array(traced.seconds)
        one = candidates(graph, [traced]).front(sizes, seconds)
        front = both.front(sizes, seconds)
        for freed, taken in zip(one.freed, one.seconds):
            assert min(t for f, t in zip(front.freed, front.seconds) if f >= freed) < 1.05 * taken


def test_beyond_the_largest_values_are_added_one_by_one(bert_block, monkeypatch) -> None:
    traced = bert_block(16, 384)
    sizes, seconds = np.array(traced.bytes, float), np.array(traced.seconds)
    every = candidates(traced.graph, [traced]).front(sizes, seconds)
    monkeypatch.setattr(menu, "MOST_TRIED", 4)
    some = candidates(traced.graph, [traced]).front(sizes, seconds)
    assert some.freed[-1] >= 0.9 * every.freed[-1]
    for freed, taken in zip(some.freed, some.seconds):
        least = min(t for f, t in zip(every.freed, every.seconds) if f >= freed)
        assert least - 1e-12 <= taken <= 1.3 * least


def test_a_block_of_many_values_takes_no_longer(monkeypatch) -> None:
    # All are made from the first one, so that every set has a price of its own.
    count = 41
    operators = [Operator("linear", (0,), (v,), True) for v in range(1, count)]
    graph = BlockGraph((Operator("draw", (), (0,), False), *operators), tuple(range(count)))
    rng = np.random.default_rng(0)
    sizes = rng.integers(100, 1000, count).astype(float)
    seconds = rng.uniform(1e-5, 1e-3, count)
    traced = Traced(0, graph, tuple(map(int, sizes)), tuple(seconds))
    monkeypatch.setattr(menu, "MOST_WEIGHED", 1 << 40)
    every = candidates(graph, [traced])
    first = (1 << menu.MOST_TRIED) - 1
    limit = 1000
    monkeypatch.setattr(menu, "MOST_WEIGHED", limit)
    some = candidates(graph, [traced])
    assert every.weighed - first > 4 * limit
    assert some.weighed - first < 2.5 * limit
    few, most = (found.front(sizes, seconds) for found in (some, every))
    assert few.freed[-1] >= 0.9 * most.freed[-1]
    for share in (0.05, 0.2, 0.5, 0.8):
        need = share * most.freed[-1]
        cheapest = [each.seconds[each.freed >= need].min() for each in (few, most)]
        assert cheapest[0] <= 1.3 * cheapest[1]


def test_nothing_to_drop_is_an_empty_front() -> None:
    graph = BlockGraph((Operator("draw", (), (0,), False),), (0,))
    found = candidates(graph, [Traced(0, graph, (512,), (1e-3,))])
    assert found.sets == ()
    assert len(found.front(np.array([512.0]), np.array([1e-3])).places) == 0
