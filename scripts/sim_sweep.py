"""Sweep tasks at full size over the paper's budgets on a simulated V100, in one process.

Prints each run's time relative to the unlimited baseline, its peaks and its violations; with
--expected also the relative time over expected lengths. Tasks that the paper has no budgets for get
the quartiles between their bounds.

Usage: python scripts/sim_sweep.py [--steps N] [--expected] [TASK ...]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import torch

from mimose.units import format_bytes
from mimose_bench.experiments import paper
from mimose_bench.experiments.bounds import measure_bounds
from mimose_bench.experiments.comparing import pair, time_ratio
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.reading import Run, load_run
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.run import opened, run, task_of
from mimose_bench.experiments.tables import table
from mimose_bench.experiments.tasks import TASKS

PLANNERS = ("baseline", "full", "mimose")
DEVICE = "sim:v100"

Cell = tuple[str, int | None]
REFERENCE: Cell = ("baseline", None)


def config_of(task: str, **changes: object) -> RunConfig:
    return RunConfig(task=task, device=DEVICE, data="synthetic", **changes)  # type: ignore[arg-type]


def budgets_of(task: str) -> tuple[int, ...]:
    """Return the paper's budgets, else the quartiles between the bounds."""
    known = paper.budgets(TASKS[task].title)
    if known:
        return known
    config = config_of(task)
    with opened(config) as device:
        bounds = measure_bounds(config, task_of(config), device)
    return tuple(bounds.budget_at(share) for share in (0.25, 0.5, 0.75))


def sweep(
    task: str, budgets: tuple[int, ...], lengths: str, steps: int | None, out: Path
) -> dict[Cell, Run]:
    """Return every cell's run."""
    memory = StepMemory()
    runs: dict[Cell, Run] = {}
    for planner, budget in [REFERENCE, *((p, b) for b in budgets for p in PLANNERS)]:
        config = config_of(
            task, planner=planner, budget=budget, lengths=lengths, steps=steps, out=out
        )
        result = run(config, quiet=True, memory=memory)
        runs[planner, budget] = load_run(result.info["summary"]["run_dir"])
    return runs


def relative(runs: dict[Cell, Run], cell: Cell, *, learning: bool) -> str:
    """Return a cell's time relative to the reference, in words."""
    if runs[cell].info["outcome"] != "done":
        return "out of memory"
    if runs[REFERENCE].info["outcome"] != "done":
        return "no reference"
    ratio = time_ratio(pair(runs[REFERENCE].steps, runs[cell].steps), learning=learning)
    return "-" if ratio is None else f"{ratio.value:.3f}"


def show(sampled: dict[Cell, Run], expected: dict[Cell, Run]) -> None:
    """Print the table; reads the runs' steps."""
    headers = ["planner", "budget", "time", "without sheltered"]
    headers += ["expected"] if expected else []
    headers += ["peak allocated", "peak reserved", "violations"]
    rows = []
    for cell, done in sampled.items():
        planner, budget = cell
        summary = done.summary
        rows.append(
            [
                planner,
                "none" if budget is None else format_bytes(budget),
                relative(sampled, cell, learning=True),
                relative(sampled, cell, learning=False),
                *([relative(expected, cell, learning=True)] if expected else []),
                format_bytes(summary["peak_allocated_bytes"] or 0),
                format_bytes(summary["peak_reserved_bytes"] or 0),
                str(summary["num_violations"]),
            ]
        )
    print(table(headers, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help="all by default")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--expected", action="store_true", help="over expected lengths, too")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    for task in chosen.tasks or TASKS:
        started = time.perf_counter()
        budgets = budgets_of(task)
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder)
            sampled = sweep(task, budgets, "sampled", chosen.steps, out)
            expected = sweep(task, budgets, "expected", None, out) if chosen.expected else {}
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            label = sampled[REFERENCE].time_label
            print(
                f"\n{task}, {chosen.steps} steps, times relative to the unlimited baseline, {label}"
            )
            show(sampled, expected)
            print(
                f"{len(sampled) + len(expected)} runs in {time.perf_counter() - started:.0f} s, "
                f"process memory {peak:.0f} MiB",
                flush=True,
            )


if __name__ == "__main__":
    main()
