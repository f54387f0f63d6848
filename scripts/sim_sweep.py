"""Sweep QA-Bert at full size over budgets and planners on a simulated V100, in one process.

Prints each run's time relative to the unlimited baseline, with sampled lengths and with expected
ones, and how long the simulations took. Usage: python scripts/sim_sweep.py [STEPS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

from mimose_bench.experiments.comparing import pair, time_ratio
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.reading import Run, load_run
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.run import run

GIB = 1 << 30
BUDGETS = (4, 5, 6, 7, 8)
PLANNERS = ("baseline", "full", "mimose")
DEVICE = "sim:v100"

Cell = tuple[str, int | None]
REFERENCE: Cell = ("baseline", None)


def sweep(lengths: str, steps: int | None, out: Path) -> dict[Cell, Run]:
    """Return every cell's run."""
    started = time.perf_counter()
    memory = StepMemory()
    runs: dict[Cell, Run] = {}
    for planner, gib in [REFERENCE, *((p, b) for b in BUDGETS for p in PLANNERS)]:
        config = RunConfig(
            task="qa-bert",
            planner=planner,
            budget=None if gib is None else gib * GIB,
            device=DEVICE,
            data="synthetic",
            lengths=lengths,
            steps=steps,
            out=out,
        )
        result = run(config, quiet=True, memory=memory)
        runs[planner, gib] = load_run(result.info["summary"]["run_dir"])
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{lengths}: {len(runs)} runs in {seconds:.0f} s; {memory.num_taken} steps taken and "
        f"{memory.num_replayed} replayed, beside those that measure; process memory {peak:.0f} MiB"
    )
    return runs


def relative(runs: dict[Cell, Run], cell: Cell, *, learning: bool) -> str:
    """Return a cell's time relative to the reference, in words."""
    if runs[cell].info["outcome"] != "done":
        return "out of memory"
    ratio = time_ratio(pair(runs[REFERENCE].steps, runs[cell].steps), learning=learning)
    return "-" if ratio is None else f"{ratio.value:.3f}"


def show(sampled: dict[Cell, Run], expected: dict[Cell, Run]) -> None:
    """Print the table; reads the runs' steps."""
    print(f"\ntime relative to the unlimited baseline, {sampled[REFERENCE].time_label}")
    print(f"{'':16}{'sampled':>16}{'not sheltered':>16}{'expected':>16}{'violations':>12}")
    for cell, done in sampled.items():
        name = f"{cell[0]} {'none' if cell[1] is None else f'{cell[1]} GB'}"
        figures = [
            relative(sampled, cell, learning=True),
            relative(sampled, cell, learning=False),
            relative(expected, cell, learning=True),
            str(done.summary["num_violations"]),
        ]
        print(f"{name:16}{figures[0]:>16}{figures[1]:>16}{figures[2]:>16}{figures[3]:>12}")


def main() -> None:
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        show(sweep("sampled", steps, Path(folder)), sweep("expected", None, Path(folder)))


if __name__ == "__main__":
    main()
