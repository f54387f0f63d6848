"""A sweep's folder: what is finished, what is not, and that nobody else works in it.

    results/NAME/
        sweep.json                the grid, its cells and their state
        qa-bert-mimose-4GB-.../   a run's folder, as mimose-bench run makes it
        unfinished/               folders of runs that did not end in a result and were repeated
        .sweep/                   locks, and what processes said that failed

A cell is finished if there is a run of its configuration with a result: the folders are the truth,
``sweep.json`` is what is shown of them. A lock belongs to a process and goes with it, however it
ends; processes of cells keep theirs when the sweep itself is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from mimose_bench.experiments.files import write_json
from mimose_bench.experiments.reading import find_runs
from mimose_bench.experiments.sources import code_of
from mimose_bench.experiments.sweep.identity import identity

FILE_NAME = "sweep.json"
SCHEMA_VERSION = 1
RESULTS = ("done", "oom", "infeasible", "thrashing")
"""Outcomes of runs that are results: such a cell is finished."""


@dataclass(frozen=True, slots=True)
class Found:
    """A run that lies in the folder.

    Attributes:
        id: What its configuration is known by.
        folder: Its folder.
        outcome: Its outcome so far.
        seconds: How long it took, or None if it has not ended.
        error: Why it failed, if it did.
        code: The code that made it, in words; None where its record does not say.
    """

    id: str
    folder: Path
    outcome: str
    seconds: float | None
    error: str | None
    code: str | None = None

    @property
    def is_result(self) -> bool:
        """Whether the run ended in a result."""
        return self.outcome in RESULTS


class Store:
    """A sweep's folder.

    Attributes:
        folder: The folder.
        problems: What was passed over, a sentence each.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.problems: list[str] = []
        self._read: dict[Path, tuple[int, Found | None]] = {}

    @property
    def _private(self) -> Path:
        return self.folder / ".sweep"

    def log_path(self, job: str) -> Path:
        """Return the file for what a job's processes say."""
        return self._private / f"{job}.log"

    def report_path(self, job: str) -> Path:
        """Return the file for what a job of several cells has to say of each."""
        return self._private / f"{job}.report"

    def lock_path(self, job: str) -> Path:
        """Return the file that a job's process locks."""
        return self._private / f"{job}.lock"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other sweeps out for the block.

        Raises:
            ValueError: If there is one already, or the folder cannot be written.
        """
        path = self._private / "sweep.lock"
        try:
            self._private.mkdir(parents=True, exist_ok=True)
            handle = hold(path)
        except OSError as error:
            raise ValueError(
                f"cannot write to {self.folder} ({error.strerror or error}): name a folder that "
                "can be written with --out"
            ) from error
        if handle is None:
            owner = path.read_text(encoding="utf-8").strip() or "another process"
            raise ValueError(
                f"another sweep works in {self.folder} ({owner}): wait for it, end it, or give "
                "another --out"
            )
        os.ftruncate(handle, 0)
        os.write(handle, f"process {os.getpid()} on {socket.gethostname()}".encode())
        try:
            yield
        finally:
            os.close(handle)

    def document(self) -> dict[str, Any]:
        """Return what ``sweep.json`` holds, nothing if there is none.

        Raises:
            ValueError: If it is damaged or of another version, or a file is in the folder's place.
        """
        path = self.folder / FILE_NAME
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except NotADirectoryError as error:
            raise ValueError(
                f"{self.folder} cannot be a sweep's folder, since a file is in its place: name "
                "another --out"
            ) from error
        except OSError as error:
            raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
        except ValueError:
            document = None
        if not isinstance(document, dict) or not isinstance(document.get("cells"), list):
            raise ValueError(f"{path} is damaged: delete it, finished runs are found without it")
        if document.get("schema_version") != SCHEMA_VERSION:
            raise ValueError(
                f"{path} has schema version {document.get('schema_version')}, not the "
                f"{SCHEMA_VERSION} known here: give another --out"
            )
        return document

    def write(self, document: Mapping[str, Any]) -> None:
        """Write ``sweep.json`` in one step."""
        write_json(self.folder / FILE_NAME, {"schema_version": SCHEMA_VERSION, **document})

    def runs(self) -> dict[str, list[Found]]:
        """Return the runs in the folder by what they are known by, the oldest first."""
        found: dict[str, list[Found]] = {}
        for folder in reversed(find_runs(self.folder)):
            run = self._look(folder)
            if run is not None:
                found.setdefault(run.id, []).append(run)
        return found

    def set_aside(self, run: Found) -> Path:
        """Move a run's folder to those that are unfinished, and return where it is now."""
        parent = self.folder / "unfinished"
        parent.mkdir(exist_ok=True)
        number, target = 1, parent / run.folder.name
        while target.exists():
            number += 1
            target = parent / f"{run.folder.name}-{number}"
        return run.folder.rename(target)

    def tidy(self, job: str, *, keep_log: bool) -> None:
        """Remove what a job that has ended leaves behind."""
        paths = [self.lock_path(job), self.report_path(job)]
        for path in paths if keep_log else [*paths, self.log_path(job)]:
            path.unlink(missing_ok=True)

    def reports(self, job: str) -> dict[str, str]:
        """Return what went wrong with cells of a job, by what they are known by."""
        try:
            lines = self.report_path(job).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return {}
        found = {}
        for line in lines:
            # The last line may be cut short where the process was killed.
            with contextlib.suppress(ValueError):
                entry = json.loads(line)
                found[str(entry["id"])] = str(entry["error"])
        return found

    def last_words(self, job: str) -> str | None:
        """Return the last line that a job's process said, if any."""
        try:
            text = self.log_path(job).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        ours = [line for line in lines if line.startswith("mimose-bench: ")]
        return (ours or lines or [""])[-1].removeprefix("mimose-bench: ") or None

    def _look(self, folder: Path) -> Found | None:
        path = folder / "run.json"
        try:
            stamp = path.stat().st_mtime_ns
        except OSError:
            return None
        known = self._read.get(folder)
        if known is None or known[0] != stamp:
            known = stamp, self._parse(folder, stamp)
            self._read[folder] = known
        return known[1]

    def _parse(self, folder: Path, stamp: int) -> Found | None:
        try:
            info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
            config, outcome = info["config"], info["outcome"]
            name, code = identity(config), code_of(info.get("environment") or {})
            started = datetime.fromisoformat(info["started"]).timestamp()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            self.problems.append(f"{folder / 'run.json'} is not the record of a run: passed over")
            return None
        seconds = None if outcome == "running" else max(0.0, stamp / 1e9 - started)
        return Found(name, folder, outcome, seconds, info.get("error"), code)


def hold(path: Path, *, wait: bool = False) -> int | None:
    """Lock a file and return its descriptor; None if another process has it locked.

    The lock goes when the last process that has the descriptor closes it or ends.

    Args:
        path: The file; made if it is not there.
        wait: Wait for the lock instead of returning None.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def is_held(path: Path) -> bool:
    """Return whether a process has the file locked."""
    if not path.exists():
        return False
    handle = hold(path)
    if handle is None:
        return True
    os.close(handle)
    return False


def folder_of(name: str, root: Path) -> Path | None:
    """Return the sweep's folder that a user means by ``name``: a path or a folder in ``root``."""
    for folder in (Path(name), root / name):
        if (folder / FILE_NAME).is_file():
            return folder
    return None


def missing(ids: Collection[str], runs: Mapping[str, list[Found]]) -> list[str]:
    """Return which of ``ids`` have no run with a result."""
    return [name for name in ids if not any(run.is_result for run in runs.get(name, ()))]
