"""Runs of the harness in several processes: one record, with a row a rank and step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from mimose.planners import make_planner
from mimose_bench.experiments import tables
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.crew import Addition, Crew, Share
from mimose_bench.experiments.opening import memory_of, own_device
from mimose_bench.experiments.records import RunWriter, load_run

SIZES = {"input_size": 8, "batch_size": 2, "sequence_length": 4}


def row(rank, step):
    return {"rank": rank, "step": step, "outcome": "ok", "phase": "responsive", **SIZES}


def two_writers(folder):
    record = RunWriter.create(folder, task="t", planner="p", budget="none", device="cpu")
    record.shared = True
    addition = Addition(record.directory, 1)
    for step in range(3):
        record.add(row(0, step))
        addition.add(row(1, step), [{"step": step, "block": 0}])
    return record, addition


def test_two_processes_write_one_record(tmp_path):
    record, addition = two_writers(tmp_path)
    record.flush()
    addition.log("here")
    assert addition.finish("done")["outcome"] == "running"
    assert record.finish("done")["outcome"] == "done"
    run = load_run(record.directory)
    assert list(zip(run.steps["rank"], run.steps["step"])) == [
        (rank, step) for rank in (0, 1) for step in range(3)
    ]
    assert run.blocks.empty
    assert "rank 1: here" in (record.directory / "log.txt").read_text()
    assert not (record.directory / "steps.parts").exists()


def test_columns_come_by_rank_and_a_step_is_shown_with_all_its_ranks(tmp_path):
    record = RunWriter.create(tmp_path, task="t", planner="p", budget="none", device="cpu")
    record.shared = True
    others = [Addition(record.directory, rank) for rank in (1, 10)]
    for step in range(2):
        for writer in (record, *others):
            writer.add({**row(writer.rank, step), "model_flops": None})
            writer.flush()  # A part each: their names are in another order than the ranks.
    flops = [0, 1, 100, 101, 1000, 1001]
    record.finish("done", columns={"model_flops": flops}, environment={"num_processes": 3})
    run = load_run(record.directory)
    found = run.steps["model_flops"]
    assert list(found) == list(100 * run.steps["rank"] + run.steps["step"])
    lines = [line.split()[:2] for line in tables.steps(run, 1).splitlines()]
    assert lines == [["step", "rank"], ["----", "----"], ["1", "0"], ["1", "1"], ["1", "10"]]
    assert "processes       3, each" in tables.show(run, 0)


def test_a_process_finds_the_record_gone_whose_settings_were_wrong(tmp_path):
    record, addition = two_writers(tmp_path)
    shutil.rmtree(record.directory)
    assert addition.finish("failed", error="RuntimeError: rank 0 ended") == {"outcome": "failed"}
    assert not record.directory.exists()


def test_a_share_of_memory_is_of_each_processs_own_gpu(monkeypatch):
    memory = [10 << 30, 40 << 30]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(memory))
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda place: SimpleNamespace(total_memory=memory[torch.device(place).index or 0]),
    )
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "5")
    for local in (0, 1):
        monkeypatch.setenv("LOCAL_RANK", str(local))
        for name in ("auto", "cuda"):
            assert own_device(name) == f"cuda:{local}"
            assert memory_of(name) == memory[local]
        assert own_device("cpu") == "cpu"
    monkeypatch.setenv("WORLD_SIZE", "1")  # Nobody has started others: the one that was named.
    assert memory_of("cuda:0") == memory[0]


def test_the_process_that_ended_alone_says_how_the_run_ended(tmp_path):
    record, addition = two_writers(tmp_path)
    addition.finish("oom", error="too much")
    record.finish("failed", error="RuntimeError: connection closed")
    info = json.loads((record.directory / "run.json").read_text())
    assert (info["outcome"], info["error"]) == ("oom", "rank 1: too much")
    assert len(load_run(record.directory).steps) == 6


def test_each_process_takes_its_share_of_the_batches():
    class Task:
        def batches(self, steps, *, context):
            yield from range(steps)

    class Pair:
        size = 2
        rank = 0

    shares = []
    for rank in (0, 1):
        Pair.rank = rank
        shares.append(list(Share(Task(), 3, Pair).batches(None)))
    assert shares == [[0, 2, 4], [1, 3, 5]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"device": "sim:v100"}, "stands for one GPU"),
        ({"planner": "rotor", "budget": 1 << 30}, "planner rotor is not run: choose mimose"),
        ({"lengths": "expected", "steps": None}, "leave it out"),
        ({"on_oom": "skip"}, "leave it out"),
    ],
)
def test_what_is_for_one_process_is_refused(monkeypatch, options, said):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    config = RunConfig(**{"device": "cpu", "steps": 4, **options})
    with pytest.raises(ValueError, match=said):
        Crew(config, make_planner(config.planner))


def test_processes_that_cannot_find_one_another_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    with pytest.raises(ValueError, match="start them with torchrun, or unset WORLD_SIZE"):
        Crew(RunConfig(device="cpu", steps=4), make_planner("mimose"))


def torchrun(folder, *options):
    command = f"{sys.executable} -m torch.distributed.run --standalone --nproc-per-node 2"
    command += " -m mimose_bench.cli run --task qa-bert --scale tiny --data synthetic"
    command += f" --device cpu --threads 1 --quiet --batch-size 32 --out {folder}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command.split(), *options], capture_output=True, text=True, env=environment, timeout=280
    )


@pytest.mark.slow
def test_torchrun_writes_one_record(tmp_path):
    ended = torchrun(tmp_path, "--steps", "12", "--budget", "60MB", "--flops", "on")
    assert ended.returncode == 0, ended.stderr
    (folder,) = tmp_path.iterdir()
    run = load_run(folder)
    assert run.info["outcome"] == "done"
    assert run.info["environment"]["num_processes"] == 2
    assert run.steps.groupby("rank")["step"].apply(list).to_dict() == {
        0: list(range(12)),
        1: list(range(12)),
    }
    assert (run.steps["outcome"] == "ok").all()
    mine, theirs = (run.steps[run.steps["rank"] == rank] for rank in (0, 1))
    assert list(mine["sequence_length"]) != list(theirs["sequence_length"])
    assert list(mine["plan"]) != list(theirs["plan"])
    # Each row has the FLOPs of its own batch.
    by_size = run.steps.groupby(["batch_size", "sequence_length"])["model_flops"]
    assert (by_size.nunique() == 1).all()
    assert mine["model_flops"].nunique() > 1 < theirs["model_flops"].nunique()
    assert (run.steps["hardware_flops"] >= run.steps["model_flops"]).all()
    assert run.info["num_samples"] == run.steps["batch_size"].sum()
    for command in (["show"], ["compare", str(folder)], ["plot", "--out", str(tmp_path / "drawn")]):
        line = [sys.executable, "-m", "mimose_bench.cli", *command, str(folder)]
        told = subprocess.run(line, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
    assert ended.stdout.count("outcome  ") == 1


@pytest.mark.slow
def test_what_one_process_runs_out_of_ends_the_run(tmp_path):
    ended = torchrun(tmp_path, "--steps", "12", "--budget", "60MB", "--planner", "baseline")
    assert ended.returncode != 0
    (folder,) = tmp_path.iterdir()
    info = load_run(folder).info
    assert info["outcome"] == "oom"
    assert "ran out of memory under planner baseline" in info["error"]
