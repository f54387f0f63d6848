"""Whole runs under planners that evict tensors, at the tiny scale."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mimose.eviction import COLUMNS, Eviction
from mimose.records import Situation, StepRecord
from mimose.units import MIB
from mimose_bench.experiments import comparing, tables
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.flops import Taken, hardware_flops, taken_in
from mimose_bench.experiments.planning import describe, plan_sizes
from mimose_bench.experiments.reading import Run, load_run
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.run import RunResult, run


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def tiny(out: Path, **options: object) -> RunConfig:
    settings: dict[str, object] = {
        "scale": "tiny",
        "data": "synthetic",
        "planner": "dtr",
        "device": "cpu",
        "steps": 4,
        "out": out,
    }
    return RunConfig(**{**settings, **options})  # type: ignore[arg-type]


def read(result: RunResult) -> Run:
    return load_run(result.info["summary"]["run_dir"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """The baseline, dtr without a budget, and dtr under one that binds."""
    out = tmp_path_factory.mktemp("runs")
    done = [
        run(tiny(out, planner="baseline"), quiet=True),
        run(tiny(out), quiet=True),
        run(tiny(out, budget=12 * MIB), quiet=True),
    ]
    assert [result.exit_code for result in done] == [0, 0, 0]
    return [read(result) for result in done]


def test_losses_are_those_of_the_baseline(runs: list[Run]) -> None:
    baseline, unlimited, limited = (list(each.steps["loss"]) for each in runs)
    assert unlimited == baseline
    assert limited == baseline


def test_without_a_budget_nothing_is_evicted(runs: list[Run]) -> None:
    baseline, unlimited, _ = runs
    assert list(unlimited.steps["num_evictions"]) == [0] * 4
    assert list(unlimited.steps["recompute_seconds"]) == [0.0] * 4
    assert unlimited.summary["peak_allocated_bytes"] == baseline.summary["peak_allocated_bytes"]


def test_under_a_budget_evictions_are_recorded(runs: list[Run]) -> None:
    _, _, limited = runs
    steps = limited.steps
    assert steps["plan"][0].startswith("evict h_DTR_eq, sampling")
    assert set(steps["phase"]) == {"static"}
    assert steps["num_evictions"].sum() > 0
    assert steps["num_rematerializations"].sum() > 0
    assert limited.summary["peak_reserved_bytes"] <= 12 * MIB
    assert limited.summary["peak_allocated_bytes"] <= 9 * MIB  # Less the reserve of a quarter.
    assert (steps["num_recomputed"] == 0).all()
    parts = [name for name in COLUMNS if name.endswith("seconds")]
    passes = steps["forward_seconds"] + steps["backward_seconds"]
    assert (steps[parts].sum(axis=1) < passes).all()


def test_other_planners_have_no_such_seconds(runs: list[Run]) -> None:
    baseline = runs[0]
    assert baseline.summary["eviction"] is None
    assert baseline.steps["eviction_search_seconds"].isna().all()
    assert list(baseline.steps["num_rematerializations"]) == [0] * 4
    assert "evictions" not in tables.show(baseline, 2)


def test_the_breakdown_is_shown(runs: list[Run]) -> None:
    limited = runs[2]
    found = limited.summary["eviction"]
    assert found["num_evictions"] == pytest.approx(limited.steps["num_evictions"].mean())
    assert found["forward_backward_seconds"] > 0
    assert json.loads(json.dumps(found)) == found
    text = tables.show(limited, 2)
    assert "operators run again" in text
    assert "recomputation" in text
    assert "planning (search)" in text


def test_the_breakdown_is_compared(runs: list[Run]) -> None:
    rows = comparing.compare(runs)
    assert [row["eviction"] is None for row in rows] == [True, False, False]
    text = tables.comparison(rows)
    assert text.count("cost maintenance") == 1
    assert runs[2].name in text
    assert [row["max_loss_difference"] for row in rows] == [0.0] * 3


def test_an_operator_that_does_not_fit_ends_the_run(tmp_path: Path) -> None:
    result = run(tiny(tmp_path, budget=12 * MIB, reserve="80%"), quiet=True)
    assert result.exit_code == 3
    assert "cannot be evicted take" in str(result.message)
    assert "a budget of 12.00 MiB less a reserve of 9.60 MiB" in str(result.message)
    found = read(result)
    assert found.info["outcome"] == "oom"
    assert list(found.steps["outcome"]) == ["oom"]


def test_thrashing_ends_the_run_and_is_recorded(tmp_path: Path) -> None:
    result = run(
        tiny(tmp_path, budget=12 * MIB, planner_options={"thrash_limit": "1.0001"}), quiet=True
    )
    assert result.exit_code == 3
    assert "was given up under planner dtr: recomputation took" in str(result.message)
    found = read(result)
    assert found.info["outcome"] == "thrashing"
    last = found.steps.iloc[-1]
    assert last["outcome"] == "thrashing"
    assert last["num_evictions"] > 0
    assert found.summary["num_thrashing"] == 1
    assert "1 given up" in tables.show(found, 1)
    (row,) = comparing.compare([found])
    assert "thrashing at step" in tables.comparison([row])


def test_simulated_steps_are_not_replayed(tmp_path: Path) -> None:
    memory = StepMemory()
    config = tiny(tmp_path, device="sim:v100", budget=40 * MIB, steps=3, flops="off")
    found = read(run(config, quiet=True, memory=memory))
    assert len(memory) == memory.num_replayed == 0
    steps = found.steps
    assert (steps["outcome"] == "ok").all()
    assert (steps["step_seconds"] > 0).all()
    assert steps["eviction_maintenance_seconds"].notna().all()


def test_a_simulated_step_pays_for_what_it_recomputes(tmp_path: Path) -> None:
    config = {"device": "sim:v100", "steps": 3, "flops": "off"}
    free, bound = (
        read(run(tiny(tmp_path, budget=budget, reserve=reserve, **config), quiet=True))
        for budget, reserve in ((None, None), (40 * MIB, "24MB"))
    )
    assert (bound.steps["num_evictions"] > 0).any()
    assert bound.summary["peak_allocated_bytes"] <= 16 * MIB
    assert bound.summary["total_seconds"] > free.summary["total_seconds"]


def test_what_ran_again_has_no_flops() -> None:
    policy = Eviction(system="dtr")
    assert hardware_flops(Taken((4, 64), policy), {}, {}) is None
    record = StepRecord((4, 64), policy, "static", Situation(0))
    assert taken_in(record) == Taken((4, 64), policy)
    assert taken_in(replace(record, outcome="thrashing")) is None


def test_plans_for_sizes_are_the_policy(tmp_path: Path) -> None:
    answers, facts = plan_sizes(tiny(tmp_path, budget=16 * MIB, reserve="4MB"), ["40", "80"])
    assert len({describe(answer) for answer in answers}) == 1
    assert describe(answers[0]).endswith("reserve 4.00 MiB")
    assert [answer.num_recomputed for answer in answers] == [0, 0]
    assert facts["margin_bytes"] is None


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"actions": "swap"}, "--actions is no option of planner dtr"),
        ({"planner": "full", "trigger": "oom"}, "--trigger is no option of planner full"),
        ({"trigger": "never"}, "trigger must be threshold"),
        ({"reserve": "12MB"}, "leaves nothing of a budget of 12.00 MiB"),
        ({"plan_size": "64"}, "--plan-size is for planners that plan once"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, options: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        run(tiny(tmp_path, **{"budget": 12 * MIB, **options}), quiet=True)
