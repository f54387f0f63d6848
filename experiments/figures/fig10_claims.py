"""What Fig 10 and the text around it say, judged on the points that runs make. Pure functions.

The curves are those of IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025, digitised (error 0.003 in
time, 0.02 GB in memory), in which x is the memory really reserved. What arXiv:2209.02478v1 says is
judged apart, as far as summaries give it. The paper's "Sublinear" is Mimose's own greedy, run once
for the longest batch: ``sublinear-greedy`` here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.claims import Bound, Claim, ClaimUnit, Version
from mimose_bench.experiments.figures.points import Point, mean_time, over, own
from mimose_bench.experiments.figures.result import Criterion, Row

TITLES: Mapping[str, str] = {
    "mc-roberta": "MC-Roberta",
    "tr-t5": "TR-T5",
    "qa-bert": "QA-Bert",
    "tc-bert": "TC-Bert",
}
"""Fig 10 a to d."""
BERT_TASKS = ("mc-roberta", "qa-bert", "tc-bert")
V1_TASKS = ("mc-roberta", "qa-xlnet", "qa-bert", "tc-bert")
VARIANTS = ("printed", "authors")

TIME_TOLERANCE = 0.05
"""The most that a relative time, or a ratio of two, may be off."""
MEMORY_TOLERANCE = 0.05
"""The most that reserved memory may be off, as a share."""

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
"""By how much planners are slower than plain training, middles of 35 %, 15 to 20 % and 5 to 17 %."""
V1_ROOM = (0.5 * GIB, 1.0 * GIB)
"""How far below its budget Mimose's memory stays."""
LEAST_MC_BUDGET = round(3.36 * GIB)

DTR_PAIRS: Mapping[str, tuple[tuple[float, float | None], ...]] = {
    "mc-roberta": ((7, 2.5), (7.5, 2), (8, 2), (8.5, 2.5), (9, 1.5), (9.5, 1.5)),
    "tr-t5": ((14, None), (15, None), (16, None), (17, None)),
    "qa-bert": ((7, 2.5), (7.5, 2.5), (8, 3), (8.5, 3), (9, 3)),
    "tc-bert": ((7.5, 3), (8, 3), (8.5, 2.5), (9, 2.5), (10, 2.5)),
}
"""Budgets and what DTR leaves of them, in GB, by the released scripts of the plots; None where they
do not say."""


@dataclass(frozen=True, slots=True)
class Series:
    """A curve of the paper's and the points here that belong to it.

    Attributes:
        task: The task's name.
        planner: As the paper calls it.
        variant: Mimose's variant; empty for the others.
        theirs: The paper's points.
        ours: As many; None where there is no run.
    """

    task: str
    planner: str
    variant: str
    theirs: tuple[paper.TimePoint, ...]
    ours: tuple[Point | None, ...]

    @property
    def name(self) -> str:
        """What its rows are called."""
        return f"{TITLES[self.task]}, {self.planner}" + (f" ({self.variant})" * bool(self.variant))

    @property
    def found(self) -> list[Point]:
        """The points that there are."""
        return [point for point in self.ours if point is not None]


def evicting(pair: tuple[float, float | None]) -> dict[str, str]:
    """Return DTR's options for a pair; evictions after operators, as in its prototype."""
    reserve = {} if pair[1] is None else {"reserve": f"{pair[1]:g}GB"}
    return {"trigger": "after", **reserve}


def _own(pair: tuple[float, float | None]) -> str:
    options = evicting(pair)
    return own(options.get("reserve"), options["trigger"])


def series_of(points: Iterable[Point]) -> list[Series]:
    """Return the paper's curves beside ours, those with a point here."""
    known = {(p.task, p.planner, p.variant, p.own, p.budget_bytes): p for p in points}
    found = []
    for task, title in TITLES.items():
        curves = paper.time_by_memory(title)
        budgets = paper.budgets(title)
        keys: list[tuple[str, str, list[tuple[str, str, str, str, int]]]] = [
            ("Mimose", v, [(task, "mimose", v, "", b) for b in budgets]) for v in VARIANTS
        ]
        keys.append(("Sublinear", "", [(task, "sublinear-greedy", "", "", b) for b in budgets]))
        pairs = DTR_PAIRS[task]
        keys.append(("DTR", "", [(task, "dtr", "", _own(p), round(p[0] * GIB)) for p in pairs]))
        for planner, variant, wanted in keys:
            ours = tuple(known.get(key) for key in wanted)
            if any(ours):
                found.append(Series(task, planner, variant, curves[planner], ours))
    return found


def rows_of(series: Iterable[Series]) -> list[Row]:
    """Return a row a point of time, and one of memory where runs over sampled lengths were made."""
    rows = []
    for each in series:
        for theirs, ours in zip(each.theirs, each.ours, strict=True):
            if ours is None:
                continue
            what = f"at {ours.budget_bytes / GIB:g} GB"
            if ours.time is not None:
                rows.append(
                    Row(
                        series=each.name,
                        what=f"time {what}",
                        unit="x",
                        expected=theirs.relative_time,
                        obtained=ours.time.value,
                    )
                )
            if ours.reserved_bytes is not None:
                rows.append(
                    Row(
                        series=each.name,
                        what=f"reserved {what}",
                        unit="GB",
                        expected=theirs.reserved_bytes,
                        obtained=ours.reserved_bytes,
                    )
                )
    return rows


def criteria_of(rows: Sequence[Row], points: Sequence[Point]) -> list[Criterion]:
    """Return how many points of each planner are too far off, and how many runs break budgets."""
    found = []
    for planner in ("Mimose (printed)", "Mimose (authors)", "Sublinear", "DTR"):
        mine = [row for row in rows if row.series.endswith(f", {planner}")]
        times = [abs(row.obtained - row.expected) for row in mine if row.unit == "x"]
        sizes = [abs(row.error) for row in mine if row.unit == "GB"]
        for name, errors, tolerance in (
            (f"times more than {TIME_TOLERANCE:g} off", times, TIME_TOLERANCE),
            (f"reserved memory more than {MEMORY_TOLERANCE:.0%} off", sizes, MEMORY_TOLERANCE),
        ):
            if errors:
                found.append(
                    Criterion(
                        name=f"{planner}: {name}, of {len(errors)}",
                        value=sum(error > tolerance for error in errors),
                        tolerance=0,
                        is_count=True,
                    )
                )
    over_budget = [
        p for p in points if p.reserved_bytes is not None and p.reserved_bytes > p.budget_bytes
    ]
    return [
        *found,
        Criterion(
            name="runs that reserved more than their budget",
            value=len(over_budget),
            tolerance=0,
            is_count=True,
        ),
    ]


def orderings(series: Sequence[Series], device_label: str) -> list[Claim]:
    """Return who is ahead at each task and budget that the figure shows two planners at."""
    found = []
    for mine in (each for each in series if each.planner == "Mimose"):
        for other in series:
            if other.task != mine.task or other.planner == "Mimose":
                continue
            for i, (a, b) in enumerate(_together(mine, other)):
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
            obtained = _mean(tasks, lambda t: _sublinear(points, t, variant))
            say(f"Sublinear's time over {of}'s, {_named(tasks)}", version, "x", expected, obtained)
        for version, (expected, tasks) in DTR_OVER_MIMOSE.items():
            obtained = _mean(tasks, lambda t: _dtr(points, t, variant))
            say(f"DTR's time over {of}'s, {_named(tasks)}", version, "x", expected, obtained)
        for version, (expected, tasks) in SLOWER_AT_8GB.items():
            obtained = _mean(tasks, lambda t: _at_8gb(points, t, variant))
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


def _sublinear(points: Sequence[Point], task: str, variant: str) -> float | None:
    """Return the ratio of the means over the budgets at which both finished."""
    mine = {p.budget_bytes: p for p in of(points, task, "mimose", variant) if p.time}
    other = {p.budget_bytes: p for p in of(points, task, "sublinear-greedy") if p.time}
    both = [b for b in mine if b in other and b in _paper_budgets(task)]
    a, b = (mean_time([side[key] for key in both]) for side in (mine, other))
    return b / a if a and b else None


def _dtr(points: Sequence[Point], task: str, variant: str) -> float | None:
    """Return the ratio of the means, each over its own budgets, as in the figure."""
    mine = mean_time(of(points, task, "mimose", variant, budgets=_paper_budgets(task)))
    pairs = {(_own(p), round(p[0] * GIB)) for p in DTR_PAIRS.get(task, ())}
    evicting = [p for p in of(points, task, "dtr") if not pairs or (p.own, p.budget_bytes) in pairs]
    theirs = mean_time(evicting)
    return theirs / mine if mine and theirs else None


def _at_8gb(points: Sequence[Point], task: str, variant: str) -> float | None:
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
