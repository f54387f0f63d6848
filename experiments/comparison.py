"""The smallest honest comparison: the same batches without a limit and under one budget.

The demo and the smoke run both make it, at different scales.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mimose.units import format_bytes
from mimose_bench.experiments.cells import OUT_OF_MEMORY, Cell, CellError, call, run_cell


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs over the same batches.

    Attributes:
        budget_bytes: The budget, between the bounds.
        lower_bytes: Peak reserved at the longest batch with every block recomputed.
        upper_bytes: The same with none recomputed.
        reference: Baseline without a limit.
        baseline: Baseline at the budget.
        full: Every block recomputed, at the budget; None where it was left out.
        mimose: Mimose at the budget.
    """

    budget_bytes: int
    lower_bytes: int
    upper_bytes: int
    reference: Cell
    baseline: Cell
    full: Cell | None
    mimose: Cell

    @property
    def cells(self) -> list[Cell]:
        """The runs in the order in which a table shows them."""
        order = [self.reference, self.baseline, self.full, self.mimose]
        return [cell for cell in order if cell is not None]


def bounds(arguments: Sequence[str]) -> tuple[int, int]:
    """Return lower and upper bound of a task, measured in a process of its own.

    Raises:
        CellError: If they could not be measured.
    """
    code, output, errors = call(["plan", *arguments, "--bounds", "--json"])
    if code != 0:
        last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
        raise CellError(f"measuring the bounds failed: {last[0]}")
    found = json.loads(output)["bounds"][0]
    if found["upper_bytes"] is None:
        raise CellError("the device has too little memory for the baseline at the longest batch")
    return int(found["lower_bytes"]), int(found["upper_bytes"])


def make_comparison(
    arguments: Sequence[str],
    *,
    steps: int,
    out: Path,
    share: float = 0.5,
    with_full: bool = True,
    say: Callable[[str], None],
) -> Comparison:
    """Measure the bounds, choose a budget between them, run reference, baseline, full and mimose.

    Args:
        arguments: Options of the task and device, as on the command line.
        steps: Steps of each run.
        out: Where the run folders go.
        share: Where the budget lies between the bounds at the longest batch of the task.
        with_full: Whether to run full recomputation, too.
        say: Prints a line of progress.

    Raises:
        CellError: If a run ended otherwise than finished or out of memory.
    """
    say("measuring the least and the most memory that the task needs")
    lower, upper = bounds(arguments)
    budget = int(lower + share * (upper - lower))
    say(
        f"every block recomputed {format_bytes(lower)}, none {format_bytes(upper)}: "
        f"budget {format_bytes(budget)}"
    )
    common = [*arguments, "--steps", str(steps), "--out", str(out)]

    def cell(planner: str, limit: str) -> Cell:
        what = "without a limit" if limit == "none" else f"at {format_bytes(int(limit))}"
        say(f"{planner} {what}")
        return run_cell([*common, "--planner", planner, "--budget", limit])

    limit = str(budget)
    return Comparison(
        budget_bytes=budget,
        lower_bytes=lower,
        upper_bytes=upper,
        reference=cell("baseline", "none"),
        baseline=cell("baseline", limit),
        full=cell("full", limit) if with_full else None,
        mimose=cell("mimose", limit),
    )


def failed_as_expected(comparison: Comparison) -> bool:
    """Return whether the baseline ran out of memory at the budget."""
    return comparison.baseline.exit_code == OUT_OF_MEMORY
