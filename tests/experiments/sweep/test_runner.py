"""The account of a sweep's cells, with runs that are written at once instead of trained."""

import json
import os
import shlex

import pytest

from mimose_bench.experiments import environment
from mimose_bench.experiments.sweep import executors, summary
from mimose_bench.experiments.sweep.executors import Local
from mimose_bench.experiments.sweep.store import Store, hold, is_held

from .conftest import Played, config_of, record, states

FULL = config_of(planner="full", budget=4 << 30)


def test_every_cell_is_run_once_and_never_again(sweep, out):
    first = sweep()
    assert states(first) == {"baseline": "finished", "full": "finished", "mimose": "finished"}
    assert len(sweep.executor.jobs) == 3
    again = sweep()
    assert sweep.executor.jobs == []
    assert [r["run"] for r in again] == [r["run"] for r in first]
    assert sweep.lines == ["3 of 3 cells have a result already"]
    document = json.loads((out / "sweep.json").read_text())
    assert [c["state"] for c in document["cells"]] == ["finished"] * 3
    assert document["jobs"] == {}
    assert not list((out / ".sweep").glob("*.log"))


def test_a_changed_grid_adds_cells_and_keeps_finished_ones(sweep):
    sweep()
    more = sweep(given={"planners": ["baseline", "full", "mimose", "sqrt-n"], "seeds": [42, 1]})
    assert len(more) == 8
    assert len(sweep.executor.jobs) == 5
    sweep(given={"planners": ["baseline"]})
    assert sweep.executor.jobs == []


@pytest.mark.parametrize("outcome", ["oom", "infeasible", "thrashing"])
def test_a_result_that_is_no_success_is_a_row(sweep, outcome):
    found = sweep(lambda config: outcome if config.planner == "full" else "done")
    (full,) = (r for r in found if r["label"] == "full")
    assert (full["state"], full["outcome"]) == ("finished", outcome)
    sweep()
    assert sweep.executor.jobs == []


def test_a_run_that_failed_is_a_row_and_is_repeated_next_time(sweep, out):
    def play(job):
        config = sweep.configs[job.cells[0]]
        failed = {"outcome": "failed", "error": "ValueError: no such data"}
        record(out, config, **(failed if config == FULL else {}))
        return int(config == FULL)

    found = sweep(play=play)
    (full,) = (r for r in found if r["label"] == "full")
    assert (full["state"], full["error"]) == ("failed", "ValueError: no such data")
    said = "\n".join(sweep.lines)
    assert f"repeat it with: mimose-bench run {shlex.join(['--task', 'qa-bert'])}" in said
    assert states(sweep())["full"] == "finished"
    assert len(sweep.executor.jobs) == 1
    assert len(list((out / "unfinished").iterdir())) == 1


def test_a_cell_that_leaves_no_run_fails_with_its_last_words(sweep, store):
    def play(job):
        store.log_path(job.name).write_text("loading\nmimose-bench: there is no data\n\n")
        return 1

    found = sweep(play=play)
    assert {r["error"] for r in found} == {"there is no data"}
    assert states(found) == dict.fromkeys(("baseline", "full", "mimose"), "failed")
    assert store.log_path(found[0]["id"]).exists()
    assert {r["error"] for r in sweep(play=lambda job: -9)} == {
        "its process was killed by signal 9"
    }


def test_killed_and_interrupted_runs_are_set_aside_and_repeated(sweep, out):
    baseline = config_of(planner="baseline")
    killed = record(out, FULL, "running")
    stopped = record(out, baseline, "interrupted")
    found = sweep()
    assert set(states(found).values()) == {"finished"}
    assert {p.name for p in (out / "unfinished").iterdir()} == {killed.name, stopped.name}
    assert any(killed.name in line and "killed" in line for line in sweep.lines)
    assert any(stopped.name in line and "interrupted" in line for line in sweep.lines)


def test_what_is_no_run_is_named_and_passed_over(sweep, out):
    (out / "foreign").mkdir()
    (out / "foreign" / "run.json").write_text("{")
    (out / "older").mkdir()
    (out / "older" / "run.json").write_text('{"outcome": "done"}')
    assert set(states(sweep()).values()) == {"finished"}
    warned = [line for line in sweep.lines if line.startswith("warning")]
    assert len(warned) == 2
    assert (out / "foreign").exists()


def test_an_interrupted_sweep_stops_its_jobs_and_goes_on_later(sweep):
    def play(job):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(play=play)
    assert sweep.executor.stopped
    assert set(states(sweep.runner.records()).values()) == {"pending"}
    assert set(states(sweep()).values()) == {"finished"}


def test_results_of_other_code_are_said_and_written_down(sweep, out):
    record(out, config_of(planner="baseline"), source="0123456789abcdef")
    record(out, FULL, source="")
    found = sweep()
    (warning,) = (line for line in sweep.lines if line.startswith("warning"))
    assert "2 of them were made by other code" in warning
    assert "(0123456789abcdef)" in warning
    assert environment.code() in warning
    codes = {r["label"]: r["code"] for r in found}
    assert codes["baseline"].startswith("mimose-bench ")
    assert codes["full"] is None
    assert codes["mimose"] == environment.code()
    text = summary.describe(summary.read(out))
    assert f"1 by {environment.code()}" in text
    assert "1 by a version that did not say which it was" in text


def test_results_of_one_other_code_need_no_warning(sweep, out):
    for planner, budget in (("baseline", None), ("full", 4 << 30), ("mimose", 4 << 30)):
        record(out, config_of(planner=planner, budget=budget), source="0123456789abcdef")
    sweep()
    assert sweep.executor.jobs == []
    assert sweep.lines == ["3 of 3 cells have a result already"]
    assert "different code" not in summary.describe(summary.read(out))


# -- several cells in one process


def test_cells_of_a_task_share_a_process_on_a_simulated_device(sweep):
    sweep(given={"devices": ["sim:v100"], "tasks": ["qa-bert", "tc-bert"]})
    assert [len(job.cells) for job in sweep.executor.jobs] == [3, 3]
    assert sweep.executor.jobs[0].command[1:3] == ("-m", "mimose_bench.experiments.sweep.worker")


def test_sharing_is_for_simulated_devices_and_can_be_turned_off(sweep):
    sweep()
    assert [len(job.cells) for job in sweep.executor.jobs] == [1, 1, 1]
    sweep(given={"devices": ["sim:v100"]}, share=False)
    assert [len(job.cells) for job in sweep.executor.jobs] == [1, 1, 1]


def test_a_process_that_dies_costs_the_cell_that_it_was_at(sweep, out):
    done = []

    def play(job):
        configs = [sweep.configs[name] for name in job.cells]
        done.append(len(configs))
        record(out, configs[0])
        if len(configs) == 1:
            return 0
        record(out, configs[1], "running")
        return -11

    devices = {"devices": ["sim:v100"]}
    found = sweep(given=devices, play=play)
    assert [r["state"] for r in found] == ["finished", "failed", "finished"]
    assert found[1]["error"] == "its process was killed by signal 11"
    assert done == [3, 1]


def _interrupt(job):
    raise KeyboardInterrupt


def test_a_process_that_dies_at_once_is_not_started_for_ever(sweep):
    found = sweep(given={"devices": ["sim:v100"]}, play=lambda job: 1)
    assert {r["state"] for r in found} == {"failed"}
    assert [len(job.cells) for job in sweep.executor.jobs] == [3, 2, 1]


def test_errors_of_single_cells_of_a_process_are_told_apart(sweep, store, out):
    def play(job):
        _, second, _ = job.cells
        line = json.dumps({"id": second, "error": "no such data"})
        store.report_path(job.name).write_text(f'{line}\n{{"id": "cut sho')
        for name in job.cells:
            if name != second:
                record(out, sweep.configs[name])
        return 0

    devices = {"devices": ["sim:v100"]}
    found = sweep(given=devices, play=play)
    assert [(r["state"], r["error"]) for r in found] == [
        ("finished", None),
        ("failed", "no such data"),
        ("finished", None),
    ]


# -- one at a time


def test_two_sweeps_in_one_folder_are_refused(store, out):
    with pytest.raises(ValueError, match=f"another sweep works in .*process {os.getpid()} on"):
        Store(out).locked().__enter__()


def test_the_lock_of_a_process_that_is_gone_is_taken_over(tmp_path):
    import subprocess
    import sys

    script = (
        "import fcntl, os, sys\n"
        "file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "os.write(file, b'process 1 on elsewhere, which is a long name for a machine')\n"
        "os.kill(os.getpid(), 9)\n"
    )
    folder = tmp_path / "out"
    (folder / ".sweep").mkdir(parents=True)
    path = folder / ".sweep" / "sweep.lock"
    assert subprocess.run([sys.executable, "-c", script, str(path)], check=False).returncode == -9
    with Store(folder).locked():
        assert path.read_text().startswith(f"process {os.getpid()} on ")


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="name a folder that can be written with --out"):
        Store(tmp_path / "file").locked().__enter__()


def test_a_process_left_running_is_waited_for_and_its_result_kept(sweep, store, out):
    with pytest.raises(KeyboardInterrupt):
        sweep(play=_interrupt)
    (name,) = (name for name, config in sweep.configs.items() if config == FULL)
    document = store.document()
    store.write({**document, "jobs": {name: {"cells": [name], "remote": None}}})
    lock = hold(store.lock_path(name))
    running = record(out, FULL, "running")
    played = []

    def play(job):
        played.append(job.cells)
        record(out, sweep.configs[job.cells[0]])
        if len(played) == 2:  # Now the other process ends, too.
            info = json.loads((running / "run.json").read_text())
            (running / "run.json").write_text(json.dumps({**info, "outcome": "done"}))
            os.close(lock)
        return 0

    found = sweep(play=play, slots=2)
    assert states(found)["full"] == "finished"
    assert (name,) not in played
    assert not (out / "unfinished").exists()
    assert any("left running" in line for line in sweep.lines)


def test_a_local_process_holds_its_lock_as_long_as_it_lives(store, out):
    import sys

    from mimose_bench.experiments.sweep.executors import Job

    executor = Local()
    command = (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)")
    executor.submit(Job("name", ("name",), command, out, 0))
    assert is_held(store.lock_path("name"))
    assert executor.ended() == {}
    executor.stop()
    assert not is_held(store.lock_path("name"))


@pytest.fixture
def queue(tmp_path, monkeypatch):
    """A squeue that prints a file; a file that is not there is a controller that is away."""
    program = tmp_path / "squeue"
    program.write_text(f"#!/bin/sh\ncat {tmp_path / 'jobs'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(executors, "QUEUE_SECONDS", 0.0)
    return tmp_path / "jobs"


def test_a_job_is_lost_once_two_looks_at_slurms_queue_agree(queue):
    queue.write_text("3\n4\n")
    looks = executors.Queue()
    assert [looks.has_lost("4"), looks.has_lost("4")] == [False, False]
    queue.write_text("3\n")
    assert [looks.has_lost("4"), looks.has_lost("4")] == [False, True]
    assert not looks.has_lost("3")


def test_a_controller_that_is_away_loses_no_job(queue):
    looks = executors.Queue()
    assert not any(looks.has_lost("4") for _ in range(3))


class Following(Played):
    """An executor to which a job of an earlier sweep is known, and then lost."""

    def attach(self, name, remote):
        self._codes[name] = f"job {remote} is gone"
        return True


def test_a_job_that_an_earlier_sweep_submitted_is_followed_and_repeated_if_lost(sweep, store):
    with pytest.raises(KeyboardInterrupt):
        sweep(play=_interrupt)
    (name,) = (name for name, config in sweep.configs.items() if config == FULL)
    document = store.document()
    store.write({**document, "jobs": {name: {"cells": [name], "remote": "17"}}})
    found = sweep(make=Following)
    assert set(states(found).values()) == {"finished"}
    assert any(line.startswith("following qa-bert full 4GB") for line in sweep.lines)


# -- what it comes to


def test_the_summary_is_relative_to_the_baseline_without_a_limit(sweep, out):
    seconds = {"baseline": 1.0, "full": 1.5, "mimose": 1.2}

    def play(job):
        config = sweep.configs[job.cells[0]]
        slow = 0.1 * (config.seed - 1)
        record(out, config, seconds=seconds[config.planner] + slow * (config.planner == "full"))
        return 0

    given = {"seeds": [1, 2]}
    found = sweep(given=given, play=play)
    rows = summary.rows(found, out)
    ratios = {(r["label"], r["seed"]): r["time_ratio"] for r in rows}
    assert ratios["baseline", 1] == 1.0
    assert ratios["full", 1] == pytest.approx(1.5)
    assert ratios["full", 2] == pytest.approx(1.6)
    assert summary.read(out) == rows
    text = summary.describe(rows)
    assert "time relative to the baseline" in text
    assert "qa-bert, measured on cpu" in text
    assert "1.550 ± 0.071 (1.550 ± 0.071)" in text
    assert "config" not in rows[0]


def test_the_summary_says_what_has_no_ratio(sweep, out):
    ends = {"baseline": "done", "full": "oom", "mimose": "failed"}
    found = sweep(lambda config: ends[config.planner])
    text = summary.describe(summary.rows(found, out))
    assert "out of memory" in text
    assert "failed: qa-bert mimose 4GB seed 42: " in text
    for folder in out.glob("qa-bert-full-*"):
        (folder / "run.json").write_text("{")
    (row,) = (r for r in summary.rows(found, out) if r["label"] == "full")
    assert "damaged" in row["note"]


def test_there_is_no_legend_of_times_where_no_cell_has_one(sweep, out):
    found = sweep(given={"planners": ["full", "mimose"]})
    text = summary.describe(summary.rows(found, out))
    assert "time relative to the baseline" not in text
    assert text.count("done") == 2
    assert "None" not in text
