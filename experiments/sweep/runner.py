"""Run the cells that have no result yet, and keep the account of them."""

from __future__ import annotations

import dataclasses
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimose.units import format_seconds
from mimose_bench.experiments import environment
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.sources import UNKNOWN_CODE
from mimose_bench.experiments.sweep.cells import Cell
from mimose_bench.experiments.sweep.executors import Executor, Job
from mimose_bench.experiments.sweep.identity import arguments, changes
from mimose_bench.experiments.sweep.progress import Estimate
from mimose_bench.experiments.sweep.store import Found, Store, is_held, missing

HEARTBEAT_SECONDS = 60.0
POLL_SECONDS = 0.1
LOOK_SECONDS = 0.5
WORKER = "mimose_bench.experiments.sweep.worker"


@dataclass(slots=True)
class State:
    """What is known of a cell.

    Attributes:
        state: ``pending``, ``running``, ``finished`` (it has a result) or ``failed``.
        run: Its run, finished or failed.
        error: Why it failed.
    """

    state: str = "pending"
    run: Found | None = None
    error: str | None = None


class Runner:
    """Runs a sweep's cells.

    Args:
        store: The sweep's folder, locked.
        cells: Its cells, in the order in which they run.
        executor: Where they run.
        gpus: GPUs of a cell; None is one on cuda and none elsewhere.
        share: Whether cells of one task on one simulated device run in one process, which then
            takes each step once.
        facts: What else ``sweep.json`` holds.
        say: Takes lines of progress.
    """

    def __init__(
        self,
        store: Store,
        cells: Sequence[Cell],
        executor: Executor,
        *,
        gpus: int | None = None,
        share: bool = True,
        facts: Mapping[str, Any] | None = None,
        say: Callable[[str], None],
    ) -> None:
        self.states = {cell.id: State() for cell in cells}
        self._cells = {cell.id: cell for cell in cells}
        self._store = store
        self._executor = executor
        self._gpus = gpus
        self._share = share
        self._facts = dict(facts or {})
        self._say = say
        self._estimate = Estimate()
        self._jobs: dict[str, dict[str, Any]] = {}
        self._started: dict[str, float] = {}
        self._left_over: set[str] = set()
        self._attached: set[str] = set()
        self._written = self._said = self._looked = time.monotonic()

    def run(self) -> None:
        """Run every cell that has no result; returns when each has ended or failed.

        Raises:
            KeyboardInterrupt: If interrupted; jobs are ended first, and what they had not finished
                is repeated the next time.
        """
        self._resume()
        try:
            while self._step():
                time.sleep(POLL_SECONDS)
        except BaseException:
            self._executor.stop()
            self._settle_finished()
            for state in self.states.values():
                state.state = "pending" if state.state == "running" else state.state
            self._jobs = {k: v for k, v in self._jobs.items() if k in self._left_over}
            raise
        finally:
            self._write()

    def records(self) -> list[dict[str, Any]]:
        """Return what is known of each cell, as plain data."""
        return [self._record(cell) for cell in self._cells.values()]

    # -- where an earlier sweep stopped

    def _resume(self) -> None:
        before = self._store.document()
        for name, job in (before.get("jobs") or {}).items():
            cells = [c for c in job["cells"] if c in self._cells]
            remote = job.get("remote")
            if is_held(self._store.lock_path(name)):
                self._left_over.add(name)
                self._say(f"waiting for {self._words(cells)}, which an earlier sweep left running")
            elif remote and self._executor.attach(name, remote):
                self._attached.add(name)
                self._say(
                    f"following {self._words(cells)}, which an earlier sweep submitted ({remote})"
                )
            else:
                self._store.tidy(name, keep_log=False)
                continue
            self._begin(name, cells, remote)
        self._read_runs()
        finished = [s for s in self.states.values() if s.state == "finished"]
        if finished:
            self._say(f"{len(finished)} of {len(self.states)} cells have a result already")
            self._compare_code(finished)
        self._write()

    def _compare_code(self, finished: Sequence[State]) -> None:
        """Say so if results of other code will lie beside new ones."""
        now = environment.code()
        codes = [s.run.code for s in finished if s.run is not None]
        others = [code for code in codes if code != now]
        if others and (len(finished) < len(self.states) or len(set(codes)) > 1):
            made = ", ".join(sorted({code or UNKNOWN_CODE for code in others}))
            self._say(
                f"warning: {len(others)} of them were made by other code ({made}) than this "
                f"({now}): they are kept, and sweep.json says which; another --out makes all anew"
            )

    def _words(self, cells: Sequence[str]) -> str:
        """Return a job's cells in words."""
        if not cells:
            return "cells of another grid"
        more = f" and {len(cells) - 1} more" if len(cells) > 1 else ""
        return f"{self._cells[cells[0]]}{more}"

    def _read_runs(self) -> None:
        runs = self._store.runs()
        for cell in self._cells.values():
            state = self.states[cell.id]
            result = _result(runs.get(cell.id, ()))
            if result is not None:
                state.state, state.run = "finished", result
                self._estimate.learn(cell, result.seconds)
            elif state.state != "running":
                self._set_aside(runs.get(cell.id, ()))
        for problem in self._store.problems:
            self._say(f"warning: {problem}")

    def _set_aside(self, runs: Iterable[Found]) -> None:
        for run in runs:
            where = self._store.set_aside(run)
            how = {"running": "killed"}.get(run.outcome, run.outcome)
            self._say(f"{run.folder.name} ({how}) has no result: moved to {where.parent}, repeated")

    # -- one turn of the loop

    def _step(self) -> bool:
        """Start what may start and look at what has ended; return whether there is more to do."""
        self._start()
        for name, code in self._executor.ended().items():
            is_lost = name in self._attached and isinstance(code, str)
            self._settle(name, None if is_lost else code)
        for name in list(self._left_over):
            if not is_held(self._store.lock_path(name)):
                self._left_over.remove(name)
                self._settle(name, None)
        now = time.monotonic()
        if now - self._looked >= LOOK_SECONDS:
            self._settle_finished()
        if now - self._said >= HEARTBEAT_SECONDS and self._jobs:
            running = [c for c, s in self.states.items() if s.state == "running"]
            self._tell(f"{len(running)} cells under way in {len(self._jobs)} processes")
        if now - self._written >= 1.0:
            self._write()
        return bool(self._jobs) or any(s.state == "pending" for s in self.states.values())

    def _start(self) -> None:
        slots = self._executor.slots
        while slots is None or len(self._jobs) < slots:
            cells = self._next()
            if not cells:
                return
            ids = [cell.id for cell in cells]
            name = ids[0] if len(ids) == 1 else f"{ids[0]}-and-{len(ids) - 1}"
            self._begin(name, ids, None)
            self._write()  # Before it starts: whoever resumes must know of it.
            self._jobs[name]["remote"] = self._executor.submit(self._job(name, cells))
            if self._jobs[name]["remote"] is not None:
                self._write()

    def _begin(self, name: str, cells: Sequence[str], remote: str | None) -> None:
        self._jobs[name] = {"cells": list(cells), "remote": remote}
        for cell in cells:
            self.states[cell].state = "running"
        self._started[name] = time.monotonic()

    def _next(self) -> list[Cell]:
        """Return the cells of the next job: one, or all that share simulated steps with it."""
        pending = [c for c in self._cells.values() if self.states[c.id].state == "pending"]
        if not pending:
            return []
        first = pending[0]
        if not (self._share and first.config.device.startswith("sim")):
            return [first]
        mine = first.config.task, first.config.device
        return [c for c in pending if (c.config.task, c.config.device) == mine]

    def _job(self, name: str, cells: Sequence[Cell]) -> Job:
        on_cuda = cells[0].config.device.startswith("cuda")
        return Job(
            name=name,
            cells=tuple(cell.id for cell in cells),
            command=(
                command(self._store, cells[0].config, sys.executable)
                if len(cells) == 1
                else (sys.executable, "-m", WORKER, str(self._store.folder), name)
            ),
            folder=self._store.folder,
            gpus=int(on_cuda) if self._gpus is None else self._gpus,
        )

    # -- what has ended

    def _settle_finished(self) -> None:
        """Take note of results of jobs that still run."""
        self._looked = time.monotonic()
        running = [name for name, state in self.states.items() if state.state == "running"]
        runs = self._store.runs() if running else {}
        for name in running:
            result = _result(runs.get(name, ()))
            if result is not None:
                self._finish(name, result)

    def _settle(self, name: str, code: int | str | None) -> None:
        """Take note of a job that has ended.

        Args:
            name: The job.
            code: Its exit code, a sentence on why there is none, or None where nobody knows.
        """
        self._settle_finished()
        cells = self._jobs.pop(name)["cells"]
        del self._started[name]
        runs, reports = self._store.runs(), self._store.reports(name)
        unfinished = missing(cells, runs)
        begun = [c for c in unfinished if runs.get(c) or c in reports]
        # A process that ends before any of its cells begins would otherwise be started for ever.
        blamed = begun or (unfinished[:1] if len(unfinished) == len(cells) else [])
        if code is None:
            blamed = []  # An earlier sweep's: this one gives them another chance.
        for cell in unfinished:
            if cell in blamed:
                run = runs.get(cell, [None])[-1]
                self._fail(cell, run, reports.get(cell) or self._reason(name, run, code))
            else:
                self._set_aside(runs.get(cell, ()))
                self.states[cell].state = "pending"
        self._store.tidy(name, keep_log=bool(blamed))
        self._write()

    def _reason(self, job: str, run: Found | None, code: int | str | None) -> str:
        if run is not None and run.error:
            return run.error
        if isinstance(code, str):
            return code
        if run is not None and run.outcome == "interrupted":
            return "it was interrupted"
        if code is not None and code < 0:
            return f"its process was killed by signal {-code}"
        return self._store.last_words(job) or f"its process ended with exit code {code}"

    def _finish(self, name: str, run: Found) -> None:
        cell, state = self._cells[name], self.states[name]
        state.state, state.run, state.error = "finished", run, None
        seconds = run.seconds
        if name in self._started:  # A process of its own, whose start takes time, too.
            seconds = time.monotonic() - self._started[name]
        self._estimate.learn(cell, seconds)
        took = "" if seconds is None else f" in {format_seconds(seconds)}"
        self._tell(f"{cell}: {_WORDS.get(run.outcome, run.outcome)}{took}")

    def _fail(self, name: str, run: Found | None, reason: str) -> None:
        cell, state = self._cells[name], self.states[name]
        state.state, state.run, state.error = "failed", run, reason
        self._tell(f"{cell}: failed: {reason}")
        self._say(f"  repeat it with: {shown_command(self._store, cell.config)}")

    # -- what is said and written

    def _tell(self, text: str) -> None:
        now = time.monotonic()
        self._said = now
        left = [c for c in self._cells.values() if self.states[c.id].state in _OPEN]
        # Of a process with several cells nobody knows which of them it is at.
        started = {
            job["cells"][0]: now - self._started[name]
            for name, job in self._jobs.items()
            if len(job["cells"]) == 1
        }
        ended = f"[{len(self._cells) - len(left)}/{len(self._cells)}]"
        time_left = self._estimate.text(started, left, len(self._jobs)) if left else "all ended"
        self._say(f"{ended} {text}; {time_left}")

    def _record(self, cell: Cell) -> dict[str, Any]:
        state, config = self.states[cell.id], cell.config
        run = state.run
        return {
            "id": cell.id,
            "task": config.task,
            "label": cell.label,
            "planner": config.planner,
            "budget": cell.budget,
            "budget_bytes": config.budget,
            "seed": config.seed,
            "device": config.device,
            "state": state.state,
            "outcome": None if run is None else run.outcome,
            "run": None if run is None else run.folder.name,
            "seconds": None if run is None else run.seconds,
            "error": state.error,
            "code": None if run is None else run.code,
            "command": shown_command(self._store, config),
            "config": changes(dataclasses.asdict(config)),
        }

    def _write(self) -> None:
        self._written = time.monotonic()
        document = {**self._facts, "cells": self.records(), "jobs": self._jobs}
        self._store.write(document)


_OPEN = ("pending", "running")
_WORDS = {"oom": "out of memory"}


def command(store: Store, config: RunConfig, python: str) -> tuple[str, ...]:
    """Return the command line that runs a cell."""
    program = (python, "-m", "mimose_bench.cli")
    return (*program, "run", *arguments(config), "--out", str(store.folder), "--quiet")


def shown_command(store: Store, config: RunConfig) -> str:
    """Return the command that a user would type to run a cell."""
    return shlex.join(["mimose-bench", "run", *arguments(config), "--out", str(store.folder)])


def _result(runs: Iterable[Found]) -> Found | None:
    return next((run for run in runs if run.is_result), None)
