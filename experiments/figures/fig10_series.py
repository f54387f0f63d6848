"""The curves of Fig 10 a to d beside the points that runs make. Pure functions.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025, digitised (error 0.003 in time, 0.02 GB in memory), x
being the memory really reserved. The paper's "Sublinear" is Mimose's own greedy, run once for the
longest batch: ``sublinear-greedy`` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.points import Point, own
from mimose_bench.experiments.figures.result import Criterion, Row

TITLES: Mapping[str, str] = {
    "mc-roberta": "MC-Roberta",
    "tr-t5": "TR-T5",
    "qa-bert": "QA-Bert",
    "tc-bert": "TC-Bert",
}
"""Fig 10 a to d."""
VARIANTS = ("printed", "authors")

TIME_TOLERANCE = 0.05
"""The most that a relative time, or a ratio of two, may be off."""
MEMORY_TOLERANCE = 0.05
"""The most that reserved memory may be off, as a share."""

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


def own_of(pair: tuple[float, float | None]) -> str:
    """Return the same in a point's words."""
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
        keys.append(("DTR", "", [(task, "dtr", "", own_of(p), round(p[0] * GIB)) for p in pairs]))
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
