"""Fig 11: Mimose's peak of allocated memory by input size and budget, both variants.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025, digitised: exact in length, 0.02 GB in memory. Peaks
are of recorded runs over expected lengths. From which length on something is recomputed, and after
which lengths plans change, needs every length: there the planner is asked after having been taught,
without training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.recorded import Record
from mimose_bench.experiments.figures.result import Criterion, Reproduction, Row, mean_error
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.planning import plan_sizes
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED
from mimose_bench.experiments.tasks import TASKS

TEXT_TASKS = ("mc-roberta", "tr-t5", "qa-bert", "tc-bert")
DETECTORS = ("od-r50", "od-r101")
VARIANTS = ("printed", "authors")
DETECTOR_BUDGET = 16 * GIB

TOLERANCE = 0.05
"""The most that a peak, or the length at which recomputation begins, may be off, as a share."""
CACHE_STEP = 5
"""Plans are shared by lengths up to the next multiple of it."""
SMALL_AREA = 790_000
"""Detectors' peaks are flat up to this area."""

NOTHING_RECOMPUTED: Mapping[str, tuple[int, ...]] = {
    "mc-roberta": (35, 55, 75, 90, 110),
    "qa-bert": (175, 240, 300, 350, 400),
    "tc-bert": (75, 110, 145, 165, 194),
}
"""The longest length without recomputation, budgets of 4 to 8 GB."""

COMMON = {"data": "synthetic", "lengths": "expected", "flops": "off", "threads": 1}
PLANNERS = {name: {"planner": "mimose", "variant": name} for name in VARIANTS}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a taught planner would do at every length, in order.

    Attributes:
        task: The task's name.
        variant: Mimose's variant.
        budget_bytes: The budget.
        plans: Length, plan in words and number of blocks recomputed; None where nothing fits.
    """

    task: str
    variant: str
    budget_bytes: int
    plans: tuple[tuple[int, str | None, int | None], ...]

    @property
    def threshold(self) -> int | None:
        """The last length before the first that recomputes; None if the first one does."""
        last = None
        for length, _, recomputed in self.plans:
            if recomputed != 0:
                return last
            last = length
        return last

    @property
    def changes(self) -> list[int]:
        """The lengths after which the plan is another one."""
        return [a[0] for a, b in zip(self.plans, self.plans[1:]) if a[1] != b[1]]


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
    shown = [p.input_size for points in _paper(task).values() for p in points]
    return list(range(min(shown), max(shown) + 1))


def _paper(task: str) -> dict[int, tuple[paper.MemoryPoint, ...]]:
    return paper.peak_by_input_size(TASKS[task].title)


def judge(runs: Sequence[Run], asked: Sequence[Asked], device_label: str) -> Reproduction:
    """Compare runs over expected lengths, and what planners were asked, with the figure."""
    rows: list[Row] = []
    claims: list[Claim] = []
    for run in runs:
        measured = peaks_of(run)
        theirs = _paper(str(run.info["task"])).get(run.budget_bytes or 0)
        if measured and theirs:
            rows += _rows(run, measured, theirs)
            claims += _peaks(run, measured, theirs, device_label)
    claims += _thresholds(asked, device_label)
    claims += _changes(asked, device_label)
    criteria = [
        Criterion(
            name=f"over its budget: steps of variant {variant}",
            value=sum(_over_budget(r) for r in runs if _variant(r) == variant),
            tolerance=0,
            is_count=True,
        )
        for variant in VARIANTS
        if any(_variant(r) == variant for r in runs)
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
    "if it is at most two tokens, or two percent of the area, away, and if the figure has a single "
    "point there: among several are steps that measured.",
    "The paper's peaks fall as lengths grow: its planner drops more than it must, and leaves a "
    "quarter to a third of the budget unused at the longest. Here every plan is checked against "
    "a predicted peak, so that ours stay near the budget and lie above the paper's there.",
)


def peaks_of(run: Run) -> list[tuple[int, int]]:
    """Return the input size (tokens, or pixels of an image) and peak of the steps that count."""
    steps = run.steps[(run.steps["weight"] != 0) & ~run.steps["outcome"].isin(FAILED)]
    sizes = steps["sequence_length"].fillna(steps["image_pixels"])
    known = sizes.notna() & steps["peak_allocated_bytes"].notna()
    pairs = zip(sizes[known], steps["peak_allocated_bytes"][known])
    return sorted((int(size), int(peak)) for size, peak in pairs)


def _variant(run: Run) -> str:
    return str((run.info.get("config") or {}).get("variant") or "printed")


def _over_budget(run: Run) -> int:
    return sum(peak > (run.budget_bytes or 0) for _, peak in peaks_of(run))


def _name(run: Run) -> str:
    title = TASKS[str(run.info["task"])].title
    return f"{title} at {(run.budget_bytes or 0) / GIB:g} GB, {_variant(run)}"


def _rows(
    run: Run, measured: Sequence[tuple[int, int]], theirs: Sequence[paper.MemoryPoint]
) -> list[Row]:
    rows = []
    for size, peak in measured:
        nearest = min(_single(theirs), key=lambda p: abs(p.input_size - size))
        if abs(nearest.input_size - size) <= max(2, 0.02 * size if size > 10_000 else 2):
            rows.append(
                Row(
                    series=_name(run),
                    what="peak allocated",
                    unit="GB",
                    expected=nearest.peak_bytes,
                    obtained=peak,
                    length=size,
                )
            )
    return rows


def _single(points: Sequence[paper.MemoryPoint]) -> list[paper.MemoryPoint]:
    """Return the points that are alone at their size: among others are steps that measured."""
    counts = Counter(p.input_size for p in points)
    return [p for p in points if counts[p.input_size] == 1]


def _peaks(
    run: Run,
    measured: Sequence[tuple[int, int]],
    theirs: Sequence[paper.MemoryPoint],
    device_label: str,
) -> list[Claim]:
    """Return the claims on the largest peak, on the longest input and on small images."""
    task = str(run.info["task"])
    ends = [("largest peak", max(p.peak_bytes for p in theirs), max(peak for _, peak in measured))]
    last_size, last_peak = measured[-1]
    end = min(_single(theirs), key=lambda p: abs(p.input_size - last_size))
    ends.append((f"peak at {last_size}", end.peak_bytes, last_peak))
    if task in DETECTORS:
        small = [p.peak_bytes for p in theirs if p.input_size <= SMALL_AREA]
        ours = [peak for size, peak in measured if size <= SMALL_AREA]
        if small and ours:
            what = f"largest peak up to {SMALL_AREA / 1e6:.2f} million pixels"
            ends.append((what, max(small), max(ours)))
    place = "abcdef"[paper.PEAKS_SHOWN.index(TASKS[task].title)]
    return [
        Claim(
            text=f"{_name(run)}: {what}",
            source=f"Fig 11 {place}",
            version="ipdps",
            unit="GB",
            expected=expected,
            obtained=obtained,
            tolerance=TOLERANCE,
            relative=True,
            device_label=device_label,
        )
        for what, expected, obtained in ends
    ]


def _thresholds(asked: Sequence[Asked], device_label: str) -> list[Claim]:
    found = []
    for each in asked:
        budgets = paper.budgets(TASKS[each.task].title)
        expected = NOTHING_RECOMPUTED[each.task][budgets.index(each.budget_bytes)]
        found.append(
            Claim(
                text=(
                    f"{TASKS[each.task].title} at {each.budget_bytes / GIB:g} GB, {each.variant}: "
                    "longest length without recomputation"
                ),
                source=f"Fig 11 {'abcdef'[paper.PEAKS_SHOWN.index(TASKS[each.task].title)]}",
                version="ipdps",
                unit="count",
                expected=expected,
                obtained=each.threshold,
                tolerance=TOLERANCE,
                relative=True,
                device_label=device_label,
                note="" if each.threshold else "recomputes from the shortest length on",
            )
        )
    return found


def _changes(asked: Sequence[Asked], device_label: str) -> list[Claim]:
    found = []
    for variant in VARIANTS:
        changes = [length for each in asked if each.variant == variant for length in each.changes]
        if changes:
            found.append(
                Claim(
                    text=f"plans of variant {variant} change after multiples of 5 alone: others",
                    source="Fig 11",
                    version="ipdps",
                    unit="count",
                    expected=0,
                    obtained=sum(length % CACHE_STEP != 0 for length in changes),
                    device_label=device_label,
                    note=f"of {len(changes)} changes over all tasks, lengths and budgets",
                )
            )
    return found
