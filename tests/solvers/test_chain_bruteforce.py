from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.plan import Plan
from mimose.solvers.bruteforce import all_plans, best_plan, least_memory
from mimose.solvers.chain import Chain, simulate
from mimose.solvers.rotor import solve


@st.composite
def chains(draw, most=4, temporaries=True, extensions=True, exact=False):
    blocks = draw(st.integers(1, most))

    def numbers(top, count, bottom=0):
        return tuple(draw(st.lists(st.integers(bottom, top), min_size=count, max_size=count)))

    x = numbers(4, blocks + 1)
    forward = numbers(9, blocks + 1)
    more = {}
    if temporaries:
        more["forward_temporary"] = numbers(3, blocks + 1)
        more["backward_temporary"] = numbers(3, blocks + 1)
    if exact:
        bottom = -2
        more["forward_temporary"] = numbers(15, blocks + 1, bottom)
        more["backward_temporary"] = numbers(3, blocks + 1, bottom)
        more["keep_temporary"] = numbers(15, blocks, bottom)
    if extensions:
        more["again"] = tuple(draw(st.integers(0, f)) for f in forward)
        more["held"] = tuple(sorted(numbers(6, blocks + 1), reverse=True))
        more["cuts"] = frozenset(draw(st.sets(st.integers(1, blocks), max_size=2)))
        more["keep_only"] = frozenset(draw(st.sets(st.integers(0, blocks - 1), max_size=1)))
    return Chain(
        forward=forward,
        backward=numbers(9, blocks + 1),
        x=x,
        saved=tuple(a + b for a, b in zip(x[1:], numbers(4, blocks))),
        **more,
    )


@pytest.mark.parametrize(("blocks", "count"), [(1, 2), (2, 8), (3, 48), (4, 352), (5, 2880)])
def test_every_plan_is_there_once(blocks, count):
    plans = list(all_plans(blocks))
    assert len(plans) == len(set(plans)) == count
    assert Plan.keep_all(blocks) in plans
    assert Plan.recompute_each(blocks) in plans


def test_too_many_blocks_are_refused():
    with pytest.raises(ValueError, match="at most 7 blocks"):
        next(all_plans(8))


@settings(deadline=None, max_examples=60)
@given(chains(), st.integers(1, 45))
def test_rotor_finds_the_best_of_all_plans(chain, memory):
    best = best_plan(chain, memory)
    table = solve(chain, memory)
    assert table.makespan(memory) == (None if best is None else best.makespan)
    plan = table.plan(memory)
    if plan is not None:
        assert chain.allows(plan)
        assert least_memory(chain, plan) <= memory
        assert simulate(chain, plan).makespan == table.makespan(memory)


@settings(deadline=None, max_examples=40)
@given(chains(temporaries=False), st.integers(1, 45))
def test_without_temporaries_the_conditions_are_the_simulated_memory(chain, memory):
    best = best_plan(chain, memory, simulated=True)
    table = solve(chain, memory)
    assert table.makespan(memory) == (None if best is None else best.makespan)
    if best is not None:
        assert simulate(chain, table.plan(memory)).peak <= memory


@settings(deadline=None, max_examples=100)
@given(chains(exact=True), st.integers(1, 45))
def test_exact_conditions_are_the_simulated_memory(chain, memory):
    best = best_plan(chain, memory, simulated=True)
    table = solve(chain, memory)
    assert table.makespan(memory) == (None if best is None else best.makespan)
    if best is not None:
        assert simulate(chain, table.plan(memory)).peak <= memory


@settings(deadline=None, max_examples=10)
@given(chains(most=5, extensions=False))
def test_every_amount_of_memory_of_one_table(chain):
    table = solve(chain, 60)
    needs = {}
    for plan in all_plans(chain.num_blocks):
        need = least_memory(chain, plan)
        needs[need] = min(needs.get(need, 1e9), simulate(chain, plan).makespan)
    steps, best = [], 1e9
    for need in sorted(needs):
        if needs[need] < best and need <= 60:
            best = needs[need]
            steps.append((need, best))
    assert table.steps() == steps


@settings(deadline=None, max_examples=40)
@given(chains(most=4))
def test_revolve_is_the_best_that_stores_inputs_only(chain):
    table = solve(chain, 60, store_all=False)
    last = chain.num_blocks - 1
    keep = chain.keep_only
    plans = [
        p for p in all_plans(chain.num_blocks) if chain.allows(p) and _inputs_only(p, last, keep)
    ]
    for memory, makespan in table.steps():
        fits = [p for p in plans if least_memory(chain, p) <= memory]
        assert makespan == min(simulate(chain, p).makespan for p in fits)
        assert _inputs_only(table.plan(memory), last, keep)


def _inputs_only(plan, last, keep):
    """Whether no block is kept but the last, and within regions none but each region's last."""

    def only(regions, first, end):
        covered = keep | {b for r in regions for b in range(r.first, r.last + 1)}
        if set(range(first, end)) - covered:
            return False
        return all(only(r.inner, r.first, r.last) for r in regions)

    return only(plan.regions, 0, last)
