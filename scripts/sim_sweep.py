"""Sweep QA-Bert at full size over budgets and planners on a simulated V100, in one process.

Prints each run's time relative to the unlimited baseline and how long the simulations took, with
sampled lengths and with expected ones. Usage: python scripts/sim_sweep.py [STEPS]
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from pathlib import Path

import torch

from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.run import run

GIB = 1 << 30
BUDGETS = (4, 5, 6, 7, 8)
PLANNERS = ("baseline", "full", "mimose")
DEVICE = "sim:v100"


def sweep(lengths: str, steps: int | None, out: Path) -> dict[tuple[str, int | None], float | None]:
    """Return each cell's mean step seconds without sheltered steps; None where it ended early."""
    started = time.perf_counter()
    memory = StepMemory()
    means: dict[tuple[str, int | None], float | None] = {}
    cells = [("baseline", None)] + [(p, b) for b in BUDGETS for p in PLANNERS]
    for planner, gib in cells:
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
        summary = result.info["summary"]
        means[planner, gib] = None if result.exit_code else summary["mean_step_seconds"]
        print(
            f"{planner:9} {'none' if gib is None else f'{gib} GB':5} exit {result.exit_code}  "
            f"steps {summary['num_steps']:4}  violations {summary['num_violations']}  "
            f"peak allocated {summary['peak_allocated_bytes'] / GIB:.2f} GiB",
            flush=True,
        )
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{lengths}: {len(cells)} runs in {seconds:.0f} s; {memory.num_taken} steps taken, "
        f"{memory.num_replayed} replayed; process memory {peak:.0f} MiB\n"
    )
    return means


def main() -> None:
    torch.set_num_threads(1)
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        sampled = sweep("sampled", steps, Path(folder))
        expected = sweep("expected", None, Path(folder))
    print(f"time relative to baseline (simulated {DEVICE}), sheltered steps included if sampled")
    for cell, seconds in sampled.items():
        other = expected[cell]
        if seconds is None or other is None:
            print(f"{cell[0]:9} {cell[1]} GB: out of memory")
            continue
        first = seconds / sampled["baseline", None]
        second = other / expected["baseline", None]
        print(f"{cell[0]:9} {cell[1]} GB: sampled {first:.3f}, expected {second:.3f}")


if __name__ == "__main__":
    main()
