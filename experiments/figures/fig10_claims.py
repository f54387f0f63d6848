"""What Fig 10 and the text around it say, judged on the points that runs make. Pure functions.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025. What arXiv:2209.02478v1 says is judged apart, as far
as summaries give it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import fmean

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.claims import Bound, Claim, ClaimUnit, Version
from mimose_bench.experiments.figures.fig10_series import (
    DTR_PAIRS,
    MEMORY_TOLERANCE,
    TIME_TOLERANCE,
    TITLES,
    VARIANTS,
    Series,
    own_of,
)
from mimose_bench.experiments.figures.points import Point, mean_time, over

BERT_TASKS = ("mc-roberta", "qa-bert", "tc-bert")
V1_TASKS = ("mc-roberta", "qa-xlnet", "qa-bert", "tc-bert")
SUBLINEAR_OVER_MIMOSE: Mapping[Version, tuple[float, tuple[str, ...]]] = {
    "ipdps": (1.180, BERT_TASKS),
    "v1": (1.171, V1_TASKS),
}
DTR_OVER_MIMOSE: Mapping[Version, tuple[float, tuple[str, ...]]] = {
    "ipdps": (1.150, BERT_TASKS),
    "v1": (1.150, V1_TASKS),
}
SLOWER_AT_8GB: Mapping[Version, tuple[float, tuple[str, ...]]] = {
    "ipdps": (0.026, BERT_TASKS),
    "v1": (0.051, V1_TASKS),
}
V1_SLOWER = {"sublinear-greedy": 0.35, "dtr": 0.175, "mimose": 0.11}
"""How much slower than plain training: middles of 35 %, 15 to 20 % and 5 to 17 %."""
V1_ROOM = (0.5 * GIB, 1.0 * GIB)
"""How far below its budget Mimose's memory stays."""
LEAST_MC_BUDGET = round(3.36 * GIB)


def orderings(series: Sequence[Series], device_label: str) -> list[Claim]:
    """Return who is ahead at each task and budget that the figure shows two planners at."""
    found = []
    for mine in (each for each in series if each.planner == "Mimose"):
        for other in series:
            if other.task != mine.task or other.planner == "Mimose":
                continue
            for a, b in _together(mine, other):
                theirs = _theirs(other, b) / _theirs(mine, a)
                ratio = over(a, b)
                slower = theirs > 1
                at = f"{TITLES[mine.task]} at {a.budget_bytes / GIB:g} GB"
                first = f"Mimose ({mine.variant})"
                words = (first, other.planner) if slower else (other.planner, first)
                found.append(
                    Claim(
                        text=f"{at}: {words[0]} is ahead of {words[1]}",
                        source=f"Fig 10 {'abcd'[list(TITLES).index(mine.task)]}",
                        version="ipdps",
                        unit="x",
                        expected=theirs,
                        obtained=None if ratio is None else ratio.value,
                        interval=_interval(ratio),
                        bound="at least" if slower else "at most",
                        tolerance=abs(theirs - 1),
                        device_label=device_label,
                        note=_missing(a, b) if ratio is None else "",
                    )
                )
    return found


def _together(mine: Series, other: Series) -> list[tuple[Point, Point]]:
    theirs = {point.budget_bytes: point for point in other.found}
    return [(p, theirs[p.budget_bytes]) for p in mine.found if p.budget_bytes in theirs]


def _theirs(series: Series, point: Point) -> float:
    return series.theirs[series.ours.index(point)].relative_time


def _interval(ratio: object) -> tuple[float, float] | None:
    low, high = getattr(ratio, "low", None), getattr(ratio, "high", None)
    return None if low is None or high is None else (low, high)


def _missing(*points: Point) -> str:
    ends = [f"{p.planner} ended {p.runs[0].info['outcome']}" for p in points if not p.finished]
    return "; ".join(ends) or "no steps in common"


def means(points: Sequence[Point], device_label: str) -> list[Claim]:
    """Return the claims on means over tasks and budgets, of both versions and variants."""
    found = []

    def say(
        text: str, version: Version, unit: ClaimUnit, expected: float, obtained: float | None
    ) -> None:
        found.append(
            Claim(
                text=text,
                source="abstract and section VI",
                version=version,
                unit=unit,
                expected=expected,
                obtained=obtained,
                tolerance=TIME_TOLERANCE,
                device_label=device_label,
            )
        )

    for variant in VARIANTS:
        of = f"Mimose ({variant})"
        for version, (expected, tasks) in SUBLINEAR_OVER_MIMOSE.items():
            obtained = _mean(tasks, partial(_sublinear, points, variant))
            say(f"Sublinear's time over {of}'s, {_named(tasks)}", version, "x", expected, obtained)
        for version, (expected, tasks) in DTR_OVER_MIMOSE.items():
            obtained = _mean(tasks, partial(_dtr, points, variant))
            say(f"DTR's time over {of}'s, {_named(tasks)}", version, "x", expected, obtained)
        for version, (expected, tasks) in SLOWER_AT_8GB.items():
            obtained = _mean(tasks, partial(_at_8gb, points, variant))
            say(
                f"{of} is slower than plain training at 8 GB, {_named(tasks)}",
                version,
                "%",
                expected,
                obtained,
            )
    return found


def _named(tasks: Sequence[str]) -> str:
    return "mean of " + ", ".join(TITLES.get(task, "QA-XLNet") for task in tasks)


def _mean(tasks: Sequence[str], value: Callable[[str], float | None]) -> float | None:
    """Return the mean over tasks; None if one of them has none."""
    found = [value(task) for task in tasks]
    known = [each for each in found if each is not None]
    return fmean(known) if len(known) == len(found) else None


def _sublinear(points: Sequence[Point], variant: str, task: str) -> float | None:
    """Return the ratio of the means over the budgets at which both finished."""
    mine = {p.budget_bytes: p for p in of(points, task, "mimose", variant) if p.time}
    other = {p.budget_bytes: p for p in of(points, task, "sublinear-greedy") if p.time}
    both = [b for b in mine if b in other and b in _paper_budgets(task)]
    a, b = (mean_time([side[key] for key in both]) for side in (mine, other))
    return b / a if a and b else None


def _dtr(points: Sequence[Point], variant: str, task: str) -> float | None:
    """Return the ratio of the means, each over its own budgets, as in the figure."""
    mine = mean_time(of(points, task, "mimose", variant, budgets=_paper_budgets(task)))
    pairs = {(own_of(p), round(p[0] * GIB)) for p in DTR_PAIRS.get(task, ())}
    evicting = [p for p in of(points, task, "dtr") if not pairs or (p.own, p.budget_bytes) in pairs]
    theirs = mean_time(evicting)
    return theirs / mine if mine and theirs else None


def _at_8gb(points: Sequence[Point], variant: str, task: str) -> float | None:
    found = mean_time(of(points, task, "mimose", variant, budgets=(8 * GIB,)))
    return None if found is None else found - 1


def _paper_budgets(task: str) -> tuple[int, ...]:
    return paper.budgets(TITLES.get(task, "QA-XLNet"))


def of(
    points: Sequence[Point],
    task: str,
    planner: str,
    variant: str = "",
    budgets: Sequence[int] = (),
) -> list[Point]:
    """Return the points of a task and planner, under some budgets or all."""
    return [
        p
        for p in points
        if (p.task, p.planner, p.variant) == (task, planner, variant)
        and (not budgets or p.budget_bytes in budgets)
    ]


def memory(points: Sequence[Point], device_label: str) -> list[Claim]:
    """Return the claims on memory: the least budget, and the room that stays below a budget."""
    found = []
    for variant in VARIANTS:
        for point in of(points, "mc-roberta", "mimose", variant, (LEAST_MC_BUDGET,)):
            for version in ("ipdps", "v1"):
                found.append(
                    Claim(
                        text=f"Mimose ({variant}) trains MC-Roberta in 3.36 GB",
                        source="section VI",
                        version=version,  # type: ignore[arg-type]
                        unit="GB",
                        expected=LEAST_MC_BUDGET,
                        obtained=point.reserved_bytes if point.finished else None,
                        bound="at most",
                        device_label=device_label,
                        note="" if point.finished else _missing(point),
                    )
                )
        rooms = [
            p.budget_bytes - p.allocated_bytes
            for task in V1_TASKS
            for p in of(points, task, "mimose", variant, _paper_budgets(task))
            if p.allocated_bytes is not None and p.reserved_bytes is not None
        ]
        if rooms:
            sides: tuple[tuple[str, float, float, Bound], ...] = (
                ("least", min(rooms), V1_ROOM[0], "at least"),
                ("most", max(rooms), V1_ROOM[1], "at most"),
            )
            for which, obtained, expected, bound in sides:
                found.append(
                    Claim(
                        text=f"Mimose ({variant}) stays 0.5 to 1 GB below its budget: {which}",
                        source="summary",
                        version="v1",
                        unit="GB",
                        expected=expected,
                        obtained=obtained,
                        bound=bound,
                        tolerance=MEMORY_TOLERANCE,
                        relative=True,
                        device_label=device_label,
                        note="most that a run allocates, over tasks and budgets",
                    )
                )
    return found


def slower_in_v1(points: Sequence[Point], device_label: str) -> list[Claim]:
    """Return the first version's slowdowns, reported only: it is not known over which budgets."""
    found = []
    for planner, expected in V1_SLOWER.items():
        variant = "printed" if planner == "mimose" else ""
        mine = [p for task in V1_TASKS for p in of(points, task, planner, variant)]
        mean = mean_time([p for p in mine if p.budget_bytes in _paper_budgets(p.task)])
        found.append(
            Claim(
                text=f"{planner} is slower than plain training",
                source="summary",
                version="v1",
                unit="%",
                expected=expected,
                obtained=None if mean is None else mean - 1,
                tolerance=None,
                device_label=device_label,
                note="mean over tasks and budgets; the summaries do not say over which theirs is",
            )
        )
    return found
