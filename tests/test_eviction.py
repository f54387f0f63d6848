from __future__ import annotations

import json

import pytest

from mimose.eviction import COLUMNS, Eviction, EvictionFigures
from mimose.plan import Plan
from mimose.schedule import Schedule, block_plan_from_json, plan_from_json
from mimose.units import GIB

EVICTIONS = (
    Eviction(system="dtr"),
    Eviction(system="dtr", heuristic="lru", sampling=False, trigger="oom", thrash_limit=None),
    Eviction(system="dtr", reserve_bytes=3 * GIB // 2, synchronous=False, ignore_small=False),
    Eviction(system="delta", actions="both", filter="greedy", prefetch=True, synchronous=False),
)


@pytest.mark.parametrize("eviction", EVICTIONS, ids=str)
def test_round_trip_through_json(eviction):
    again = plan_from_json(json.loads(json.dumps(eviction.to_json())))
    assert again == eviction
    assert hash(again) == hash(eviction)


def test_plans_of_all_kinds_are_told_apart():
    for plan in (Plan.recompute_each(3), Schedule.from_plan(Plan.keep_all(2)), EVICTIONS[0]):
        assert plan_from_json(plan.to_json()) == plan


def test_where_blocks_are_planned_an_eviction_is_no_plan():
    with pytest.raises(ValueError, match="a plan in JSON is"):
        block_plan_from_json(EVICTIONS[0].to_json())


def test_text_is_one_line_that_tells_them_apart():
    texts = [str(eviction) for eviction in EVICTIONS]
    assert texts[0] == "evict h_DTR_eq, sampling, ignoring small, threshold, synchronous"
    assert texts[1] == "evict lru, ignoring small, on out of memory, synchronous"
    assert texts[2] == "evict h_DTR_eq, sampling, threshold, reserve 1.50 GiB"
    assert texts[3] == (
        "evict by filter greedy, recompute or swap, prefetch, sampling, ignoring small, threshold"
    )


def test_no_block_is_recomputed():
    assert EVICTIONS[0].num_recomputed == 0
    assert EVICTIONS[0].recomputed == frozenset()


def test_its_own_budget_is_less_by_the_reserve():
    assert EVICTIONS[2].own_budget(6 * GIB) == 9 * GIB // 2
    assert EVICTIONS[2].own_budget(None) is None


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"system": "dtx"}, "system of an eviction is dtr or delta, not 'dtx'"),
        ({"heuristic": "h"}, "heuristic of an eviction is h_DTR, .* or random, not 'h'"),
        ({"trigger": "later"}, "trigger of an eviction is threshold, after or oom"),
        ({"sampling": "on"}, "sampling of an eviction is true or false"),
        ({"reserve_bytes": -1}, "reserve_bytes of an eviction is a whole number, 0 or more"),
        ({"reserve_bytes": 0.5}, "reserve_bytes of an eviction is a whole number"),
        ({"thrash_limit": 1.0}, "thrash_limit of an eviction is a number above 1"),
        ({"thrash_limit": float("nan")}, "thrash_limit of an eviction is a number above 1"),
        ({"actions": "swap"}, "swapping and prefetching are delta's"),
        ({"prefetch": True}, "swapping and prefetching are delta's"),
    ],
)
def test_bad_fields_are_named(fields, complaint):
    with pytest.raises(ValueError, match=complaint):
        Eviction(**{"system": "dtr", **fields})


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ([], "an eviction in JSON is"),
        ({"heuristic": "lru"}, "an eviction in JSON is"),
        ({"eviction": "dtr", "colour": 1}, "an eviction has no field colour"),
        ({"eviction": "dtr", "system": "dtr"}, "an eviction has no field system"),
        ({"eviction": ["dtr"]}, "system of an eviction is dtr or delta"),
    ],
)
def test_json_that_is_none(data, complaint):
    with pytest.raises(ValueError, match=complaint):
        Eviction.from_json(data)


def test_figures_by_their_columns():
    figures = EvictionFigures(num_evictions=3, search_seconds=0.5, swapped_bytes=7)
    extra = figures.extra()
    assert extra.keys() == COLUMNS.keys()
    assert extra["num_evictions"] == 3
    assert extra["eviction_search_seconds"] == 0.5
    assert extra["swapped_bytes"] == 7
    assert extra["recompute_seconds"] == 0
