"""What a user means by the names and folders of a command that draws: runs, reproduced values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mimose_bench.experiments.figures import stored
from mimose_bench.experiments.figures.stored import Stored
from mimose_bench.experiments.reading import Run, find_runs, open_run, runs_in


@dataclass(frozen=True, slots=True)
class Gathered:
    """What was found.

    Attributes:
        runs: Runs that can be read.
        outcomes: Outcomes of checks, with the folders that they lie in.
        problems: What was passed over, a sentence each.
    """

    runs: list[Run] = field(default_factory=list)
    outcomes: list[tuple[Path, Stored]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def gather(names: Sequence[str], results: Path) -> Gathered:
    """Return the runs and the reproduced values that ``names`` stand for.

    Args:
        names: Runs, folders of runs, of sweeps or of reproduced values; all runs in ``results`` if
            there are none. Runs in a folder that ended in an error are left out if there are
            others.
        results: Folder that holds runs.

    Raises:
        ValueError: If a name stands for nothing, or nothing of all that can be read.
    """
    found = Gathered()
    if not names:
        _add_folder(found, results)
        if not found.runs and not found.problems:
            raise ValueError(f"there is no run in {results} yet: make one with mimose-bench run")
    for name in names:
        folder = next((p for p in (Path(name), results / name) if p.is_dir()), None)
        if folder is None or (folder / "run.json").exists():
            _add_run(found, name, results)
        elif stored.is_folder(folder):
            outcomes, problems = stored.read_all(folder)
            found.outcomes.extend((folder, outcome) for outcome in outcomes)
            found.problems.extend(problems)
        elif find_runs(folder):
            _add_folder(found, folder)
        else:
            found.problems.append(f"{folder} was passed over: it holds no run")
    if not found.runs and not found.outcomes:
        raise ValueError(f"nothing here can be drawn: {found.problems[0]}")
    return found


def _add_folder(found: Gathered, folder: Path) -> None:
    runs, problems = runs_in(folder)
    found.runs.extend(runs)
    found.problems.extend(problems)


def _add_run(found: Gathered, name: str, results: Path) -> None:
    is_there = Path(name).exists() or (results / name).exists()
    try:
        run = open_run(name, results)
        _ = run.steps
    except ValueError as error:
        if not is_there:
            raise
        found.problems.append(str(error))
        return
    found.runs.append(run)
    found.problems.extend(run.warnings)
