from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mimose.costs import predict_peak
from mimose.plan import Plan
from mimose.planners.mimose import Mimose
from mimose.planners.mimose.entries import Terms, judge, make
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.storages import Packing

MB = 1 << 20
GB = 1 << 30
KEY = (12, 400)
LENGTHS = [153, 500, 287, 333, 205, 250, 400, 438, 310, 222]


@pytest.fixture
def case(machine):
    """A machine of 4 GB, terms and ``forecasts(scale)`` of the two ends of a key."""
    m = machine(budget=4 * GB)
    terms = Terms(m.info, range(m.count), 4 * GB, 200 * MB, 0.0)

    def forecasts(scale, packing=None):
        m.scale = scale
        return [Forecast(m.profile(KEY), packing), Forecast(m.profile((12, 396)))]

    return m, terms, forecasts


def test_an_entry_that_still_fits_is_kept_as_the_new_fit_predicts_it(case):
    m, terms, forecasts = case
    entry, _ = make(KEY, forecasts(1.0), m.situation(), terms)
    assert entry.plan.regions
    assert judge(entry, forecasts(1.0), m.situation(), terms) == entry
    slightly = forecasts(0.999)
    kept = judge(entry, slightly, m.situation(), terms)
    assert (kept.plan, kept.needed_bytes) == (entry.plan, entry.needed_bytes)
    expected = tuple(
        predict_peak(f.profile, entry.plan, m.info, m.situation()).bytes - m.resident
        for f in slightly
    )
    assert kept.ends == expected[::-1]
    assert kept.step_bytes == expected[0] < entry.step_bytes


def test_what_is_lost_to_packing_is_the_new_fit_s_too(case):
    m, terms, forecasts = case

    def packing(size):
        kept = np.full((m.count, 1), 4)
        return Packing([size], kept, np.zeros_like(kept))

    entry, _ = make(KEY, forecasts(1.0, packing(9 * MB)), m.situation(), terms)
    entry.segments[12, 397] = entry.packed.segments
    kept = judge(entry, forecasts(1.0, packing(10 * MB)), m.situation(), terms)
    assert kept.packed == packing(10 * MB).pack(sorted(entry.plan.recomputed)) != entry.packed
    assert kept.segments == {}


def test_an_entry_that_no_longer_fits_is_not_kept(case):
    m, terms, forecasts = case
    entry, _ = make(KEY, forecasts(1.0), m.situation(), terms)
    room = terms.budget_bytes - entry.needed_bytes
    assert judge(entry, forecasts(1 + 0.9 * room / entry.step_bytes), m.situation(), terms)
    over = 1 + 1.1 * room / entry.step_bytes
    assert judge(entry, forecasts(over), m.situation(), terms) is None


@pytest.mark.parametrize(
    "change", [{"resident_bytes": 1750 * MB}, {"grads_resident": False}, {"optimizer_ready": False}]
)
def test_an_entry_of_another_state_is_not_kept(case, change):
    m, terms, forecasts = case
    entry, _ = make(KEY, forecasts(1.0), m.situation(), terms)
    assert judge(entry, forecasts(1.0), m.situation(**change), terms) is None


@pytest.mark.parametrize(
    ("margin", "inflation"), [(700 * MB, 0.0), (200 * MB, 0.4)], ids=["margin", "inflation"]
)
def test_an_entry_is_judged_by_margin_and_inflation_of_now(case, margin, inflation):
    m, terms, forecasts = case
    entry, _ = make(KEY, forecasts(1.0), m.situation(), terms)
    now = replace(terms, margin_bytes=margin, inflation=inflation)
    assert judge(entry, forecasts(1.0), m.situation(), now) is None


def test_a_plan_kept_through_ever_lower_fits_recomputes_no_block_too_many(case):
    """Each fit is a little lower than the one before, and none by as much as a block frees."""
    m, terms, forecasts = case
    entry, _ = make(KEY, forecasts(1.0), m.situation(), terms)
    first = entry.plan.num_recomputed
    made = 0
    for i in range(1, 300):
        now = forecasts(1.0 - i / 1000)
        kept = judge(entry, now, m.situation(), terms)
        entry, _ = (kept, 0) if kept else make(KEY, now, m.situation(), terms)
        made += kept is None
        fresh, _ = make(KEY, now, m.situation(), terms)
        # A plan may stay until what is predicted has fallen by 1/512 of the budget.
        assert entry.plan.num_recomputed <= fresh.plan.num_recomputed or (
            entry.step_bytes + entry.resident_bytes + 200 * MB + terms.unit_bytes
            >= entry.needed_bytes
        )
    assert entry.plan.num_recomputed <= first - 2
    assert made <= 2 * (first - entry.plan.num_recomputed)


def test_an_empty_plan_is_kept_as_long_as_it_fits(case):
    m, terms, forecasts = case
    terms = replace(terms, budget_bytes=12 * GB)
    entry, _ = make(KEY, forecasts(1.0), m.situation(), terms)
    assert not entry.plan.regions
    assert judge(entry, forecasts(0.5), m.situation(), terms)
    assert judge(entry, forecasts(3.0), m.situation(), terms) is None


def test_a_sample_more_does_not_throw_the_cache_away(machine):
    m = machine(budget=4 * GB)
    planner = Mimose()
    planner.bind(m.info)
    for length in LENGTHS:
        m.step(planner, (12, length))
    before = {x: m.step(planner, (12, x))[0] for x in (171, 300, 396, 500)}
    assert not any(d.cache_hit for d in before.values())
    assert m.step(planner, (12, 512))[0].phase == "sheltered"
    for length, made in before.items():
        judged = m.step(planner, (12, length))[0]
        assert judged.cache_hit
        assert judged.plan == made.plan
        # The new fit is asked once, and what that takes is charged.
        assert 0 < judged.work.estimates <= made.work.estimates
        assert judged.work.candidates <= made.work.candidates
        again = m.step(planner, (12, length))[0]
        assert (again.cache_hit, again.work.estimates) == (True, 0)


def test_a_sample_that_shows_more_memory_makes_plans_anew(machine):
    m = machine(budget=4 * GB)
    planner = Mimose(margin="200MB")
    planner.bind(m.info)
    for length in LENGTHS:
        m.step(planner, (12, length))
    before = m.step(planner, KEY)[0]
    m.scale = 1.3
    for length in (512, 530, 550, 570, 590):
        assert m.step(planner, (12, length))[0].phase == "sheltered"
    decision, record = m.step(planner, KEY)
    assert (decision.cache_hit, decision.phase) == (False, "responsive")
    assert decision.plan.num_recomputed > before.plan.num_recomputed
    assert record.peak_allocated_bytes <= m.info.budget_bytes


def test_other_facts_about_the_model_drop_what_earlier_fits_had_planned(machine):
    m = machine(budget=4 * GB)
    planner = Mimose()
    planner.bind(m.info)
    for length in LENGTHS:
        m.step(planner, (12, length))
    assert m.step(planner, KEY)[0].plan.regions
    assert m.step(planner, (12, 512))[0].phase == "sheltered"
    planner.bind(replace(m.info, keep_only=frozenset({11})))
    decision = planner.plan(KEY, m.situation())
    assert not decision.cache_hit
    assert decision.plan.recomputed <= Plan.recompute_each(12, range(11)).recomputed
