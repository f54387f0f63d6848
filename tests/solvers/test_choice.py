"""One entry a block: never over the bounds, and near the optimum."""

from __future__ import annotations

import random
import statistics
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.solvers.choice import Menu, choose, seconds_of
from mimose.solvers.choice_exact import by_integer_program, by_trying_all
from mimose.solvers.menu import candidates

Case = tuple[list[Menu], list[int], np.ndarray]


@st.composite
def menus(draw: st.DrawFn) -> Menu:
    steps = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), max_size=4))
    kept = np.cumsum([draw(st.integers(0, 20)), *(k for k, _ in steps)])
    seconds = np.cumsum([0, *(s for _, s in steps)])[::-1]
    return Menu(kept.astype(float), seconds * 1e-3)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    kinds = draw(st.lists(menus(), min_size=1, max_size=3))
    of = draw(st.lists(st.integers(0, len(kinds) - 1), min_size=1, max_size=6))
    most = int(sum(kinds[m].kept[-1] for m in of))
    room = draw(st.lists(st.integers(-1, most + 5), min_size=len(of) + 1, max_size=len(of) + 1))
    if draw(st.booleans()):  # Bounds that fall, as those of a step do, or any.
        room.sort()
    return kinds, of, np.array(room, float)


def fits(case: Case, chosen: list[int]) -> bool:
    kinds, of, room = case
    kept = np.cumsum([0.0, *(kinds[m].kept[c] for m, c in zip(of, chosen))])
    return bool((kept <= room).all())


@settings(max_examples=300, deadline=None)
@given(cases())
def test_fits_wherever_anything_does_and_is_near_the_best(case: Case) -> None:
    kinds, of, _ = case
    best, found = by_trying_all(*case), choose(*case)
    assert (found is None) == (best is None)
    if found is None or best is None:
        return
    assert fits(case, found)
    least, mine = seconds_of(kinds, of, best), seconds_of(kinds, of, found)
    # What the greedy rule is off by is less than one step of the hull for each bound that binds.
    steps = [0.0, *(float(-np.diff(m.seconds[m.steps]).min(initial=0.0)) for m in kinds)]
    assert least - 1e-9 <= mine <= least + len(of) * max(steps) + 0.05
    assert all(type(c) is int for c in found)


@settings(max_examples=25, deadline=None)
@given(cases())
def test_both_ways_to_the_optimum_agree(case: Case) -> None:
    kinds, of, _ = case
    best, found = by_trying_all(*case), by_integer_program(*case)
    assert (found is None) == (best is None)
    if found is not None and best is not None:
        assert fits(case, found)
        assert seconds_of(kinds, of, found) == pytest.approx(seconds_of(kinds, of, best), abs=1e-6)


def test_too_many_choices_are_not_tried() -> None:
    menu = Menu(np.arange(10.0), np.arange(10.0)[::-1])
    with pytest.raises(ValueError, match="fewer blocks"):
        by_trying_all([menu], [0] * 12, np.full(13, 50.0))


def random_case(chance: random.Random, blocks: int) -> Case:
    """Several kinds of blocks with menus of about a dozen entries, and bounds of a chain."""
    kinds = []
    for _ in range(chance.randint(1, 3)):
        number, size = chance.randint(3, 16), chance.uniform(0.3, 3)
        freed = np.cumsum([size * chance.uniform(0.2, 1) for _ in range(number)])
        cost = np.cumsum([chance.expovariate(1) * (1 + 3 * i / number) for i in range(number)])
        kinds.append(
            Menu(np.append((freed[-1] - freed)[::-1], freed[-1]), np.append(cost[::-1], 0.0))
        )
    of = sorted(chance.randrange(len(kinds)) for _ in range(blocks))
    least = sum(kinds[m].kept[0] for m in of)
    most = sum(kinds[m].kept[-1] for m in of)
    end = least + chance.uniform(0.05, 0.98) * (most - least)
    before = np.cumsum([kinds[m].kept[0] for m in of]) + 0.8 * end
    return kinds, of, np.array([0.0, *np.maximum(before[:-1], 0.9 * end), end])


def test_on_average_within_a_twentieth_of_the_optimum() -> None:
    chance = random.Random(7)
    off = []
    for _ in range(40):
        case = random_case(chance, 8)
        best, found = by_integer_program(*case, time_limit=5.0), choose(*case)
        assert best is not None
        assert found is not None
        assert fits(case, found)
        off.append(seconds_of(*case[:2], found) / seconds_of(*case[:2], best) - 1)
    assert statistics.mean(off) < 0.05
    assert min(off) > -1e-6


@pytest.mark.parametrize(("blocks", "most_seconds"), [(12, 0.5e-3), (100, 2e-3)])
def test_takes_a_fraction_of_a_millisecond(bert_block, blocks: int, most_seconds: float) -> None:
    traced = bert_block(16, 384)
    sizes, seconds = np.array(traced.bytes, float), np.array(traced.seconds)
    front = candidates(traced.graph, [traced]).front(sizes, seconds)
    saved = sum(sizes[v] for v in traced.graph.saved - traced.graph.fixed)
    menu = Menu(
        np.array([0.0, *(saved - front.freed)[::-1], saved]),
        np.array([seconds.sum(), *front.seconds[::-1], 0.0]),
    )
    assert len(menu.kept) > 12
    took = []
    for share in np.linspace(0.05, 0.95, 61):
        room = np.full(blocks + 1, share * saved * blocks)
        started = time.perf_counter()
        assert choose([menu], [0] * blocks, room) is not None
        took.append(time.perf_counter() - started)
    # A busy machine may be three times slower than the one that the bounds were set on.
    assert statistics.median(took) < 3 * most_seconds
