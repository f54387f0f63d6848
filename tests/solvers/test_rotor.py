from __future__ import annotations

import json
import random
import time
from pathlib import Path

import numpy as np
import pytest

from mimose.plan import Plan
from mimose.solvers import rotor_compiled
from mimose.solvers.chain import Chain, Operation, operations, simulate
from mimose.solvers.rotor import solve

CASES = json.loads((Path(__file__).parent / "data" / "rotor_chains.json").read_text())["cases"]


def chain_of(case):
    return Chain(
        forward=(*case["fw"], 0.0),
        backward=tuple(case["bw"]),
        x=tuple(case["cw"]),
        saved=tuple(case["cbw"][1:]),
        forward_temporary=(*case["fwd_tmp"], 0),
        backward_temporary=tuple(case["bwd_tmp"]),
    )


def operations_of(text, loss):
    pairs = (word.partition("_") for word in text.split())
    return [Operation(kind, int(stage) if stage else loss) for kind, _, stage in pairs]


ANSWERS = [(case, answer) for case in CASES for answer in case["results"]]
FEASIBLE = [(c, a) for c, a in ANSWERS if a["persistent_makespan"] is not None]


def name_of(pair):
    case, answer = pair
    return f"{case['name']}-{answer['budget']}"


@pytest.mark.parametrize("pair", ANSWERS, ids=name_of)
def test_makespan_is_that_of_the_released_code(pair):
    case, answer = pair
    chain, budget = chain_of(case), answer["budget"]
    table = solve(chain, budget)
    assert table.makespan(budget) == answer["persistent_makespan"]
    plan = table.plan(budget)
    if plan is None:
        assert table.least is None
        assert answer["persistent_makespan"] is None
        return
    assert table.least <= budget
    found = simulate(chain, plan)
    assert found.makespan == answer["persistent_makespan"]
    assert found.peak <= budget
    assert found.makespan >= answer["exhaustive_makespan"]


@pytest.mark.parametrize("pair", FEASIBLE, ids=name_of)
def test_simulation_is_that_of_the_released_code(pair):
    case, answer = pair
    chain = chain_of(case)
    steps = operations_of(answer["persistent_sequence"], chain.num_blocks)
    found = simulate(chain, steps)
    assert found == (answer["persistent_makespan"], answer["persistent_simulated_peak"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_simulation_of_simple_schedules(case):
    chain = chain_of(case)
    kept = simulate(chain, Plan.keep_all(chain.num_blocks))
    assert kept == (case["no_checkpoint"]["makespan"], case["no_checkpoint"]["peak"])
    chen = case["chen_sqrt"]
    assert simulate(chain, operations_of(chen["sequence"], chain.num_blocks)) == (
        chen["makespan"],
        chen["peak"],
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_one_table_serves_every_budget(case):
    chain = chain_of(case)
    table = solve(chain, 500)
    assert table.unit == 1
    for answer in case["results"]:
        assert table.makespan(answer["budget"]) == answer["persistent_makespan"]
    least = table.least
    assert least is not None
    assert table.plan(least - 1) is None
    for memory, makespan in table.steps():
        plan = table.plan(memory)
        assert simulate(chain, plan).makespan == makespan
        assert simulate(chain, plan).peak <= memory
        before = table.makespan(memory - 1)
        assert before is None or before > makespan


def test_operations_of_nested_regions():
    plan = Plan.parse("recompute 0-2 (recompute 0-1 | keep 2) | keep 3")
    text = "CF_0 Fn_1 Fn_2 Fe_3 L B_3 CF_0 Fn_1 Fe_2 B_2 Fe_0 Fe_1 B_1 B_0"
    assert operations(plan) == operations_of(text, 4)


def test_the_last_of_a_recomputed_region_runs_once():
    plan = Plan.parse("recompute 0-2 (keep 0 | recompute 1-2) | keep 3")
    flat = Plan.parse("recompute 0-2 | keep 3")
    assert simulate(line(4), plan).makespan == simulate(line(4), flat).makespan


def test_early_stop_makes_the_last_stage_of_a_region_cheaper():
    chain = line(4, again=(0.25,) * 5)
    assert simulate(chain, Plan.keep_all(4)).makespan == 12
    assert simulate(chain, Plan.parse("recompute 0-2 | keep 3")).makespan == 14.25
    assert simulate(chain, Plan.parse("recompute each 0-2 | keep 3")).makespan == 12.75
    table = solve(chain, 50)
    assert table.makespan(table.least) == simulate(chain, table.plan(table.least)).makespan


def test_what_is_held_counts():
    chain = line(3, held=(7, 3, 1, 0))
    assert simulate(line(3), Plan.keep_all(3)).peak == 9  # at the backward of the loss
    # At the last backward: the input, what block 0 saved, two gradients and what is held.
    assert simulate(chain, Plan.keep_all(3)).peak == 5 + 7
    assert solve(chain, 60).least == 5 + 7
    assert solve(line(3), 60).least == 6


def test_with_exact_conditions_each_forgotten_forward_must_fit():
    chain = Chain(
        forward=(1, 1, 0),
        backward=(1, 1, 0),
        x=(1, 1, 1),
        saved=(4, 9),
        forward_temporary=(0, 15, 0),
        backward_temporary=(0, -9, 0),
        keep_temporary=(0, 30),
    )
    # Stage 1 is forgotten in 1 + 1 + 1 + 15; kept, it needs 1 + 4 + 9 + 30 beside a kept stage 0.
    assert solve(chain, 60).steps() == [(18, 6), (21, 5), (44, 4)]


def test_cuts_and_stages_to_keep_are_respected():
    chain = line(6, cuts=frozenset({2, 5}), keep_only=frozenset({3}))
    table = solve(chain, 60)
    plans = {table.plan(memory) for memory, _ in table.steps()}
    assert all(chain.allows(plan) for plan in plans)
    assert all(3 not in plan.recomputed for plan in plans)
    assert any(len(region) > 1 for plan in plans for region in plan.regions)
    assert not chain.allows(Plan.parse("recompute 1-2 | keep 3-5"))
    assert not chain.allows(Plan.parse("recompute 3 | keep 4-5"))


def test_revolve_keeps_no_block_but_the_last():
    chain = line(6)
    table, rotor = solve(chain, 60, store_all=False), solve(chain, 60)
    plans = [table.plan(memory) for memory, _ in table.steps()]
    assert all(plan.recomputed >= set(range(5)) for plan in plans)
    for memory, makespan in table.steps():
        assert rotor.makespan(memory) <= makespan
    # Binomial schedules: six stages of which two inputs may be stored beside the first.
    assert table.makespan(table.least + 1) > table.makespan(60)


def test_a_hundred_blocks_take_less_than_ten_seconds():
    rng = random.Random(1)
    chain = Chain(
        forward=(*(rng.random() for _ in range(100)), 0.0),
        backward=(*(rng.random() for _ in range(100)), 0.0),
        x=tuple(rng.randrange(1, 1000) for _ in range(101)),
        saved=tuple(rng.randrange(1000, 9000) for _ in range(100)),
    )
    start = time.process_time()
    table = solve(chain, 2 * simulate(chain, Plan.keep_all(100)).peak)
    assert time.process_time() - start < 10
    assert table.makespan(table.bound) == pytest.approx(sum(chain.forward) + sum(chain.backward))


def test_the_compiled_table_is_that_of_numpy(monkeypatch):
    if rotor_compiled.problem():
        pytest.skip(rotor_compiled.problem())
    rng = random.Random(0)
    chains = [some_chain(rng, blocks, exact=blocks % 2 == 1) for blocks in range(1, 31)]
    options = [{"slots": rng.choice((20, 300, 600)), "store_all": i % 3 > 0} for i in range(30)]
    compiled = [solve(c, sum(c.saved) + 20, **o) for c, o in zip(chains, options)]
    monkeypatch.setattr(rotor_compiled, "problem", lambda: "there is no compiler")
    for chain, option, table in zip(chains, options, compiled):
        again = solve(chain, table.bound, **option)
        assert again.steps() == table.steps()
        assert all(np.array_equal(a, b) for a, b in zip(again._best, table._best))


def some_chain(rng, blocks, exact):
    def sizes(low, high, count):
        return tuple(rng.randint(low, high) for _ in range(count))

    def times(count):
        return tuple(rng.random() for _ in range(count))

    more = {}
    if exact:
        more = {
            "keep_temporary": sizes(-3, 9, blocks),
            "again": times(blocks + 1),
            "held": sizes(0, 5, blocks + 1),
            "cuts": frozenset(rng.sample(range(1, blocks + 1), 1)),
            "keep_only": frozenset(rng.sample(range(blocks), rng.randint(0, 1))),
        }
    return Chain(
        forward=(*times(blocks), 0.0),
        backward=times(blocks + 1),
        x=sizes(0, 5, blocks + 1),
        saved=sizes(0, 20, blocks),
        forward_temporary=sizes(-3, 9, blocks + 1),
        backward_temporary=sizes(-3, 9, blocks + 1),
        **more,
    )


def test_without_a_compiler_it_is_said_that_it_takes_longer(monkeypatch):
    monkeypatch.setattr(rotor_compiled, "problem", lambda: "there is no compiler")
    said = []
    solve(line(40), 50, progress=said.append)
    assert said[0] == "this takes several times as long as it could: there is no compiler"


def test_sizes_are_rounded_up():
    chain = Chain(forward=(1, 0), backward=(1, 0), x=(1001, 1001), saved=(1501,))
    exact = simulate(chain, Plan.keep_all(1)).peak
    assert exact == 4504
    assert solve(chain, exact, slots=exact).least == exact
    table = solve(chain, 2 * exact, slots=9)
    assert table.unit == 1001
    assert table.least == 5 * 1001  # 1 + 1 + 2 + 1 units
    assert table.makespan(exact) is None


def test_nothing_fits_below_the_input():
    table = solve(line(2), 1)
    assert table.least is None
    assert table.plan(1) is None
    assert table.makespan(0) is None


def test_progress_is_told_and_an_interrupt_passes(monkeypatch):
    clock = iter(range(0, 1000, 2))
    monkeypatch.setattr("mimose.solvers.rotor.time.monotonic", lambda: next(clock))
    said = []
    solve(line(3), 50, progress=said.append)
    assert said[-1] == "solved for 4 of 4 stages"

    def interrupt(text):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        solve(line(3), 50, progress=interrupt)


@pytest.mark.parametrize(("budget", "slots"), [(0, 5), (5, 0), (-1, 5)])
def test_bad_bounds_are_refused(budget, slots):
    with pytest.raises(ValueError, match="must be positive"):
        solve(line(2), budget, slots)


def test_a_table_does_not_go_beyond_its_bound():
    with pytest.raises(ValueError, match="goes up to 20 bytes"):
        solve(line(2), 20).makespan(21)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backward": (1.0,)}, "needs 3 of backward"),
        ({"saved": (1, -1)}, "must not be negative"),
        ({"forward": (1.0,)}, "at least one block"),
    ],
)
def test_chains_that_are_none(change, message):
    facts = {"forward": (1.0, 1.0, 0.0), "backward": (1.0, 1.0, 0.0), "x": (1, 1, 1)}
    with pytest.raises(ValueError, match=message):
        Chain(**{**facts, "saved": (2, 2), **change})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Fn_0 Fe_1 L B_1 Fe_0 B_0", "Fe_0 needs"),
        ("Fe_0 CF_1 L B_1 B_0", "B_1 needs"),
        ("Fe_0 Fe_1 L B_1", "before the backward of stage 0"),
    ],
)
def test_impossible_schedules(text, message):
    with pytest.raises(ValueError, match=message):
        simulate(line(2), operations_of(text, 2))


def test_operations_are_read_as_written():
    assert operations_of("CF_0 L", 3) == [Operation("CF", 0), Operation("L", 3)]


def line(blocks, **more):
    """A uniform chain: forward 1, backward 2, activations 1, saved 2."""
    return Chain(
        forward=(*[1.0] * blocks, 0.0),
        backward=(*[2.0] * blocks, 0.0),
        x=(1,) * (blocks + 1),
        saved=(2,) * blocks,
        **more,
    )
