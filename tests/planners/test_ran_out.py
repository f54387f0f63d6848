"""What ran out of memory with everything recomputed is not run again."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from mimose.costs import Infeasible
from mimose.plan import Plan
from mimose.planners.mimose.planner import Mimose
from mimose.planners.mimose.ran_out import RanOut
from mimose.records import Situation, StepRecord

MB = 1 << 20
THEN = Situation(100 * MB, signature="fp32")


@pytest.mark.parametrize(
    ("size", "changes", "known"),
    [
        ((8, 200), {}, True),
        ((8, 300), {}, True),
        ((9, 200), {"resident_bytes": 200 * MB}, True),
        ((8, 199), {}, False),
        ((7, 300), {}, False),
        ((8, 200, 200), {}, False),
        ((8, 200), {"resident_bytes": 99 * MB}, True),
        ((8, 200), {"resident_bytes": 90 * MB}, False),
        ((8, 200), {"signature": "bf16"}, False),
        ((8, 200), {"grads_resident": False}, False),
    ],
)
def test_what_a_failure_tells_of(size, changes, known):
    ran_out = RanOut()
    ran_out.note((8, 250), THEN)
    ran_out.note((8, 200), THEN)
    assert ran_out.before(size, replace(THEN, **changes)) == ((8, 200) if known else None)
    ran_out.forget()
    assert ran_out.before(size, replace(THEN, **changes)) is None


def trained(machine, **options):
    m, planner = machine(budget=6 << 30), Mimose(**options)
    planner.bind(m.info)
    rng = random.Random(0)
    for _ in range(20):
        m.step(planner, (12, rng.randint(100, 300)))
    return m, planner


def failed(m, plan, size=(12, 250)):
    return StepRecord(size, plan, "responsive", m.situation(), outcome="oom")


def test_a_size_that_ran_out_is_refused_and_so_are_larger_ones(machine):
    m, planner = trained(machine)
    before = planner.longest((12, 100), m.situation())
    assert before > 250
    planner.ran_out(failed(m, Plan.recompute_each(m.count)), measuring=False)
    for length, other in ((250, "since it ran"), (260, "since one of 12 x 250 ran")):
        with pytest.raises(Infeasible, match=f"12 x {length} is not run, {other}") as caught:
            planner.plan((12, length), m.situation())
        assert "cut lengths to 249, which would fit" in str(caught.value)
        assert caught.value.least_budget_bytes > m.info.budget_bytes
    assert planner.longest((12, 100), m.situation()) == 249
    planner.plan((12, 249), m.situation())
    planner.bind(replace(m.info, budget_bytes=8 << 30))
    planner.plan((12, 250), m.situation())


def test_what_kept_a_block_may_be_tried_again(machine):
    m, planner = trained(machine)
    planner.ran_out(failed(m, Plan.recompute_each(m.count, range(1, m.count))), measuring=False)
    planner.plan((12, 250), m.situation())


def test_nothing_of_it_is_saved(machine):
    m, planner = trained(machine)
    planner.ran_out(failed(m, Plan.recompute_each(m.count)), measuring=False)
    other = Mimose()
    other.bind(m.info)
    other.load_state_dict(planner.state_dict())
    other.plan((12, 250), m.situation())


def test_what_ran_out_while_measuring_is_run_without(machine):
    m, planner = machine(budget=6 << 30), Mimose()
    planner.bind(m.info)
    assert planner.plan((12, 260), m.situation()).collect
    planner.ran_out(failed(m, Plan.recompute_each(m.count)), measuring=True)
    decision = planner.plan((12, 260), m.situation())
    assert (decision.phase, decision.collect) == ("responsive", False)
    assert decision.plan == Plan.recompute_each(m.count)
    assert planner.plan((12, 240), m.situation()).collect
