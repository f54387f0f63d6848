"""Mimose against Sublinear and DTR where training is real: small models on the CPU.

The paper has no such measurement. Judged is what it says of the planners' order; how far apart they
are on its GPU stands beside. Cells take turns, so that a machine that slows down favours none, and
steps are paired: every planner sees the batches of its seed in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mimose.units import format_bytes
from mimose_bench.experiments.comparing import Ratio
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.paired import pooled, seed_of
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.tables import MISSING

SUBLINEAR, DTR, MIMOSE = "sublinear-greedy", "dtr", "mimose"
RIVALS = {SUBLINEAR: (1.180, "Sublinear"), DTR: (1.150, "DTR")}
"""Their time over Mimose's in the mean on the paper's GPU, and the paper's names."""

GRID: Mapping[str, Any] = {
    "tasks": ["qa-bert", "tc-bert"],
    "planners": ["baseline", SUBLINEAR, DTR, MIMOSE],
    "budgets": ["20%", "35%", "50%", "65%", "80%"],
    "seeds": [1, 2, 3],
    "devices": ["cpu"],
    "options": {
        "scale": "small",
        "data": "synthetic",
        "steps": 36,
        "threads": 1,
        "flops": "off",
    },
    "task": {"qa-bert": {"batch_size": 2}, "tc-bert": {"batch_size": 8}},
}
"""docs/grids/cpu.toml: half an hour on one idle core."""

QUICK: Mapping[str, Any] = {
    "tasks": ["qa-bert"],
    "planners": ["baseline", SUBLINEAR, DTR, MIMOSE],
    "budgets": ["40%", "70%"],
    "seeds": [1],
    "devices": ["cpu"],
    "options": {
        "scale": "tiny",
        "data": "synthetic",
        "batch_size": 8,
        "steps": 24,
        "threads": 1,
        "flops": "off",
    },
}


def check(record: Record, *, extent: str = "whole", say: Say = silent) -> Reproduction:
    """Run the grid and compare.

    Args:
        record: Runs a grid.
        extent: ``quick``: one tiny task, one seed, two budgets.
        say: Takes lines of progress.
    """
    say("cpu-training: real steps on this machine's processor")
    found = record(QUICK if extent == "quick" else GRID)
    return judge(found.runs, found.device_label)


def judge(runs: Sequence[Run], device_label: str) -> Reproduction:
    """Compare the planners' times at each task and budget, over all seeds."""
    claims: list[Claim] = []
    rows: list[tuple[str, ...]] = []
    for task in dict.fromkeys(str(run.info["task"]) for run in runs):
        mine = [run for run in runs if run.info["task"] == task]
        plain = [run for run in mine if run.planner == "baseline"]
        budgets = sorted({run.budget_bytes for run in mine if run.budget_bytes is not None})
        for budget in budgets:
            under = {
                planner: [r for r in mine if r.planner == planner and r.budget_bytes == budget]
                for planner in (*RIVALS, MIMOSE)
            }
            cells = [_shown(under[planner], plain) for planner in under]
            rows.append((task, format_bytes(budget), *cells))
            claims += [
                _ahead(task, budget, under[MIMOSE], under[rival], rival, device_label)
                for rival in RIVALS
                if under[rival]
            ]
    finished = [run for run in runs if run.planner == MIMOSE and run.info["outcome"] != "done"]
    return Reproduction(
        name="cpu-training",
        title="Mimose against Sublinear and DTR in real training",
        source="IPDPS 2023, section VI, on other hardware",
        device_label=device_label,
        rows=(),
        criteria=(
            Criterion(
                name="runs of Mimose that did not finish",
                value=len(finished),
                tolerance=0,
                is_count=True,
            ),
        ),
        claims=tuple(claims),
        tables=(
            ResultTable(
                title="time relative to plain training, 95 % intervals over seeds and steps",
                headers=("task", "budget", "Sublinear", "DTR", "Mimose"),
                rows=tuple(rows),
            ),
        ),
        notes=(
            "Paired steps of all seeds, without those in which Mimose measures. Sublinear is "
            "sublinear-greedy, what the paper measured under that name.",
            f"In the mean on the paper's GPU: Sublinear {RIVALS[SUBLINEAR][0]:.2f}, DTR "
            f"{RIVALS[DTR][0]:.2f} times Mimose's time; a processor has other costs of an "
            "operator, so that the order alone is judged.",
        ),
    )


def _ahead(
    task: str,
    budget: int,
    mine: Sequence[Run],
    others: Sequence[Run],
    rival: str,
    device_label: str,
) -> Claim:
    expected, title = RIVALS[rival]
    ended = sorted({str(r.info["outcome"]) for r in (*mine, *others)} - {"done"})
    ratio = None if ended else pooled(mine, others)
    inverse = None if ratio is None else 1 / ratio.value
    interval = None if ratio is None or not ratio.low or not ratio.high else ratio
    seeds = len({seed_of(r) for r in mine})
    return Claim(
        text=f"{task} in {format_bytes(budget)}: Mimose is ahead of {title}",
        source="section VI",
        version="ipdps",
        unit="x",
        expected=expected,
        obtained=inverse,
        bound="at least",
        tolerance=expected - 1,
        interval=None if interval is None else (1 / interval.high, 1 / interval.low),  # type: ignore[operator]
        device_label=device_label,
        note=f"ended {', '.join(ended)}" if ended else f"{seeds} seeds",
    )


def _shown(runs: Sequence[Run], plain: Sequence[Run]) -> str:
    ended = sorted({str(run.info["outcome"]) for run in runs} - {"done"})
    ratio: Ratio | None = pooled(runs, plain)
    if ratio is None or ratio.low is None or ratio.high is None:
        return ", ".join(ended) or MISSING
    text = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return f"{text}, {', '.join(ended)}" if ended else text
