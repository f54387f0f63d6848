"""Set a sweep up: its cells from its grid, its folder locked, the summary at the end."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mimose.units import format_bytes
from mimose_bench.experiments.cells import CellError
from mimose_bench.experiments.comparison import bounds as measure_bounds
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.files import jsonable
from mimose_bench.experiments.opening import require_device
from mimose_bench.experiments.sweep import executors
from mimose_bench.experiments.sweep.cells import BOUNDING, Cell, expand
from mimose_bench.experiments.sweep.executors import EXECUTORS, Executor
from mimose_bench.experiments.sweep.grid import Grid
from mimose_bench.experiments.sweep.identity import arguments, identity
from mimose_bench.experiments.sweep.runner import Runner, shown_command
from mimose_bench.experiments.sweep.store import Store
from mimose_bench.experiments.sweep.summary import rows

Say = Callable[[str], None]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How a sweep is carried out; nothing of it changes what its cells are.

    Attributes:
        executor: ``local``, ``slurm`` or ``ray``.
        jobs: Most processes at once; None is one here, and all of them on a cluster.
        gpus: GPUs of a process on a cluster; None is one for cuda, none elsewhere.
        partition: Slurm's partition.
        minutes: Most minutes of a job of Slurm's.
        share: Whether cells of one task on one simulated device share a process.
    """

    executor: str = "local"
    jobs: int | None = None
    gpus: int | None = None
    partition: str | None = None
    minutes: int | None = None
    share: bool = True

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise ValueError(
                f"--executor must be {', '.join(EXECUTORS[:-1])} or {EXECUTORS[-1]}, not "
                f"{self.executor}"
            )
        for name, least in (("jobs", 1), ("gpus", 0), ("minutes", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"--{name} must be at least {least}, not {value}")
        for name in ("partition", "minutes"):
            if getattr(self, name) is not None and self.executor != "slurm":
                raise ValueError(f"--{name} belongs to --executor slurm, not to {self.executor}")
        if self.gpus is not None and self.executor == "local":
            raise ValueError("--gpus belongs to --executor slurm or ray: local cells name a device")

    @property
    def is_cluster(self) -> bool:
        """Whether cells run on other machines than this one."""
        return self.executor != "local"

    def open(self, folder: Path, cells: list[Cell]) -> Executor:
        """Return the executor.

        Raises:
            ValueError: If what it needs is not there.
        """
        if self.executor == "local":
            return executors.Local(self.jobs or 1)
        on_cuda = any(cell.config.device.startswith("cuda") for cell in cells)
        gpus = int(on_cuda) if self.gpus is None else self.gpus
        if self.executor == "ray":
            return executors.Ray(gpus=gpus, slots=self.jobs)
        return executors.Slurm(
            folder, gpus=gpus, partition=self.partition, minutes=self.minutes, slots=self.jobs
        )


def plan(grid: Grid, folder: Path, way: Way) -> list[Cell]:
    """Return the cells of a grid without measuring or running anything.

    Cells at a share of bounds that an earlier sweep in ``folder`` has not measured stay open.

    Raises:
        ValueError: If the grid names what is not there; the message says what to change.
    """
    return _planned(_settled(grid, cluster=way.is_cluster), folder)


def _planned(grid: Grid, folder: Path) -> list[Cell]:
    known = Store(folder).document().get("bounds") or {}

    def measured(config: RunConfig) -> tuple[int, int] | None:
        found = known.get(_bounding(config))
        return None if found is None else _pair(found)

    return expand(grid, measured)


def sweep(grid: Grid, folder: Path, way: Way, say: Say) -> list[dict[str, Any]]:
    """Run the cells of a grid that have no result in ``folder`` yet.

    Returns:
        A row a cell; see :func:`mimose_bench.experiments.sweep.summary.rows`.

    Raises:
        ValueError: If the grid, the folder or the machine is wrong; the message says what to
            change.
        KeyboardInterrupt: If interrupted; the same call goes on from there.
    """
    grid = _settled(grid, cluster=way.is_cluster)
    folder = folder.absolute()
    _planned(grid, folder)  # What is wrong with the grid is said before anything is written.
    store = Store(folder)
    with store.locked():
        document = {"cells": [], **store.document()}
        bounds: dict[str, list[int]] = document.setdefault("bounds", {})

        def measured(config: RunConfig) -> tuple[int, int]:
            if _bounding(config) not in bounds:
                bounds[_bounding(config)] = _measure(config, say)
                store.write(document)  # It took a while: whoever resumes need not repeat it.
            return _pair(bounds[_bounding(config)])

        cells = expand(grid, measured)
        _warn(cells, way, say)
        facts = {
            "grid": jsonable(dataclasses.asdict(grid)),
            "way": dataclasses.asdict(way),
            "bounds": bounds,
        }
        executor = way.open(folder, cells)
        runner = Runner(
            store, cells, executor, gpus=way.gpus, share=way.share, facts=facts, say=say
        )
        try:
            runner.run()
        except KeyboardInterrupt:
            count = sum(state.state == "finished" for state in runner.states.values())
            say(f"{count} of {len(cells)} cells have a result: the same command goes on from there")
            raise
        return rows(runner.records(), folder)


def listed(cells: list[Cell], folder: Path) -> list[dict[str, str]]:
    """Return what a dry run says of each cell: the cell in words, its command and what it is."""
    store = Store(folder)
    done = store.runs()
    found = []
    for cell in cells:
        results = [run.outcome for run in done.get(cell.id, ()) if run.is_result]
        command = shown_command(store, cell.config)
        if cell.is_open:
            command = f"(the bounds of {cell.config.task} are measured first)"
        found.append(
            {
                "cell": str(cell),
                "id": cell.id,
                "state": results[0] if results else "to run",
                "command": command,
            }
        )
    return found


def _settled(grid: Grid, *, cluster: bool) -> Grid:
    """Return the grid with the device that ``auto`` is on this machine.

    Raises:
        ValueError: If a device cannot work, on this machine where cells run on it.
    """
    for device in grid.devices:
        require_device(device, here=not cluster)
    if "auto" not in grid.devices:
        return grid
    if cluster:
        raise ValueError(
            "device auto is not known before a cluster runs a cell: name it, for example "
            "--devices cuda"
        )
    import torch

    auto = "cuda" if torch.cuda.is_available() else "cpu"
    devices = dict.fromkeys(auto if device == "auto" else device for device in grid.devices)
    return dataclasses.replace(grid, devices=tuple(devices))


def _bounding(config: RunConfig) -> str:
    """Return what the bounds of a configuration are known by, whatever its seed."""
    return identity(
        {k: v for k, v in dataclasses.asdict(config).items() if k in BOUNDING and k != "seed"}
    )


def _measure(config: RunConfig, say: Say) -> list[int]:
    say(f"measuring the bounds of {config.task} on {config.device}")
    try:
        lower, upper = measure_bounds(arguments(config, BOUNDING))
    except CellError as error:
        raise ValueError(
            f"the bounds of {config.task} on {config.device} could not be measured, so that "
            f"budgets cannot be shares of them: {error}"
        ) from error
    say(f"every block recomputed {format_bytes(lower)}, none {format_bytes(upper)}")
    return [lower, upper]


def _pair(found: list[int]) -> tuple[int, int]:
    lower, upper = found
    return lower, upper


def _warn(cells: list[Cell], way: Way, say: Say) -> None:
    real = any(not cell.config.device.startswith("sim") for cell in cells)
    if real and way.executor == "local" and (way.jobs or 1) > 1:
        say(
            "warning: cells that run at once on one machine disturb each other's times; --jobs 1 "
            "does not"
        )
    if not any(c.config.planner == "baseline" and c.config.budget is None for c in cells):
        say(
            "warning: there is no baseline without a budget in the grid, so no times relative to it"
        )
