"""Fig 11: Mimose's peak of allocated memory by input size and budget, both variants.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025, digitised: exact in length, 0.02 GB in memory. Peaks
are of recorded runs over expected lengths. From which length on something is recomputed, and after
which lengths plans change, needs every length: there the planner is asked after having been taught,
without training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mimose.units import GIB
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.fig11_claims import (
    DETECTOR_BUDGET,
    DETECTORS,
    NOTHING_RECOMPUTED,
    TEXT_TASKS,
    VARIANTS,
    Asked,
    change_claims,
    over_budget,
    paper_points,
    peak_claims,
    peaks_of,
    rows_of,
    threshold_claims,
    variant_of,
)
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Criterion, Reproduction, Row, mean_error
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.planning import plan_sizes
from mimose_bench.experiments.reading import Run

COMMON = {"data": "synthetic", "lengths": "expected", "flops": "off", "threads": 1}
PLANNERS = {name: {"planner": "mimose", "variant": name} for name in VARIANTS}


def grids(tasks: Sequence[str], budgets: Sequence[str]) -> list[dict[str, Any]]:
    """Return what is run: text under some budgets, detectors under theirs."""
    text = [task for task in tasks if task in TEXT_TASKS]
    detectors = [task for task in tasks if task in DETECTORS]
    found = [(text, list(budgets)), (detectors, [f"{DETECTOR_BUDGET // GIB}GB"])]
    return [
        {
            "tasks": names,
            "planners": list(VARIANTS),
            "budgets": under,
            "options": COMMON,
            "planner": PLANNERS,
        }
        for names, under in found
        if names
    ]


def check(record: Record, *, extent: str = "whole", say: Say = silent) -> Reproduction:
    """Run the grids, ask for the plans, and compare.

    Args:
        record: Runs a grid.
        extent: ``quick``: QA-Bert at 6 GB alone.
        say: Takes lines of progress.
    """
    quick = extent == "quick"
    tasks = ("qa-bert",) if quick else (*TEXT_TASKS, *DETECTORS)
    runs: list[Run] = []
    label = ""
    for grid in grids(tasks, ("6GB",) if quick else ("paper",)):
        say(f"fig11: {', '.join(grid['tasks'])}")
        found = record(grid)
        runs += found.runs
        label = label or found.device_label
    asked = []
    for run in runs:
        if run.info["task"] in NOTHING_RECOMPUTED and run.budget_bytes is not None:
            say(f"fig11: the plans of {run.name}")
            asked.append(ask(run))
    return judge(runs, asked, label)


def ask(run: Run) -> Asked:
    """Teach a planner of a run's settings and ask it for a plan at every length of the figure."""
    config = run.info["config"]
    task = str(run.info["task"])
    assert run.budget_bytes is not None
    lengths = _lengths(task)
    answers, _ = plan_sizes(
        RunConfig(
            task=task,
            planner="mimose",
            variant=config["variant"],
            budget=run.budget_bytes,
            device=config["device"],
            data="synthetic",
            flops="off",
        ),
        [str(length) for length in lengths],
    )
    return Asked(
        task=task,
        variant=config["variant"],
        budget_bytes=run.budget_bytes,
        plans=tuple(
            (length, a.plan, a.num_recomputed) for length, a in zip(lengths, answers, strict=True)
        ),
    )


def _lengths(task: str) -> list[int]:
    shown = [p.input_size for points in paper_points(task).values() for p in points]
    return list(range(min(shown), max(shown) + 1))


def judge(runs: Sequence[Run], asked: Sequence[Asked], device_label: str) -> Reproduction:
    """Compare runs over expected lengths, and what planners were asked, with the figure."""
    rows: list[Row] = []
    claims: list[Claim] = []
    for run in runs:
        measured = peaks_of(run)
        theirs = paper_points(str(run.info["task"])).get(run.budget_bytes or 0)
        if measured and theirs:
            rows += rows_of(run, measured, theirs)
            claims += peak_claims(run, measured, theirs, device_label)
    claims += threshold_claims(asked, device_label)
    claims += change_claims(asked, device_label)
    criteria = [
        Criterion(
            name=f"over its budget: steps of variant {variant}",
            value=sum(over_budget(r) for r in runs if variant_of(r) == variant),
            tolerance=0,
            is_count=True,
        )
        for variant in VARIANTS
        if any(variant_of(r) == variant for r in runs)
    ]
    for variant in VARIANTS:
        mine = [row for row in rows if row.series.endswith(f", {variant}")]
        if mine:
            criteria.append(
                Criterion(name=f"mean error of all points, {variant}", value=mean_error(mine))
            )
    return Reproduction(
        name="fig11",
        title="peak allocated memory by input size and budget",
        source="IPDPS 2023, Fig 11",
        device_label=device_label,
        rows=tuple(rows),
        criteria=tuple(criteria),
        claims=tuple(claims),
        notes=NOTES,
    )


NOTES = (
    "Peaks are of runs over expected lengths, a step a length; a paper's point belongs to a step "
    "if it is at most two tokens, or two percent of the area, away; points of steps that measured, "
    "far below their neighbours, are left out.",
    "The paper's peaks fall as lengths grow: its planner drops more than it must, and leaves a "
    "quarter to a third of the budget unused at the longest. Here every plan is checked against "
    "a predicted peak, so that ours stay near the budget and lie above the paper's there.",
)
