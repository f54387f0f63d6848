"""Runs that a check is made from: a sweep in the check's folder, gone on with where it ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimose_bench.experiments.figures.session import Say
from mimose_bench.experiments.reading import Run, load_run
from mimose_bench.experiments.sources import UNKNOWN_CODE
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.experiments.sweep.start import Way, sweep


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a grid and what it came to.

    Attributes:
        row: Its row of :func:`mimose_bench.experiments.sweep.summary.rows`: task, label, budget,
            seed, device, state, outcome, times relative to the baseline.
        run: Its run; None where it has none that can be read.
    """

    row: Mapping[str, Any]
    run: Run | None


@dataclass(frozen=True, slots=True)
class Recorded:
    """The runs of a grid.

    Attributes:
        cells: One a cell, in the grid's order.
        folder: Where they lie.
    """

    cells: tuple[Cell, ...]
    folder: Path

    @property
    def runs(self) -> list[Run]:
        """The runs that can be read."""
        return [cell.run for cell in self.cells if cell.run is not None]

    @property
    def device_label(self) -> str:
        """The label of the device, or of the devices, that they ran on."""
        return ", ".join(dict.fromkeys(run.device_label for run in self.runs))

    @property
    def time_label(self) -> str:
        """The same with what is known of a simulated clock."""
        return ", ".join(dict.fromkeys(run.time_label for run in self.runs))

    def find(self, **facts: Any) -> list[Cell]:
        """Return the cells whose rows have these values, e.g. ``task="qa-bert"``."""
        return [
            cell
            for cell in self.cells
            if all(cell.row.get(key) == value for key, value in facts.items())
        ]


Record = Callable[[Mapping[str, Any]], Recorded]
"""Runs a grid, as a sweep's TOML file would hold it, as far as it has not been run before."""


def recorder(
    folder: Path, device: str, say: Say, *, jobs: int = 1, codes: dict[str, str] | None = None
) -> Record:
    """Return what runs grids into ``folder``.

    Args:
        folder: A sweep's folder: made, or one in which an earlier call ended.
        device: Device of grids that name none.
        say: Takes lines of progress.
        jobs: Most processes at once.
        codes: Takes the code that made each run, in words, by the run's name.
    """

    def record(grid: Mapping[str, Any]) -> Recorded:
        read = read_grid(None, {"devices": [device], **grid})
        rows: Sequence[Mapping[str, Any]] = sweep(read, folder, Way(jobs=jobs), say)
        if codes is not None:
            codes.update({r["run"]: r["code"] or UNKNOWN_CODE for r in rows if r["run"]})
        return Recorded(tuple(Cell(row, _run(folder, row)) for row in rows), folder)

    return record


def _run(folder: Path, row: Mapping[str, Any]) -> Run | None:
    if row["run"] is None:
        return None
    try:
        run = load_run(folder / row["run"])
        _ = run.steps
        return run
    except ValueError:  # The row's note says so.
        return None
