"""The cells of a grid: one configuration of one run each, known by a hash of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mimose.planners import make_planner
from mimose_bench.experiments import paper
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.profiling import check
from mimose_bench.experiments.sweep.grid import PAPER, Budget, Grid, Part
from mimose_bench.experiments.sweep.identity import identity
from mimose_bench.experiments.tasks import TASKS

Bounds = Callable[[RunConfig], tuple[int, int] | None]
"""Returns lower and upper bound of a configuration's task and device in bytes; None: not known."""

BOUNDING = (
    "task",
    "device",
    "allocator",
    "seed",
    "scale",
    "data",
    "vocab",
    "weights",
    "attention",
    "precision",
    "zero_grad",
    "foreach",
    "optimizer",
    "batch_size",
    "task_options",
    "threads",
)
"""The options that the bounds depend on; seeds do not change them, but data needs one."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a sweep.

    Attributes:
        id: What its configuration is known by.
        label: The planner's name in the grid.
        budget: The budget as the grid writes it.
        config: The run, but for the folder that it lies in.
        is_open: Whether its budget is a share of bounds that are not measured yet.
    """

    id: str
    label: str
    budget: str
    config: RunConfig
    is_open: bool = False

    @property
    def kind(self) -> tuple[str, str, str]:
        """What cells that take about as long have in common."""
        return self.config.task, self.config.device, self.label

    def __str__(self) -> str:
        """Return the cell in words."""
        c = self.config
        return f"{c.task} {self.label} {self.budget} {c.device} seed {c.seed}"


def expand(grid: Grid, bounds: Bounds) -> list[Cell]:
    """Return the cells of a grid in the order in which they run.

    Within a task, device and seed the planners take turns budget by budget, each round begun by
    another of them, so that a machine that slows down or warms up favours none.

    Raises:
        ValueError: If a name is unknown, options do not fit each other, or two of the grid's
            planners come to the same run.
    """
    cells: dict[str, Cell] = {}
    for cell in _all(grid, bounds):
        other = cells.setdefault(cell.id, cell)
        if other is not cell:
            raise ValueError(
                f"{other.label} at {other.budget} and {cell.label} at {cell.budget} are the same "
                f"run of {cell.config.task}: leave one of them out of the grid"
            )
    return list(cells.values())


def _all(grid: Grid, bounds: Bounds) -> Iterator[Cell]:
    for task in grid.tasks:
        if task.of not in TASKS:
            raise unknown_name("task", task.of, TASKS, always=True)
        for device in grid.devices:
            for seed in grid.seeds:
                yield from _rounds(grid, task, device, seed, bounds)


def _rounds(grid: Grid, task: Part, device: str, seed: int, bounds: Bounds) -> Iterator[Cell]:
    budgets = {
        planner.name: [b for given in grid.budgets_of(task, planner) for b in _spelt(given, task)]
        for planner in grid.planners
    }
    for turn in range(max(len(own) for own in budgets.values())):
        first = turn % len(grid.planners)
        for planner in grid.planners[first:] + grid.planners[:first]:
            own = budgets[planner.name]
            if turn < len(own):
                yield _cell(grid, task, planner, own[turn], device, seed, bounds)


def _spelt(budget: Budget, task: Part) -> list[Budget]:
    """Return the paper's budgets where they are meant, else the budget itself."""
    if not budget.is_paper:
        return [budget]
    known = paper.budgets(TASKS[task.of].title)
    if not known:
        raise ValueError(
            f"the paper has no budgets for {task.of}: give budgets in [task.{task.name}], for "
            f"example shares such as '50%', instead of '{PAPER}'"
        )
    return [Budget(f"{value >> 30}GB", num_bytes=value) for value in known]


def _cell(
    grid: Grid, task: Part, planner: Part, budget: Budget, device: str, seed: int, bounds: Bounds
) -> Cell:
    options = grid.options_of(task, planner)
    try:
        config = RunConfig(task=task.of, planner=planner.of, device=device, seed=seed, **options)
        check(config, make_planner(config.planner, **config.options()))
    except ValueError as error:
        raise ValueError(f"{task.name} under {planner.name}: {error}") from error
    num_bytes, is_open = budget.num_bytes, False
    if budget.share is not None:
        found = bounds(config)
        is_open = found is None
        if found is not None:
            num_bytes = int(found[0] + budget.share * (found[1] - found[0]))
    config = dataclasses.replace(config, budget=num_bytes)
    name = identity(dataclasses.asdict(config))
    if is_open:
        name = f"{name}-{budget.text}"
    return Cell(name, planner.name, budget.text, config, is_open)
