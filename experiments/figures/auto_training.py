"""Auto against Mimose and full recomputation where training is real: small models on the CPU.

Cells take turns, so that a machine that slows down favours none, and steps are paired: every
planner sees the batches of its seed in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mimose.units import format_bytes
from mimose_bench.experiments.figures.auto import AUTO, MIMOSE, SOURCE
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.cpu_training import GRID as REAL
from mimose_bench.experiments.figures.cpu_training import QUICK as REAL_QUICK
from mimose_bench.experiments.figures.paired import pooled, seed_of
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.tables import MISSING

FULL = "full"
RIVALS: Mapping[str, str] = {MIMOSE: "Mimose", FULL: "the recomputation of every block"}
PLANNERS = ["baseline", FULL, MIMOSE, AUTO]
WITHOUT = {FULL: {"budgets": ["none"]}}
"""Recomputing every block takes the same time under every budget."""

GRID: Mapping[str, Any] = {**REAL, "planners": PLANNERS, "planner": WITHOUT}
QUICK: Mapping[str, Any] = {**REAL_QUICK, "planners": PLANNERS, "planner": WITHOUT}


def check(record: Record, *, extent: str = "whole", say: Say = silent) -> Reproduction:
    """Run the grid and compare.

    Args:
        record: Runs a grid.
        extent: ``quick``: one tiny task, one seed, two budgets.
        say: Takes lines of progress.
    """
    say("auto-training: real steps on this machine's processor")
    found = record(QUICK if extent == "quick" else GRID)
    return judge(found.runs, found.device_label)


def judge(runs: Sequence[Run], device_label: str) -> Reproduction:
    """Compare the planners' times at each task and budget, over all seeds."""
    claims: list[Claim] = []
    rows: list[tuple[str, ...]] = []
    for task in dict.fromkeys(str(run.info["task"]) for run in runs):
        own = [run for run in runs if run.info["task"] == task]
        plain = [run for run in own if run.planner == "baseline"]
        full = [run for run in own if run.planner == FULL]
        for budget in sorted({r.budget_bytes for r in own if r.planner == AUTO and r.budget_bytes}):
            under = {
                planner: [r for r in own if r.planner == planner and r.budget_bytes == budget]
                for planner in (AUTO, MIMOSE)
            }
            under[FULL] = full
            rows.append((task, format_bytes(budget), *(_shown(u, plain) for u in under.values())))
            claims += [
                _ahead(task, budget, under[AUTO], under[rival], rival, device_label)
                for rival in RIVALS
                if under[rival]
            ]
    unfinished = sum(r.planner == AUTO and r.info["outcome"] != "done" for r in runs)
    return Reproduction(
        name="auto-training",
        title="auto against Mimose and full recomputation in real training",
        source=SOURCE,
        device_label=device_label,
        rows=(),
        criteria=(
            Criterion(
                name="runs of auto that did not finish",
                value=unfinished,
                tolerance=0,
                is_count=True,
            ),
        ),
        claims=tuple(claims),
        tables=(
            ResultTable(
                title=f"time relative to plain training, 95 % intervals, {device_label}",
                headers=("task", "budget", "auto", "Mimose", "full"),
                rows=tuple(rows),
            ),
        ),
        notes=("Paired steps of all seeds, without those in which a planner measures.",),
    )


def _ahead(
    task: str,
    budget: int,
    mine: Sequence[Run],
    others: Sequence[Run],
    rival: str,
    device_label: str,
) -> Claim:
    ended = sorted({str(r.info["outcome"]) for r in (*mine, *others)} - {"done"})
    ratio = None if ended else pooled(mine, others)
    return Claim(
        text=f"{task} in {format_bytes(budget)}: auto's time over that of {RIVALS[rival]}",
        source=SOURCE,
        version="other",
        unit="x",
        expected=1.0,
        obtained=None if ratio is None else ratio.value,
        bound="at most",
        interval=None
        if ratio is None or ratio.low is None or ratio.high is None
        else (ratio.low, ratio.high),
        device_label=device_label,
        note=f"ended {', '.join(ended)}" if ended else f"{len({*map(seed_of, mine)})} seeds",
    )


def _shown(runs: Sequence[Run], plain: Sequence[Run]) -> str:
    ended = sorted({str(run.info["outcome"]) for run in runs} - {"done"})
    ratio = pooled(runs, plain)
    if ratio is None or ratio.low is None or ratio.high is None:
        return ", ".join(ended) or MISSING
    text = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"{text}, {', '.join(ended)}" if ended else text
