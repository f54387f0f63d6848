"""``mimose-bench smoke``: does the whole thing work on this machine? For CI on a small GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mimose_bench.experiments.comparison import Comparison, failed_as_expected, make_comparison
from mimose_bench.experiments.reading import load_run

STEPS = 30
RELATIVE_LOSS = 1e-4
"""Largest relative difference of losses on cuda, where kernels may add in another order."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that must hold, whether it does, and the figures."""

    name: str
    passed: bool
    detail: str


def smoke(
    device: str, scale: str, out: Path, say: Callable[[str], None]
) -> tuple[Comparison, list[Check]]:
    """Run the smoke comparison and check it.

    Args:
        device: ``cpu``, ``cuda`` or ``sim:NAME``.
        scale: The task's scale.
        out: Where the run folders go.
        say: Prints a line of progress.

    Raises:
        CellError: If a run ended otherwise than finished or out of memory.
    """
    arguments = ["--task", "qa-bert", "--scale", scale, "--device", device]
    arguments += ["--data", "synthetic", "--seed", "1", "--threads", "1"]
    comparison = make_comparison(
        arguments, steps=STEPS, out=out, share=0.25, with_full=False, say=say
    )
    checks = [
        _baseline_runs_out(comparison),
        _mimose_finishes(comparison),
        _within_budget(comparison),
    ]
    simulated = device.startswith("sim")
    if not simulated:
        checks.append(_losses_agree(comparison, exact=device == "cpu"))
    return comparison, [*checks, _records_complete(comparison, losses=not simulated)]


def _baseline_runs_out(comparison: Comparison) -> Check:
    steps = comparison.baseline.summary["num_steps"]
    passed = failed_as_expected(comparison)
    said = f"out of memory at step {steps - 1}" if passed else f"finished {steps} steps"
    return Check("baseline runs out of memory at the budget", passed, said)


def _mimose_finishes(comparison: Comparison) -> Check:
    summary = comparison.mimose.summary
    passed = comparison.mimose.exit_code == 0 and summary["num_ok"] == STEPS
    return Check("mimose finishes at the budget", passed, f"{summary['num_ok']} of {STEPS} steps")


def _within_budget(comparison: Comparison) -> Check:
    summary = comparison.mimose.summary
    peak, violations = summary["peak_reserved_bytes"], summary["num_violations"]
    passed = peak <= comparison.budget_bytes and violations == 0
    detail = f"peak reserved {peak} of {comparison.budget_bytes} bytes, {violations} violations"
    return Check("mimose stays within the budget", passed, detail)


def _losses_agree(comparison: Comparison, *, exact: bool) -> Check:
    losses = [load_run(c.folder).steps["loss"] for c in (comparison.reference, comparison.mimose)]
    difference = ((losses[0] - losses[1]).abs() / losses[0].abs()).max()
    allowed = 0.0 if exact else RELATIVE_LOSS
    passed = len(losses[0]) == len(losses[1]) == STEPS and bool(difference <= allowed)
    detail = f"largest relative difference {difference:.2g}, allowed {allowed:.2g}"
    return Check("losses agree with the unlimited baseline's", passed, detail)


def _records_complete(comparison: Comparison, *, losses: bool) -> Check:
    missing = []
    for cell in comparison.cells:
        run = load_run(cell.folder)
        recorded = run.steps[run.steps["outcome"] == "ok"]
        needed = ["step_seconds", "peak_allocated_bytes", "peak_reserved_bytes", "plan"]
        needed += ["loss"] if losses else []
        if len(run.steps) != cell.summary["num_steps"] or recorded[needed].isna().any(axis=None):
            missing.append(run.name)
    detail = f"incomplete: {', '.join(missing)}" if missing else "every step of every run"
    return Check("records are complete", not missing, detail)
