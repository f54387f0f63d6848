"""A run's folder: opened before the first step, readable at any moment, complete at the end.

    results/qa-bert-mimose-6GB-cpu-20230515-101530/
        run.json          configuration, environment, outcome and summary
        steps.parquet     a row an iteration (steps.parts/*.parquet until the run ends)
        blocks.parquet    a row a collected block and iteration (likewise)
        plans.json        the plan, where a planner has made one for the whole run
        log.txt           what was said on screen

A run that is killed keeps every row up to its last flush, at most 10 s of training earlier.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any

import pyarrow as pa

from mimose_bench.experiments.files import write_json, write_table
from mimose_bench.experiments.reading import Run, find_runs, load_run, read_table, to_frame
from mimose_bench.experiments.schema import (
    BLOCKS,
    RUN_OUTCOMES,
    SCHEMA_VERSION,
    STEPS,
    Row,
    block_rows,
    step_row,
    to_table,
)
from mimose_bench.experiments.summary import summarize

__all__ = ["Run", "RunWriter", "block_rows", "find_runs", "load_run", "step_row"]

FLUSH_SECONDS = 10.0

_MOST_PARTS = 1_000_000
_LONGEST_LABEL = 100
"""Letters of a planner and its options in a folder's name."""

_TRIED_ROWS = 1
"""Rows of a run that only tries whether its settings fit the model: which blocks there are shows in
the first step, so that a plan for others is refused in the second."""


class RunWriter:
    """Writes one run. Use it as a context manager: an error ends the run's record, too.

    A ``ValueError`` before the second step has ended leaves no folder: it is about the settings.

    Attributes:
        directory: The run's own folder.
        info: What ``run.json`` holds.
        rank: The process whose rows it writes.
        shared: Whether other processes write to the folder, too. One that ends alone leaves there
            how the run ended.
    """

    def __init__(self, directory: Path, info: dict[str, Any], *, rank: int = 0) -> None:
        self.directory = directory
        self.info = info
        self.rank = rank
        self.shared = False
        # Numbers of its own, so that no process writes another's parts.
        self._steps = _Parts(directory, "steps", STEPS, first=rank * _MOST_PARTS)
        self._blocks = _Parts(directory, "blocks", BLOCKS, first=rank * _MOST_PARTS)
        self._oldest: float | None = None
        self._previous = time.monotonic()
        self._num_added = 0
        self._finished = False

    @classmethod
    def create(
        cls,
        parent: str | Path,
        *,
        task: str,
        planner: str,
        budget: str,
        device: str,
        label: str | None = None,
        **info: Any,
    ) -> RunWriter:
        """Make a new run folder in ``parent`` and write its ``run.json`` with outcome "running".

        The folder is called ``task-planner-budget-device-timestamp``, options of the planner after
        its name; a number follows if there is one of that name already, so that no run ever writes
        into another's folder.

        Args:
            parent: Folder that holds runs; made if it is not there.
            task: Name of the task.
            planner: Name of the planner.
            budget: The budget as the user wrote it, or ``none``.
            device: Name of the device.
            label: The planner and its options, as the folder's name is to have them.
            **info: More keys of ``run.json``, for example ``config``, ``environment``, ``seed``,
                ``budget_bytes`` and ``device_label``.

        Raises:
            ValueError: If the folder cannot be written.
        """
        started = datetime.now(timezone.utc)
        stamp = started.astimezone().strftime("%Y%m%d-%H%M%S")
        # A planner from outside is called package.module:Class.
        label = re.sub(r"[ =]+", "-", label or planner)[:_LONGEST_LABEL].rstrip("-")
        name = re.sub(r"[^A-Za-z0-9.-]+", "_", f"{task}-{label}-{budget}-{device}-{stamp}")
        document = {
            "schema_version": SCHEMA_VERSION,
            "outcome": "running",
            "task": task,
            "planner": planner,
            "budget": budget,
            "device": device,
            "started": started.isoformat(timespec="seconds"),
            "ended": None,
            **info,
        }
        try:
            writer = cls(_fresh_folder(Path(parent), name), document)
            writer._write_info()
            writer.log(f"run {writer.directory.name} started")
        except OSError as error:
            raise ValueError(
                f"cannot write results to {parent} ({error.strerror or error}): "
                "name a folder that can be written with --out"
            ) from error
        return writer

    def update(self, **info: Any) -> None:
        """Set keys of ``run.json`` now, for example once the data source is known."""
        self.info.update(info)
        self._write_info()

    def add(self, row: Row, blocks: Iterable[Row] = ()) -> None:
        """Add an iteration's row and its blocks' rows; see :func:`step_row`, :func:`block_rows`.

        Rows reach the disk once the oldest would otherwise be 10 s old when the next one comes.
        """
        now = time.monotonic()
        self._num_added += 1
        self._steps.rows.append(row)
        self._blocks.rows.extend(blocks)
        if self._oldest is None:
            self._oldest = now
        gap, self._previous = now - self._previous, now
        if now + gap - self._oldest >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the rows added so far to disk."""
        self._steps.flush()
        self._blocks.flush()
        self._oldest = None

    def log(self, text: str) -> None:
        """Add lines to ``log.txt``, each with its time."""
        stamp = datetime.now().astimezone().isoformat(timespec="seconds")
        with (self.directory / "log.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{stamp} {line}\n" for line in text.splitlines())

    def finish(
        self,
        outcome: str,
        *,
        summary: Mapping[str, Any] | None = None,
        columns: Mapping[str, Sequence[Any]] | None = None,
        **info: Any,
    ) -> dict[str, Any]:
        """Merge the parts, write the final ``run.json`` and return what it holds.

        Args:
            outcome: One of ``RUN_OUTCOMES``.
            summary: Figures that the rows cannot give or that are known better, for example the
                run-wide ``peak_allocated_bytes``; they replace those worked out from the rows.
            columns: Columns of the steps that are only known now, a value a row each; of several
                processes those of the first one come first.
            **info: More keys of ``run.json``.
        """
        if outcome not in RUN_OUTCOMES:
            raise ValueError(f"an outcome is one of {', '.join(RUN_OUTCOMES)}, not {outcome!r}")
        self._finished = True
        self.flush()
        steps = self._steps.merge(columns or {}, by_rank=self.shared)
        self._blocks.merge()
        self.info.update(info)
        self.info["outcome"] = outcome
        if self.shared and (before := self.on_disk())["outcome"] != "running":
            self.info.update(outcome=before["outcome"], error=before.get("error"))
        self.info["ended"] = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self.info["summary"] = {
            **summarize(to_frame(steps), self.info, run_dir=str(self.directory)),
            **(summary or {}),
        }
        self._write_info()
        self.log(f"run ended: {outcome}")
        return self.info

    def on_disk(self) -> dict[str, Any]:
        """Return what ``run.json`` holds now."""
        found: dict[str, Any] = json.loads((self.directory / "run.json").read_text("utf-8"))
        return found

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None or self._finished:
            return
        if isinstance(error, ValueError) and self._num_added <= _TRIED_ROWS:
            # Settings that are wrong, as the error says, make no run.
            self._finished = True
            shutil.rmtree(self.directory, ignore_errors=True)
        elif isinstance(error, KeyboardInterrupt):
            self.finish("interrupted")
        else:
            self.finish("failed", error=f"{type(error).__name__}: {error}")

    def _write_info(self) -> None:
        write_json(self.directory / "run.json", self.info)


class _Parts:
    """A table that grows on disk as numbered part files and ends as a single one."""

    def __init__(self, directory: Path, name: str, schema: pa.Schema, first: int = 0) -> None:
        self.rows: list[Row] = []
        self._path = directory / f"{name}.parquet"
        self._folder = directory / f"{name}.parts"
        self._schema = schema
        self._count = first

    def flush(self) -> None:
        if not self.rows:
            return
        self._folder.mkdir(exist_ok=True)
        table = to_table(self.rows, self._schema)
        write_table(self._folder / f"{self._count:06d}.parquet", table)
        self._count += 1
        self.rows.clear()

    def merge(
        self, columns: Mapping[str, Sequence[Any]] = MappingProxyType({}), *, by_rank: bool = False
    ) -> pa.Table:
        table, _ = read_table(self._path, self._schema)
        if by_rank:  # Names of part files bring that of rank 10 before the second one of rank 1.
            table = table.sort_by([("rank", "ascending"), ("step", "ascending")])
        for name, values in columns.items():
            place = self._schema.get_field_index(name)
            field = self._schema.field(place)
            table = table.set_column(place, field, pa.array(values, field.type))
        write_table(self._path, table)
        shutil.rmtree(self._folder, ignore_errors=True)
        return table


def _fresh_folder(parent: Path, name: str) -> Path:
    parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = parent / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder
