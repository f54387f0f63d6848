"""Processes of checks: fake ones, which take no time."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from mimose_bench.experiments import environment
from mimose_bench.experiments.figures import running, stored, worker
from mimose_bench.experiments.figures.worker import Task, failed

LOG = "import os,sys,time,pathlib; log=open(sys.argv[1],'a',buffering=1)\n"


@pytest.fixture
def task(tmp_path):
    return lambda name, **options: Task(name=name, device="sim:v100", out=str(tmp_path), **options)


@pytest.fixture
def scripts(monkeypatch, tmp_path):
    """Let each task run a script of its own, ``name: code``; returns the log they write."""
    log = tmp_path / "log"

    def use(**code):
        def command(task):
            return [sys.executable, "-S", "-c", LOG + code[task.name], str(log), str(task.path)]

        monkeypatch.setattr(running, "command", command)
        return log

    return use


def timed(name, seconds):
    return (
        f"print('+{name}', file=log); time.sleep({seconds}); print('-{name}', file=log)\n"
        f"pathlib.Path(sys.argv[2]).write_text('{{}}')"
    )


def test_side_by_side_and_alone_at_the_end(scripts, task):
    log = scripts(a=timed("a", 0.1), b=timed("b", 0.5), c=timed("c", 0.5))
    tasks = [task("a", alone=True), task("b"), task("c")]
    ended = [each.name for each in running.carry_out(tasks, 2, lambda _: None)]
    lines = log.read_text().split()
    assert sorted(lines[:2]) == ["+b", "+c"]
    assert lines[4:] == ["+a", "-a"]
    assert ended[-1] == "a"


def test_a_process_that_dies_is_a_failed_check(scripts, task):
    scripts(a="os.kill(os.getpid(), 9)", b="sys.exit(7)", c=timed("c", 0))
    tasks = [task(name) for name in "abc"]
    assert len(list(running.carry_out(tasks, 3, lambda _: None))) == 3
    assert "signal 9" in stored.read(tasks[0].path).error
    assert "exit code 7" in stored.read(tasks[1].path).error


def test_an_outcome_that_cannot_be_written_ends_all_with_a_sentence(scripts, task):
    scripts(a=f"sys.exit({worker.UNWRITTEN})", b="time.sleep(60)")
    began = time.monotonic()
    with pytest.raises(OSError, match="what a came to could not be written"):
        list(running.carry_out([task("a"), task("b")], 2, lambda _: None))
    assert time.monotonic() - began < 30
    assert not task("a").path.exists()


def test_recorded_runs_of_other_code_are_noted():
    now = environment.code()
    assert worker._other_code({}) == []
    assert worker._other_code({"one": now, "two": now}) == []
    (note,) = worker._other_code({"one": now, "two": "older", "three": "older"})
    assert note == "Of its 3 recorded runs some were kept from other code: 2 by older."


def test_interrupted_ends_every_process(scripts, task):
    log = scripts(a="print(os.getpid(), file=log); time.sleep(60)", b=timed("b", 0), c="")
    found = running.carry_out([task(name) for name in "abc"], 2, lambda _: None)
    assert next(found).name in "bc"
    while not any(line.isdigit() for line in log.read_text().split()):
        time.sleep(0.01)
    (number,) = [int(line) for line in log.read_text().split() if line.isdigit()]
    found.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(task):
    missing = task("no-such-check")
    done = subprocess.run(running.command(missing), capture_output=True, text=True)
    assert done.returncode == 1
    assert "no-such-check" in done.stderr
    assert not missing.path.exists()


def test_a_failed_check_can_be_read(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(failed("x", "because")))
    found = stored.read(path)
    assert (found.name, found.result, found.error) == ("x", None, "because")


@pytest.mark.slow
def test_real_checks_side_by_side(tmp_path):
    command = [sys.executable, "-m", "mimose_bench.cli", "reproduce", "--quick", "--jobs", "2"]
    command += ["--out", str(tmp_path)]
    first = subprocess.run([*command, "activations", "clock"], capture_output=True, text=True)
    assert first.returncode == 4, first.stderr  # the clock is expected to be outside
    before = (tmp_path / "activations.json").read_bytes()
    # Asked to end while a check runs: what is done is kept, and gone on from.
    command += ["--keep", "activations", "fig3", "fig9"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert any("fig3: started" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        process.stderr.read()
        assert process.wait(60) == 130
    assert (tmp_path / "activations.json").read_bytes() == before
