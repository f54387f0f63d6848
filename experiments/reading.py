"""Reading runs back, finished and killed ones alike."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from mimose_bench.experiments.clock import time_label
from mimose_bench.experiments.files import TEMPORARY
from mimose_bench.experiments.labels import options_label, planner_label
from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.schema import BLOCKS, SCHEMA_VERSION, STEPS
from mimose_bench.experiments.summary import summarize

OURS = ("sweep.json", "unfinished", "reproduced")
"""What lies beside runs in folders of this program's, besides names with a leading dot."""

_MARKS = ("sweep.json", "runs")
"""What the folders of sweeps and of reproduced values hold."""


@dataclass(frozen=True)
class Run:
    """A run as it lies on disk.

    Attributes:
        directory: The run's folder.
        info: What ``run.json`` holds.
        warnings: What could not be read and was passed over, a sentence each.
    """

    directory: Path
    info: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.directory.name

    @property
    def planner(self) -> str:
        """The planner's name."""
        return str(self.info.get("planner", "unknown"))

    @property
    def planner_label(self) -> str:
        """The planner's name and the options by which it is not as it is by default."""
        return planner_label(self.planner, self.info.get("config") or {})

    @property
    def options_label(self) -> str:
        """Those options alone; empty if there are none."""
        return options_label(self.planner, self.info.get("config") or {})

    @property
    def device_label(self) -> str:
        """What every figure of the run carries, for example ``measured on cpu``."""
        return str(self.info.get("device_label") or f"device {self.info.get('device', 'unknown')}")

    @property
    def time_label(self) -> str:
        """The device's label and, where time is simulated, how far its clock is off."""
        return time_label(self.device_label, self.info.get("clock"))

    @property
    def budget_bytes(self) -> int | None:
        """The bound on reserved bytes, or None without one."""
        value = self.info.get("budget_bytes")
        return None if value is None else int(value)

    @functools.cached_property
    def steps(self) -> pd.DataFrame:
        """A row an iteration, in order; the columns are those of ``schema.STEPS``."""
        table, problems = read_table(self.directory / "steps.parquet", STEPS)
        self.warnings.extend(problems)
        recorded = (self.info.get("summary") or {}).get("num_steps") or 0
        if recorded > table.num_rows:
            self.warnings.append(
                f"{self.directory} holds {table.num_rows} of the run's {recorded} steps: its "
                "steps.parquet is missing or incomplete, and only the summary is left of the rest"
            )
        return to_frame(table).sort_values(["rank", "step"], kind="stable", ignore_index=True)

    @functools.cached_property
    def blocks(self) -> pd.DataFrame:
        """A row a collected block and iteration; the columns are those of ``schema.BLOCKS``."""
        table, problems = read_table(self.directory / "blocks.parquet", BLOCKS)
        self.warnings.extend(problems)
        return to_frame(table)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """The summary in ``run.json``, or one of the rows so far where the run was killed."""
        computed = summarize(self.steps, self.info, run_dir=str(self.directory))
        return computed | (self.info.get("summary") or {}) | {"run_dir": str(self.directory)}


def load_run(path: str | Path) -> Run:
    """Return the run at ``path``: its folder, or its ``run.json``.

    What can be passed over (a part cut short, a file that is no part, columns that an older version
    did not write) is named in ``Run.warnings``.

    Raises:
        ValueError: If there is no run or its ``run.json`` cannot be read; the message says why.
    """
    folder = Path(path)
    if folder.name == "run.json" and not folder.is_dir():
        folder = folder.parent
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a run: there is no such folder")
    source = folder / "run.json"
    try:
        info = json.loads(source.read_text(encoding="utf-8"))
    except FileNotFoundError:
        nested = min(folder.glob("*/*/run.json"), default=None)
        raise ValueError(
            f"{folder} is not a run: it holds no run.json"
            + (f"; name a folder of runs in it, for example {nested.parents[1]}" if nested else "")
        ) from None
    except OSError as error:
        raise ValueError(f"{source} cannot be read ({error.strerror or error})") from error
    except ValueError:
        raise ValueError(f"{source} is damaged: it is not a JSON document") from None
    if not isinstance(info, dict) or not isinstance(info.get("outcome"), str):
        raise ValueError(f"{source} is not the record of a run: it names no outcome")
    warnings = []
    version = info.get("schema_version")
    if not isinstance(version, int):
        warnings.append(f"{source} names no schema_version: read as version {SCHEMA_VERSION}")
    elif version > SCHEMA_VERSION:
        raise ValueError(
            f"{source} has schema version {version}, newer than the {SCHEMA_VERSION} known here: "
            "update mimose-bench to read it"
        )
    elif version < SCHEMA_VERSION:
        warnings.append(f"{source} has the older schema version {version}: new columns are empty")
    return Run(folder, info, warnings)


def open_run(name: str, root: str | Path) -> Run:
    """Return the run that a user means by ``name``.

    Args:
        name: A path, the name of a folder in ``root``, or ``latest``.
        root: Folder that holds runs.

    Raises:
        ValueError: If there is no such run (the nearest name is given) or it cannot be read.
    """
    known = find_runs(root)
    if name == "latest":
        if not known:
            raise ValueError(
                f"there is no run in {root} yet: make one with mimose-bench run, or name the "
                "folder that holds runs with --results"
            )
        return load_run(known[0])
    if not Path(name).exists():
        if (Path(root) / name).is_dir():
            return load_run(Path(root) / name)
        raise unknown_name("run", name, [p.name for p in known])
    return load_run(name)


def find_runs(root: str | Path) -> list[Path]:
    """Return the folders in ``root`` that hold a ``run.json``, newest first; none if no folder."""
    folder = Path(root)
    if not folder.is_dir():
        return []
    found = [p.parent for p in folder.glob("*/run.json")]
    return sorted(found, key=lambda p: ((p / "run.json").stat().st_mtime, p.name), reverse=True)


def readable_runs(root: str | Path) -> tuple[list[Run], list[str]]:
    """Return the runs in a folder, newest first, and what in it was passed over, a sentence each.

    Passed over is what is no run and no folder of this program's, and runs of which the record or
    the steps cannot be read.
    """
    folder = Path(root)
    found, problems = [], []
    for path in find_runs(folder):
        try:
            run = load_run(path)
            _ = run.steps
        except ValueError as error:
            problems.append(str(error))
        else:
            found.append(run)
            problems += run.warnings
    if folder.is_dir():
        strangers = (path for path in sorted(folder.iterdir()) if not _is_ours(path))
        problems += [f"{path} was passed over: it is not a run" for path in strangers]
    return found, problems


def folder_of_runs(name: str, root: Path) -> Path | None:
    """Return the folder that holds runs and is none itself, if that is what ``name`` means."""
    folder = Path(name) if Path(name).exists() else root / name
    return folder if not (folder / "run.json").exists() and find_runs(folder) else None


def runs_in(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in a folder, the oldest first, and what was passed over, a sentence each.

    Those that ended in an error are left out if there are others.
    """
    runs, problems = readable_runs(folder)
    runs = runs[::-1]
    return [run for run in runs if run.info["outcome"] != "failed"] or runs, problems


def _is_ours(path: Path) -> bool:
    """Return whether a path in a folder of runs is a run, or something else that belongs there."""
    if path.name.startswith(".") or path.name in OURS:
        return True
    return path.is_dir() and any((path / name).exists() for name in ("run.json", *_MARKS))


def read_table(path: Path, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    """Return the table at ``path``, else that of its part files, and what was passed over.

    Raises:
        ValueError: If ``path`` is there, cannot be read, and no part file stands in for it.
    """
    problems: list[str] = []
    parts = path.with_suffix(".parts")
    if path.exists():
        try:
            return _read(path, schema), problems
        except (OSError, pa.ArrowException, ValueError) as error:
            sentence = f"{path} cannot be read ({_first_line(error)})"
            if not parts.is_dir():
                raise ValueError(sentence + ": the run has to be repeated") from error
            problems.append(sentence + ": its parts are read instead")
    tables = []
    for file in _part_files(parts):
        try:
            tables.append(_read(file, schema))
        except (OSError, pa.ArrowException, ValueError) as error:
            problems.append(f"{file} was passed over: {_first_line(error)}")
    return pa.concat_tables(tables) if tables else schema.empty_table(), problems


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Return ``table`` for pandas, integers and truth values still themselves beside nulls."""
    return table.to_pandas(types_mapper=_nullable)


def _part_files(folder: Path) -> Iterator[Path]:
    if folder.is_dir():
        yield from sorted(p for p in folder.iterdir() if not p.name.startswith(TEMPORARY))


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    table = pq.read_table(path, partitioning=None)
    if "step" not in table.column_names:
        raise ValueError("it is not a table of steps or blocks")
    columns = [
        table.column(item.name).cast(item.type)
        if item.name in table.column_names
        else pa.nulls(table.num_rows, item.type)
        for item in schema
    ]
    return pa.table(columns, schema=schema)


def _nullable(kind: pa.DataType) -> Any:
    # Plain pandas would turn integers with a missing value into floats, losing bytes over 2**53.
    if pa.types.is_integer(kind):
        return pd.Int64Dtype()
    if pa.types.is_boolean(kind):
        return pd.BooleanDtype()
    return None


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0].rstrip(".")
