import dataclasses

import pytest

from mimose_bench.experiments import environment, sources
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.records import RunWriter
from mimose_bench.experiments.sweep.cells import expand
from mimose_bench.experiments.sweep.executors import Job
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.experiments.sweep.runner import Runner
from mimose_bench.experiments.sweep.store import Store

MIB = 1 << 20


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out"


@pytest.fixture
def store(out):
    found = Store(out)
    with found.locked():
        yield found


def record(out, config, outcome="done", seconds=1.0, source=None, **info):
    """Write a run's folder as a run does; one with outcome "running" was killed.

    It is of this code, unless ``source`` is the digest of another; "" is none, as it once was.
    """
    source = sources.digest(of_runs=True) if source is None else source or None
    writer = RunWriter.create(
        out,
        task=config.task,
        planner=config.planner,
        budget=str(config.budget),
        device=config.device,
        config=dataclasses.asdict(dataclasses.replace(config, out=out)),
        budget_bytes=config.budget,
        device_label="measured on cpu",
        seed=config.seed,
        environment={"source": source, "versions": environment.versions()},
    )
    for step in range(4):
        writer.add(
            {
                "rank": 0,
                "step": step,
                "phase": "sheltered" if config.planner == "mimose" and step < 2 else "static",
                "input_size": 400 + step,
                "batch_size": 4,
                "sequence_length": 100 + step,
                "outcome": "ok",
                "step_seconds": seconds if step > 1 else 2 * seconds,
                "peak_allocated_bytes": 50 * MIB,
                "peak_reserved_bytes": 55 * MIB,
                "num_alloc_retries": 0,
            }
        )
    if outcome != "running":
        writer.finish(outcome, **info)
    return writer.directory


class Played:
    """An executor whose jobs are played by a function at once."""

    def __init__(self, play, slots=1):
        self.slots = slots
        self.jobs: list[Job] = []
        self.stopped = False
        self._play = play
        self._codes = {}

    def submit(self, job):
        self.jobs.append(job)
        self._codes[job.name] = self._play(job)

    def attach(self, name, remote):
        return False

    def ended(self):
        codes, self._codes = self._codes, {}
        return codes

    def stop(self):
        self.stopped = True


@pytest.fixture
def sweep(store, out):
    """Return a function that runs a grid; how a cell's configuration ends is up to ``ends``."""

    def run(ends=lambda config: "done", *, given=None, play=None, share=True, slots=1, make=Played):
        axes = {
            "tasks": ["qa-bert"],
            "planners": ["baseline", "full", "mimose"],
            "devices": ["cpu"],
            "budgets": ["4GB"],
            "options": {"steps": 4},
        }
        cells = expand(read_grid(None, {**axes, **(given or {})}), lambda config: None)
        run.configs = {cell.id: cell.config for cell in cells}

        def each(job):
            for name in job.cells:
                record(out, run.configs[name], ends(run.configs[name]))
            return 0

        lines = []
        executor = make(play or each, slots)
        runner = Runner(store, cells, executor, share=share, say=lines.append)
        try:
            runner.run()
        finally:
            run.lines, run.executor, run.runner = lines, executor, runner
        return runner.records()

    return run


def states(records):
    return {r["label"]: r["state"] for r in records}


def config_of(**changes):
    return RunConfig(**{"steps": 4, "device": "cpu", **changes})
