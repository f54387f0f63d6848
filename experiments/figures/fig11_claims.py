"""What Fig 11 shows, judged on runs over expected lengths and on plans that were asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import Row
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
FAR_BELOW = 0.85
SMALL_AREA = 790_000
"""Detectors' peaks are flat up to this area."""

NOTHING_RECOMPUTED: Mapping[str, tuple[int, ...]] = {
    "mc-roberta": (35, 55, 75, 90, 110),
    "qa-bert": (175, 240, 300, 350, 400),
    "tc-bert": (75, 110, 145, 165, 194),
}
"""The longest length without recomputation, budgets of 4 to 8 GB."""


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
    def known(self) -> tuple[tuple[int, str | None, int | None], ...]:
        """The plans without those of lengths shorter than any that the planner was taught.

        There it still measures, with every block recomputed.
        """
        most = max((count or 0 for _, _, count in self.plans), default=0)
        first = 0
        while most and first < len(self.plans) and self.plans[first][2] == most:
            first += 1
        return self.plans[first:]

    @property
    def threshold(self) -> int | None:
        """The longest length without recomputation; None if there is none."""
        return max((length for length, _, count in self.known if count == 0), default=None)

    @property
    def changes(self) -> list[int]:
        """The lengths after which the plan is another one."""
        return [a[0] for a, b in zip(self.known, self.known[1:]) if a[1] != b[1]]


def paper_points(task: str) -> dict[int, tuple[paper.MemoryPoint, ...]]:
    """Return the figure's points of a task by budget."""
    return paper.peak_by_input_size(TASKS[task].title)


def peaks_of(run: Run) -> list[tuple[int, int]]:
    """Return the input size (tokens, or pixels of an image) and peak of the steps that count."""
    steps = run.steps[(run.steps["weight"] != 0) & ~run.steps["outcome"].isin(FAILED)]
    sizes = steps["sequence_length"].fillna(steps["image_pixels"])
    known = sizes.notna() & steps["peak_allocated_bytes"].notna()
    pairs = zip(sizes[known], steps["peak_allocated_bytes"][known])
    return sorted((int(size), int(peak)) for size, peak in pairs)


def variant_of(run: Run) -> str:
    """Return the variant of Mimose that a run is of."""
    return str((run.info.get("config") or {}).get("variant") or "printed")


def over_budget(run: Run) -> int:
    """Return how many steps allocated more than the budget."""
    return sum(peak > (run.budget_bytes or 0) for _, peak in peaks_of(run))


def _name(run: Run) -> str:
    title = TASKS[str(run.info["task"])].title
    return f"{title} at {(run.budget_bytes or 0) / GIB:g} GB, {variant_of(run)}"


def rows_of(
    run: Run, measured: Sequence[tuple[int, int]], theirs: Sequence[paper.MemoryPoint]
) -> list[Row]:
    """Return a row a step at which the figure has a point nearby."""
    rows = []
    for size, peak in measured:
        nearest = min(settled(theirs), key=lambda p: abs(p.input_size - size))
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


def settled(points: Sequence[paper.MemoryPoint]) -> list[paper.MemoryPoint]:
    """Return the figure's points without those of steps that measured, with all recomputed.

    Those lie far below both of their neighbours in size, or below the one that they have; a new
    plan takes no more than a tenth from one size to the next.
    """
    largest: dict[int, paper.MemoryPoint] = {}
    for point in sorted(points, key=lambda p: p.peak_bytes):
        largest[point.input_size] = point
    ordered = [largest[size] for size in sorted(largest)]
    found = []
    for i, point in enumerate(ordered):
        beside = ordered[max(i - 1, 0) : i] + ordered[i + 1 : i + 2]
        if any(point.peak_bytes >= FAR_BELOW * other.peak_bytes for other in beside):
            found.append(point)
    return found


def peak_claims(
    run: Run,
    measured: Sequence[tuple[int, int]],
    theirs: Sequence[paper.MemoryPoint],
    device_label: str,
) -> list[Claim]:
    """Return the claims on the largest peak, on the longest input and on small images."""
    task = str(run.info["task"])
    ends = [("largest peak", max(p.peak_bytes for p in theirs), max(peak for _, peak in measured))]
    last_size, last_peak = measured[-1]
    end = min(settled(theirs), key=lambda p: abs(p.input_size - last_size))
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


def threshold_claims(asked: Sequence[Asked], device_label: str) -> list[Claim]:
    """Return up to which length nothing is recomputed, a claim a task and budget."""
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
                note="" if each.threshold else "recomputes wherever it was taught",
            )
        )
    return found


def change_claims(asked: Sequence[Asked], device_label: str) -> list[Claim]:
    """Return after which lengths plans change, a claim a variant."""
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
