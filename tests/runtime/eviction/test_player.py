"""The engine and its heuristics against the answers of DTR's own simulator, and reading logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mimose.runtime.eviction.heuristics import HEURISTICS, Largest, Lru
from mimose.runtime.eviction.player import parse, play, unit_chain

CASES = json.loads((Path(__file__).parent / "data/dtr_logs.json").read_text())
NAMES = {
    "DTR": "h_DTR",
    "DTREqClass": "h_DTR_eq",
    "DTRLocal": "h_DTR_local",
    "LRU": "lru",
    "LargestStorage": "largest",
    "MSPS": "msps",
}
RUNTIMES = {"RuntimeV2EagerOptimized": True, "RuntimeV2Optimized": False}


def differences(log, row):
    """What a replay says and the row says otherwise."""
    outcome = play(
        log, HEURISTICS[NAMES[row["heuristic"]]](), row["budget"], eager=RUNTIMES[row["runtime"]]
    )
    stats = outcome.stats
    got = {
        "status": outcome.status,
        "clock": outcome.clock,
        "model_compute": stats.operator_cost,
        "remat_compute": stats.recompute_cost,
        "max_memory": outcome.peak,
        "heuristic_evals": stats.evaluations,
        "evictions": stats.num_evictions + stats.num_released,
        "evict_order": [list(eviction) for eviction in outcome.evictions],
    }
    # Some rows leave the order out.
    return {key: (value, row[key]) for key, value in got.items() if row.get(key, value) != value}


def rows(results):
    found = [row for row in results if row["runtime"] in RUNTIMES]
    assert found
    assert {row["heuristic"] for row in found} <= NAMES.keys()
    return found


@pytest.mark.parametrize("n", sorted({row["n"] for row in CASES["uniform_linear"]}))
def test_unit_chains_are_as_the_simulator_plays_them(n):
    for row in rows(row for row in CASES["uniform_linear"] if row["n"] == n):
        assert differences(unit_chain(n), row) == {}, (row["heuristic"], row["runtime"])


@pytest.mark.parametrize("graph", CASES["random_graphs"], ids=lambda graph: graph["name"])
def test_random_graphs_are_as_the_simulator_plays_them(graph):
    log = parse(graph["log"])
    free = play(log, Lru(), None)
    assert (free.peak, free.clock) == (
        graph["baseline"]["max_memory"],
        graph["baseline"]["compute"],
    )
    for row in rows(graph["results"]):
        assert differences(log, row) == {}, (row["heuristic"], row["runtime"], row["ratio"])


def test_every_row_but_those_of_the_variant_left_out_is_compared():
    everything = [*CASES["uniform_linear"]]
    for graph in CASES["random_graphs"]:
        everything += graph["results"]
    assert len(rows(everything)) == 392
    assert {row["runtime"] for row in everything if row["runtime"] not in RUNTIMES} == {"RuntimeV1"}


def lines(*records):
    return [json.dumps(record) for record in records]


def constant(name, size):
    return (
        {"INSTRUCTION": "CONSTANT", "NAME": name},
        {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(size)},
    )


def call(name, args, cost, **results):
    """Results are name=bytes, or name="k" for a view of argument k."""
    yield {
        "INSTRUCTION": "CALL",
        "NAME": name,
        "ARGS": args,
        "RESULT": list(results),
        "TIME": str(cost),
    }
    for result, size in results.items():
        view = isinstance(size, str)
        yield {"INSTRUCTION": "MEMORY", "NAME": result, "MEMORY": "7" if view else str(size)}
        yield {"INSTRUCTION": "ALIAS", "NAME": result, "ALIAS": size if view else "-1"}


def test_a_view_takes_no_memory_and_is_made_again_by_its_own_operator():
    log = parse(
        lines(
            *call("f", [], 2, x=4),
            *call("view", ["x"], 1, y="0"),
            *call("g", [], 1, big=4),
            {"INSTRUCTION": "RELEASE", "NAME": "big"},
            *call("h", ["y"], 1, z=1),
        )
    )
    assert play(log, Largest(), None).peak == 8
    outcome = play(log, Largest(), 6)
    # x goes for big; for h both f and the view run again.
    assert outcome.evictions == [(4, 0), (5, 2)]
    assert (outcome.stats.num_rematerializations, outcome.stats.recompute_cost) == (2, 3)
    assert (outcome.status, outcome.peak, outcome.clock) == ("ok", 5, 8)


def test_copies_keep_a_tensor_alive():
    log = [
        *call("f", [], 1, x=4),
        {"INSTRUCTION": "COPY", "DST": "y", "SRC": "x"},
        {"INSTRUCTION": "RELEASE", "NAME": "x"},
        *call("g", [], 1, z=4),
    ]
    assert play(parse(lines(*log)), Lru(), None).peak == 8
    log.insert(5, {"INSTRUCTION": "RELEASE", "NAME": "y"})
    outcome = play(parse(lines(*log)), Lru(), None)
    assert (outcome.peak, outcome.stats.num_released) == (4, 1)


def test_a_copy_over_a_name_releases_what_had_it():
    log = [
        *call("f", [], 1, x=4),
        *call("g", [], 1, z=4),
        {"INSTRUCTION": "COPY_FROM", "DST": "x", "SRC": "z"},
        *call("h", ["x"], 1, last=1),
    ]
    outcome = play(parse(lines(*log)), Lru(), None)
    assert outcome.evictions == [(3, 0)]


def test_a_mutation_makes_new_storage_and_releases_the_old():
    log = [
        *call("f", [], 1, x=4),
        *call("g", [], 1, z=1),
        {"INSTRUCTION": "MUTATE", "NAME": "add_", "ARGS": ["z", "x"], "MUTATE": [1], "TIME": "5"},
        *call("h", ["x"], 1, last=1),
    ]
    outcome = play(parse(lines(*log)), Lru(), None)
    assert outcome.evictions == [(8, 0)]
    assert (outcome.peak, outcome.clock) == (9, 8)


def test_what_is_before_the_start_is_left_out():
    log = lines(*constant("x", 3), {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "START"})
    assert parse(log) == []
    assert len(parse(log[:-1])) == 1


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (["nothing"], "line 1 of this operator log is no JSON object"),
        (["", "[1]"], "line 2 of this operator log is no JSON object"),
        (['{"NAME": "x"}'], "line 1 of this operator log cannot be understood"),
        (['{"INSTRUCTION": "FLY"}'], "no instruction is called FLY"),
        (lines(constant("x", 3)[0]), "line 1 of this operator log cannot be understood"),
        (lines(constant("x", 3)[0], constant("y", 3)[1]), "MEMORY of x does not follow"),
    ],
)
def test_a_log_that_is_none_is_refused(log, said):
    with pytest.raises(ValueError, match=said):
        parse(log)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (call("f", ["x"], 1, y=1), "uses x before it defines it"),
        ([{"INSTRUCTION": "RELEASE", "NAME": "x"}], "uses x before it defines it"),
        (
            [*constant("x", 1), *[{"INSTRUCTION": "RELEASE", "NAME": "x"}] * 2],
            "releases x more often than it is named",
        ),
    ],
)
def test_a_log_that_names_what_is_not_there_is_refused(log, said):
    with pytest.raises(ValueError, match=said):
        play(parse(lines(*log)), Lru(), None)


def test_a_constant_that_does_not_fit_is_out_of_memory():
    assert play(parse(lines(*constant("x", 3))), Lru(), 2).status == "OOM"


def test_thrashing_ends_a_replay():
    free = play(unit_chain(32), Lru(), 6)
    assert free.status == "ok"
    assert free.stats.recompute_cost > free.stats.operator_cost
    outcome = play(unit_chain(32), Lru(), 6, thrash_limit=2)
    assert outcome.status == "thrashing"
    assert outcome.stats.recompute_cost > outcome.stats.operator_cost
