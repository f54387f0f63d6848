"""Sweeps of real processes, undisturbed and killed."""

import functools
import json
import random
import subprocess
import sys
import time

import pandas as pd
import pytest
import torch

from mimose_bench import cli
from mimose_bench.experiments.reading import load_run
from mimose_bench.experiments.sweep import executors, start
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.experiments.sweep.store import Store

TINY = {
    "tasks": ["tc-bert"],
    "planners": ["baseline", "full", "mimose"],
    "budgets": ["1GB"],
    "devices": ["sim:v100"],
    "options": {
        "scale": "tiny",
        "steps": 4,
        "data": "synthetic",
        "threads": 1,
        "flops": "off",
        "batch_size": 2,
    },
}


def write_grid(path, grid):
    def shown(value):
        return str(value).lower() if isinstance(value, bool) else json.dumps(value)

    axes = [f"{k} = {shown(v)}" for k, v in grid.items() if k != "options"]
    options = [f"{k} = {shown(v)}" for k, v in grid["options"].items()]
    path.write_text("\n".join([*axes, "[options]", *options]) + "\n")
    return path


def begin(grid, out, *more):
    """Start a sweep in a process of its own."""
    command = [sys.executable, "-m", "mimose_bench.cli", "sweep", str(grid), "--out", str(out)]
    return subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(out):
    """Return each finished run by what it is known by: its folder, outcome and steps."""
    found = {}
    for name, runs in Store(out).runs().items():
        (run,) = runs  # Neither repeated nor lost.
        steps = load_run(run.folder).steps.drop(columns="wait_seconds")
        found[name] = run.folder, run.outcome, steps
    return found


def assert_same(found, expected):
    folders = [folder for folder, *_ in (*found.values(), *expected.values())]
    codes = {load_run(folder).info["environment"]["source"] for folder in folders}
    assert len(codes) == 1, "the code was edited while the sweeps ran: run the test again"
    assert found.keys() == expected.keys()
    for name, (_, outcome, steps) in expected.items():
        assert found[name][1] == outcome
        pd.testing.assert_frame_equal(found[name][2], steps)


def test_a_killed_sweep_goes_on_where_it_stopped(tmp_path):
    out = tmp_path / "out"
    grid = {**TINY, "planners": ["baseline", "full"]}
    process = begin(write_grid(tmp_path / "grid.toml", grid), out)
    before = {}
    while not before:
        time.sleep(0.1)
        assert process.poll() is None, process.stderr.read()
        before = {
            name: (run.folder, (run.folder / "run.json").stat().st_mtime_ns)
            for name, (run, *_) in Store(out).runs().items()
            if run.is_result
        }
    process.kill()
    process.communicate()
    lines = []
    rows = start.sweep(read_grid(None, grid), out, start.Way(), lines.append)
    assert [row["outcome"] for row in rows] == ["done"] * 2
    assert len(results(out)) == 2
    for name, (folder, stamp) in before.items():
        assert results(out)[name][0] == folder
        assert (folder / "run.json").stat().st_mtime_ns == stamp
    assert "cells have a result already" in " ".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("share", ["--share", "--no-share"])
def test_a_sweep_killed_at_three_moments_ends_like_an_undisturbed_one(tmp_path, share):
    grid = {**TINY, "budgets": ["60%", "1GB"], "options": {**TINY["options"], "steps": 16}}
    file = write_grid(tmp_path / "grid.toml", grid)
    undisturbed = begin(file, tmp_path / "undisturbed", share)
    _, said = undisturbed.communicate()
    assert undisturbed.returncode == 0, said
    seed = random.randrange(1 << 30)
    print("moments of seed", seed)
    moments = random.Random(seed)
    for _ in range(3):
        process = begin(file, tmp_path / "killed", share)
        time.sleep(moments.uniform(2, 15))
        process.kill()
        process.communicate()
    last = begin(file, tmp_path / "killed", share)
    _, said = last.communicate()
    assert last.returncode == 0, said
    assert_same(results(tmp_path / "killed"), results(tmp_path / "undisturbed"))


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["mimose-bench", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_a_cell_that_fails_is_a_row_and_exit_code_1(call, tmp_path):
    out = tmp_path / "out"
    options = [f"--option={k}={v}" for k, v in TINY["options"].items()]
    sweep = ["sweep", "--tasks", "tc-bert", "--planners", "baseline,full", "--out", out]
    sweep += ["--devices", "sim:v100", "--budgets", "99TB", *options]
    code, printed, said = call(*sweep)
    assert code == 1
    assert "failed: tc-bert full 99TB" in printed
    assert "failed: " in said
    assert "repeat it with: mimose-bench run --task tc-bert --planner full" in said
    code, printed, _ = call("show", out, "--json")
    assert code == 0
    assert [row["state"] for row in json.loads(printed)] == ["finished", "failed"]
    code, printed, _ = call("compare", out)
    assert "1.000 (1.000)" in printed
    code, printed, _ = call(*sweep, "--dry-run")
    assert code == 0
    assert "tc-bert baseline none sim:v100 seed 42: done" in printed
    assert "tc-bert full 99TB sim:v100 seed 42: to run" in printed


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--planners", "full"], "names no tasks"),
        (["--tasks", "qa-bert", "--planners", "full", "--jobs", "0"], "--jobs must be at least 1"),
        (["--executor", "pbs"], "--executor must be local, slurm or ray, not pbs"),
        (["--partition", "gpu"], "--partition belongs to --executor slurm, not to local"),
        (["--gpus", "2"], "--gpus belongs to --executor slurm or ray"),
        (["--executor", "ray"], "device auto is not known before a cluster runs a cell"),
        (["--seeds", "x"], "seeds are whole numbers, not 'x'"),
        (["--tasks", "qa-brt"], "did you mean 'qa-bert'?"),
        (["/no/such/grid.toml"], "cannot be read"),
        (["--devices", "cpu,sim:nosuch"], "there is no simulated GPU called 'nosuch'"),
        (["--devices", "sim:nosuch", "--dry-run"], "there is no simulated GPU called 'nosuch'"),
        (["--devices", "gpu", "--dry-run"], "unknown device 'gpu'"),
        (["--executor", "slurm", "--devices", "cuda:x"], "unknown device 'cuda:x'"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(call, tmp_path, arguments, said):
    given = ["--tasks", "qa-bert", "--planners", "full"]
    if "names no tasks" in said:
        given = []
    code, out, err = call("sweep", *given, *arguments, "--out", tmp_path / "out")
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_cuda_where_there_is_none_is_refused_but_for_a_clusters(call, tmp_path, monkeypatch, more):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    given = ["sweep", "--tasks", "qa-bert", "--planners", "full", "--devices", "cuda"]
    code, printed, err = call(*given, *more, "--out", tmp_path / "out")
    assert (code, printed) == (1, "")
    assert "there is no CUDA device here" in err
    assert not (tmp_path / "out").exists()
    given.append("--option=allocator=native")
    code, _, err = call(*given, "--executor", "slurm", "--out", tmp_path / "out")
    assert code == 1
    assert "leave --allocator out" in err
    given.pop()
    slurm = ["--executor", "slurm", "--dry-run"]
    code, printed, _ = call(*given, *slurm, "--out", tmp_path / "out")
    assert code == 0
    assert "qa-bert full none cuda seed 42: to run" in printed


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_file_in_the_folders_place_is_one_sentence(call, tmp_path, more):
    (tmp_path / "file").write_text("mine")
    given = ["sweep", "--tasks", "qa-bert", "--planners", "full", "--devices", "cpu", *more]
    code, printed, err = call(*given, "--out", tmp_path / "file")
    assert (code, printed) == (1, "")
    (line,) = err.splitlines()
    assert "name another --out" in line
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize(("executor", "module"), [("slurm", "submitit"), ("ray", "ray")])
def test_what_a_cluster_needs_is_named(call, tmp_path, monkeypatch, executor, module):
    monkeypatch.setitem(sys.modules, module, None)
    given = ["--tasks", "qa-bert", "--planners", "full", "--devices", "cpu"]
    code, _, err = call("sweep", *given, "--executor", executor, "--out", tmp_path / "out")
    assert code == 1
    assert f"pip install 'mimose-bench[{executor}]'" in err


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["slurm", "ray"])
def test_cells_run_on_a_cluster(tmp_path, monkeypatch, executor):
    pytest.importorskip({"slurm": "submitit", "ray": "ray"}[executor])
    if executor == "slurm":  # submitit's own stand-in for a cluster.
        slurm = functools.partial(executors.Slurm, cluster="local")
        monkeypatch.setattr(executors, "Slurm", slurm)
    out = tmp_path / "out"
    grid = read_grid(None, {**TINY, "devices": ["cpu"], "planners": ["baseline", "full"]})
    rows = start.sweep(grid, out, start.Way(executor=executor, jobs=2), print)
    assert [row["outcome"] for row in rows] == ["done", "done"]
    again = start.sweep(grid, out, start.Way(), print)
    assert [row["run"] for row in again] == [row["run"] for row in rows]
