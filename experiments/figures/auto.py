"""Auto against Mimose, Rotor and full recomputation: time relative to plain training by budget.

No paper has this. Every planner runs over the same expected lengths under the same enforced
budgets, on the simulated GPU; steps in which a planner measures do not count. Judged is whether
auto reaches this project's aims on QA-Bert, and whether it is ever behind one of the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from mimose.units import GIB, format_bytes
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.fig10_series import TITLES
from mimose_bench.experiments.figures.points import Point, over, points_of
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.tables import MISSING
from mimose_bench.experiments.tasks import TASKS

Extent = Literal["whole", "quick"]

AUTO, MIMOSE = "auto", "mimose"
RIVALS: Mapping[str, str] = {
    MIMOSE: "Mimose",
    "rotor": "Rotor",
    "full": "the recomputation of every block",
}
"""Planners that auto is held against, in words."""
SOURCE = "aims of this project"

AIMS: Mapping[int, float] = {4: 1.06, 5: 1.03, 6: 1.015, 7: 1.005, 8: 1.000}
"""Times relative to plain training that are aimed at on QA-Bert, by GB of budget."""
AIM_TOLERANCE = 0.005
"""Aims are given to half a percent."""
BEHIND_TOLERANCE = 0.001
"""So much slower counts as the same: a simulated step takes what its host work is charged."""

COMMON: Mapping[str, Any] = {"data": "synthetic", "flops": "off", "threads": 1}
PRINTED: Mapping[str, Any] = {MIMOSE: {"variant": "printed"}}
GRID: Mapping[str, Any] = {
    "tasks": ["qa-bert", "mc-roberta", "tc-bert", "tr-t5", "qa-xlnet"],
    "planners": ["baseline", AUTO, *RIVALS],
    "budgets": ["paper"],
    "options": {**COMMON, "lengths": "expected"},
    "planner": PRINTED,
}
"""Budgets are those of docs/grids/fig10.toml."""

QUICK: Mapping[str, Any] = {
    "tasks": ["qa-bert"],
    "planners": ["baseline", AUTO, MIMOSE],
    "budgets": ["5GB"],
    "options": {**COMMON, "steps": 14},
    "planner": {MIMOSE: {**PRINTED[MIMOSE], "sheltered": 6}},
}


def check(record: Record, *, extent: Extent = "whole", say: Say = silent) -> Reproduction:
    """Run the grid and judge what it comes to.

    Args:
        record: Runs a grid.
        extent: ``quick``: one task and budget over a few sampled steps, without the aims.
        say: Takes lines of progress.
    """
    grid = QUICK if extent == "quick" else GRID
    say(f"auto: {', '.join(grid['tasks'])} under {', '.join(grid['planners'])}")
    found = record(grid)
    return judge(found.runs, found.time_label, aims=extent == "whole")


def judge(runs: Sequence[Run], device_label: str, *, aims: bool = True) -> Reproduction:
    """Compare auto's times with the aims and with the other planners'.

    Args:
        runs: Of any grid; what is not there is not judged.
        device_label: What times carry.
        aims: Whether to judge the aims, which hold for whole distributions of lengths.
    """
    points = points_of(runs)
    claims = _aims(points, device_label) if aims else []
    for task in _tasks(points):
        for rival in RIVALS:
            claims += _ahead(points, task, rival, device_label)
    return Reproduction(
        name="auto",
        title="auto against Mimose, Rotor and full recomputation by budget",
        source=SOURCE,
        device_label=device_label,
        rows=(),
        claims=tuple(claims),
        tables=tuple(_table(points, task, device_label) for task in _tasks(points)),
        notes=(
            "Times are means over the data sets' lengths, each weighted by its share, without the "
            "steps in which a planner measures; what those cost is in auto-learning.",
            "Mimose is the printed variant. Rotor plans once, for the longest batch.",
        ),
    )


def _tasks(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(p.task for p in points))


def _of(points: Sequence[Point], task: str, planner: str) -> dict[int, Point]:
    """Return a planner's points by budget."""
    return {p.budget_bytes: p for p in points if (p.task, p.planner) == (task, planner)}


def _aims(points: Sequence[Point], device_label: str) -> list[Claim]:
    mine = _of(points, "qa-bert", AUTO)
    claims = []
    for budget, aim in AIMS.items():
        point = mine.get(budget * GIB)
        ratio = None if point is None else point.time
        claims.append(
            Claim(
                text=f"QA-Bert in {budget} GB: auto's time relative to plain training",
                source=SOURCE,
                version="other",
                unit="x",
                expected=aim,
                obtained=None if ratio is None else ratio.value,
                bound="at most",
                tolerance=AIM_TOLERANCE,
                device_label=device_label,
                note="" if point is None else _ended(point),
            )
        )
    return claims


def _ahead(points: Sequence[Point], task: str, rival: str, device_label: str) -> list[Claim]:
    """Return whether auto is nowhere behind a rival; nothing where the rival has no time."""
    mine, others = _of(points, task, AUTO), _of(points, task, rival)
    ratios = {
        budget: ratio.value
        for budget, other in others.items()
        if budget in mine and (ratio := over(other, mine[budget])) is not None
    }
    if not ratios:
        return []
    worst = max(ratios, key=lambda budget: ratios[budget])
    lost = [format_bytes(b) for b in others if others[b].time and b in mine and not mine[b].time]
    return [
        Claim(
            text=f"{_title(task)}: auto is never slower than {RIVALS[rival]}",
            source=SOURCE,
            version="other",
            unit="x",
            expected=1.0,
            obtained=None if lost else ratios[worst],
            bound="at most",
            tolerance=BEHIND_TOLERANCE,
            device_label=device_label,
            note=f"it did not finish in {', '.join(lost)}"
            if lost
            else f"at {format_bytes(worst)}, the worst of {len(ratios)} budgets",
        )
    ]


def _table(points: Sequence[Point], task: str, device_label: str) -> ResultTable:
    """Return times by planner and budget, the paper's Mimose below."""
    budgets = sorted({p.budget_bytes for p in points if p.task == task})
    rows = []
    for planner in (AUTO, *RIVALS):
        mine = _of(points, task, planner)
        if mine:
            cells = (_cell(mine[b]) if b in mine else MISSING for b in budgets)
            rows.append((planner, *cells))
    theirs = _papers(task)
    if any(b in theirs for b in budgets):
        cells = (f"{theirs[b]:.3f}" if b in theirs else MISSING for b in budgets)
        rows.append(("the paper's Mimose (V100)", *cells))
    return ResultTable(
        title=f"{_title(task)}: time relative to plain training, {device_label}",
        headers=("planner", *map(format_bytes, budgets)),
        rows=tuple(rows),
    )


def _papers(task: str) -> dict[int, float]:
    """Return the times of the paper's Mimose by budget, where its Fig 10 has them."""
    title = TITLES.get(task)
    if title is None:
        return {}
    curve = paper.time_by_memory(title)["Mimose"]
    return {b: p.relative_time for b, p in zip(paper.budgets(title), curve)}


def _cell(point: Point) -> str:
    return _ended(point) if point.time is None else f"{point.time.value:.3f}"


def _ended(point: Point) -> str:
    """Return how runs ended that did not finish; empty where all did."""
    return ", ".join(sorted({str(r.info["outcome"]) for r in point.runs} - {"done"}))


def _title(task: str) -> str:
    return TASKS[task].title if task in TASKS else task
