"""Planning work is counted, so that a simulated device can charge it without a wall clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mimose.costs import predict_peak
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.mimose import Mimose
from mimose.records import NO_WORK, Work

LENGTHS = [153, 500, 287, 333, 205, 250, 400, 438, 310, 222]


def tight(machine, num_blocks=12):
    """A machine whose budget lets about half of the longest batch's blocks be kept."""
    free = machine(num_blocks=num_blocks)
    peaks = [
        predict_peak(free.profile((12, 500)), plan, free.info, free.situation()).bytes
        for plan in (Plan.recompute_each(num_blocks), Plan.keep_all(num_blocks))
    ]
    return machine(num_blocks=num_blocks, budget=sum(peaks) // 2)


def trained(m, **options):
    planner = Mimose(**options)
    planner.bind(m.info)
    for length in LENGTHS:
        m.step(planner, (12, length))
    return planner


def test_work_adds_up_and_comes_apart_again():
    work = Work(1, 24, 36, 2)
    assert work.estimating == Work(estimates=24)
    assert work.choosing == Work(1, 0, 36, 2)
    assert work.estimating + work.choosing == work
    assert Work(lookups=1).estimating == NO_WORK
    assert Work(lookups=1).choosing == Work(lookups=1)


@pytest.mark.parametrize("name", ["baseline", "full"])
def test_planners_that_decide_nothing_do_no_work(machine, name):
    m = machine(budget=8 << 30)
    planner = make_planner(name)
    planner.bind(m.info)
    decision, record = m.step(planner, (12, 300))
    assert decision.work == NO_WORK
    assert not planner.observe(record)


def test_a_hit_is_one_lookup(machine):
    m = tight(machine)
    planner = trained(m)
    m.step(planner, (12, 398))
    decision, record = m.step(planner, (12, 399))
    assert decision.cache_hit
    assert decision.work == Work(lookups=1)
    assert planner.observe(record) == Work(updates=1)


def test_a_miss_predicts_both_ends_and_judges_plans(machine):
    m = tight(machine)
    planner = trained(m)
    decision = planner.plan((12, 398), m.situation())
    assert not decision.cache_hit
    assert decision.work.lookups == 1
    assert decision.work.estimates == 2 * 12
    # The plan that keeps all, the one that follows and the other end of what it serves; between
    # them the greedy rule sorts every block and takes those that are recomputed.
    assert decision.plan.num_recomputed > 0
    assert decision.work.candidates >= 3 * 12 + 12 + decision.plan.num_recomputed


def test_more_blocks_are_more_work(machine):
    small, large = (trained_miss(machine, n) for n in (12, 48))
    assert large.estimates == 4 * small.estimates
    assert large.candidates > 3 * small.candidates


def trained_miss(machine, num_blocks):
    m = tight(machine, num_blocks)
    return trained(m).plan((12, 398), m.situation()).work


def test_a_sheltered_step_teaches_every_column_of_every_block(machine):
    m = tight(machine)
    planner = Mimose()
    planner.bind(m.info)
    situation = m.situation()
    first = planner.plan((12, 300), situation)
    assert first.work == NO_WORK  # Nothing is known yet.
    work = planner.observe(m.carry_out(first, (12, 300), situation))
    assert work == Work(updates=1 + 12 * 12 + 5)
    second = planner.plan((12, 310), situation)
    assert second.phase == "sheltered"
    assert second.work == Work(estimates=12, candidates=12)


def test_the_authors_variant_counts_too(machine):
    m = tight(machine)
    planner = trained(m, variant="authors")
    miss = planner.plan((12, 498), m.situation())
    assert miss.work == Work(1, 12, 12 + miss.plan.num_recomputed)
    assert planner.plan((12, 497), m.situation()).work == Work(lookups=1)


def test_equal_runs_count_equal_work(machine):
    def works():
        m = tight(machine)
        planner = trained(m)
        found = []
        for length in (480, 400, 160, 479, 333):
            situation = m.situation()
            decision = planner.plan((12, length), situation)
            found += [
                decision.work,
                planner.observe(m.carry_out(decision, (12, length), situation)),
            ]
        return found

    assert works() == works()


def test_an_unsaid_lookup_is_counted_when_the_step_is_sheltered_after_all(machine):
    """A length below all seen whose plan recomputes is measured: both decisions are work."""
    m = tight(machine)
    planner = Mimose()
    planner.bind(m.info)
    for length in [450 + i for i in range(10)]:
        m.step(planner, (12, length))
    crowded = replace(m.situation(), resident_bytes=m.resident + (1 << 29))
    decision = planner.plan((12, 440), crowded)
    assert decision.phase == "sheltered"
    assert decision.work.lookups == 1
    assert decision.work.estimates == 4 * 12
