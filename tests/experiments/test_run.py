"""Whole runs at the tiny scale."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mimose_bench.experiments import tables
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.reading import find_runs, load_run
from mimose_bench.experiments.run import run, slow_here

MIB = 1 << 20


def tiny(out: Path, **options: object) -> RunConfig:
    settings: dict[str, object] = {
        "scale": "tiny",
        "data": "synthetic",
        "planner": "baseline",
        "steps": 6,
        "out": out,
    }
    return RunConfig(**{**settings, **options})  # type: ignore[arg-type]


def test_a_run_is_recorded_whole(tmp_path: Path) -> None:
    result = run(tiny(tmp_path), quiet=True)
    assert result.exit_code == 0
    found = load_run(result.info["summary"]["run_dir"])
    assert found.info["outcome"] == "done"
    assert found.info["data"]["kind"] == "synthetic"
    assert found.info["optimizer_foreach"] is False
    assert found.device_label == "measured on cpu"
    steps = found.steps
    assert list(steps["step"]) == list(range(6))
    assert (steps["peak_reserved_bytes"] >= steps["peak_allocated_bytes"]).all()
    parts = steps["forward_seconds"] + steps["backward_seconds"] + steps["optimizer_seconds"]
    assert (parts <= steps["step_seconds"]).all()
    assert found.summary["num_ok"] == 6
    assert found.info["samples_per_second"] > 0
    assert 0 < found.info["thread_seconds"] < 1.05 * found.info["wall_seconds"]


def test_mimose_records_what_the_collector_saw(tmp_path: Path) -> None:
    result = run(tiny(tmp_path, planner="mimose", budget=12 * MIB, sheltered=3), quiet=True)
    found = load_run(result.info["summary"]["run_dir"])
    assert list(found.steps["phase"][:3]) == ["sheltered"] * 3
    assert len(found.blocks) >= 3 * 4
    assert found.blocks["valid"].all()
    assert found.info["margin_bytes"] > 0


def test_baseline_out_of_memory_is_a_result(tmp_path: Path) -> None:
    result = run(tiny(tmp_path, budget=10 * MIB), quiet=True)
    assert result.exit_code == 3
    assert result.message is not None
    assert "with every block recomputed this batch needs a budget of" in result.message
    found = load_run(result.info["summary"]["run_dir"])
    assert found.info["outcome"] == "oom"
    assert list(found.steps["outcome"]) == ["oom"]


def test_a_budget_below_the_parameters_is_a_result(tmp_path: Path) -> None:
    result = run(tiny(tmp_path, budget=1000), quiet=True)
    assert (result.exit_code, result.info["outcome"]) == (3, "infeasible")
    assert "less than the model's parameters take" in str(result.message)
    assert load_run(result.info["summary"]["run_dir"]).info["summary"]["num_steps"] == 0


def test_a_full_size_run_on_the_cpu_is_told_of_smaller_ones(tmp_path: Path) -> None:
    assert "--scale small" in str(slow_here(tiny(tmp_path, scale="full"), "cpu"))
    assert slow_here(tiny(tmp_path, scale="full"), "sim") is None
    assert slow_here(tiny(tmp_path), "cpu") is None


def test_a_loss_that_is_no_number_is_said_and_not_hidden(tmp_path: Path) -> None:
    result = run(tiny(tmp_path, lr=1e30, steps=3), quiet=True)
    assert (result.exit_code, result.info["outcome"]) == (0, "done")
    assert result.info["first_lost_loss"] in (1, 2)
    assert result.info["summary"]["final_loss"] is None
    folder = Path(result.info["summary"]["run_dir"])
    assert "give a smaller --lr" in (folder / "log.txt").read_text()
    assert "not a finite number since step" in tables.show(load_run(folder), num_steps=0)


def test_the_least_budget_named_does_fit(tmp_path: Path) -> None:
    plan = {"planner": "fixed", "plan": "recompute each 0-3"}  # Nothing is profiled beforehand.
    failed = run(tiny(tmp_path, budget=6 * MIB, steps=20, **plan), quiet=True)
    assert failed.exit_code == 3
    least = int(str(failed.message).rsplit("(", 1)[1].split()[0])
    step = failed.info["summary"]["num_steps"]
    assert failed.info["least_budget_bytes"] == least
    again = run(tiny(tmp_path, budget=least, steps=step, **plan), quiet=True)
    assert again.exit_code == 0


def test_skip_goes_on_after_a_batch_that_cannot_fit(tmp_path: Path) -> None:
    # One step in this stream is far longer than the others.
    config = tiny(tmp_path, planner="full", budget=8 * MIB, steps=30, on_oom="skip", seed=1)
    result = run(config, quiet=True)
    steps = load_run(result.info["summary"]["run_dir"]).steps
    assert result.exit_code == 0
    assert len(steps) == 30
    failed = steps[steps["outcome"] == "oom"]
    assert 0 < len(failed) < 30
    assert (steps["outcome"][steps["step"] > failed["step"].min()] == "ok").any()
    assert failed["sequence_length"].min() > 64


def test_a_second_run_never_overwrites_the_first(tmp_path: Path) -> None:
    folders = {run(tiny(tmp_path), quiet=True).info["summary"]["run_dir"] for _ in range(2)}
    assert len(folders) == 2
    assert len(find_runs(tmp_path)) == 2


def test_precision_bf16_trains(tmp_path: Path) -> None:
    result = run(tiny(tmp_path, precision="bf16", planner="full"), quiet=True)
    assert result.info["summary"]["num_ok"] == 6


@pytest.mark.slow
def test_a_killed_run_keeps_what_was_flushed(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mimose_bench.cli", "run", "--scale", "tiny"]
    command += ["--steps", "1000000", "--data", "synthetic", "--out", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("*/steps.parts/0*.parquet")):
            assert time.monotonic() < deadline, "nothing was flushed"
            assert process.poll() is None
            time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
    (folder,) = find_runs(tmp_path)
    assert json.loads((folder / "run.json").read_text())["outcome"] == "running"
    found = load_run(folder)
    assert len(found.steps) > 0
    assert list(found.steps["step"]) == list(range(len(found.steps)))
    assert found.summary["num_ok"] == len(found.steps)


def test_a_batch_that_does_not_fit_by_itself_is_out_of_memory(tmp_path: Path) -> None:
    options = {"planner": "fixed", "plan": "recompute 0", "batch_size": 24}
    config = tiny(tmp_path, task="ic-swin", budget=4 * MIB, steps=2, **options)
    result = run(config, quiet=True)
    assert result.exit_code == 3
    assert result.message is not None
    assert "ran out of memory" in result.message
    assert "needs a budget of" in result.message
    assert load_run(result.info["summary"]["run_dir"]).info["outcome"] == "oom"


def test_a_plan_for_more_blocks_than_there_are_leaves_nothing(tmp_path: Path) -> None:
    config = tiny(tmp_path, planner="fixed", plan="keep 0-9 | recompute 10-13")
    with pytest.raises(ValueError, match=r"covers 14 blocks, but the model has 4 \(0-3\)"):
        run(config, quiet=True)
    assert list(tmp_path.iterdir()) == []
