"""The stars of Fig 10: reserved memory with every block recomputed, and with none.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: the two ends of each panel's memory axis, which is
the peak of reserved bytes over a run. What a run reserves is more than its longest batch needs
alone, since batches of other lengths leave pieces that do not fit; so runs over the data set's
lengths are simulated, several, as they differ in what comes after what.

Without a limit PyTorch's cache grows on and on when nothing is recomputed. The authors' scripts
limited it to just above the star (https://github.com/buaa-hipo/mimose-transformers): the upper star
is what a run reserves under the least limit that lets it finish. Recomputing everything leaves
little behind; there the run is not limited.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median_high

import torch

from mimose_bench.experiments.figures.lengths import bins_of
from mimose_bench.experiments.figures.result import (
    Criterion,
    Reproduction,
    Row,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.workloads import MC_ROBERTA, QA_BERT, TC_BERT, Workload
from mimose_bench.experiments.paper import memory_bounds
from mimose_bench.experiments.remembered import StepMemory

WORKLOADS: tuple[Workload, ...] = (MC_ROBERTA, QA_BERT, TC_BERT)

TOLERANCE = 0.05
"""Relative error of each star."""

LOWER, UPPER = "every block recomputed", "none recomputed"
PLANNERS: Mapping[str, str] = {LOWER: "full", UPPER: "baseline"}
"""The lower and the upper star, and the planner that makes each."""

RUNS = 5
STEPS = 200
QUICK_RUNS, QUICK_STEPS = 3, 100

ALONE_SHARE = 0.9
"""Of what the longest batch reserves alone, more than this share is allocated: it does not fit."""

PRECISION = 0.005
"""How closely the least limit is looked for, as a share of it."""


@dataclass(frozen=True, slots=True)
class Star:
    """What was measured for one star, in reserved bytes.

    Attributes:
        alone: Over steps at the longest batch and nothing else.
        runs: Of each run over the data set's lengths.
    """

    alone: int
    runs: tuple[int, ...]

    @property
    def middle(self) -> int:
        """The median of the runs."""
        return median_high(self.runs)


class Measurement:
    """Runs of one workload under one planner, each in an allocator of its own.

    Steps that were simulated in one run are replayed in the next.
    """

    def __init__(self, open_device: OpenDevice, workload: Workload, planner: str) -> None:
        self.open_device = open_device
        self.workload = workload
        self.planner = planner
        self._memory = StepMemory()

    def star(self, which: str, runs: int, steps: int) -> Star:
        """Measure one star over so many runs of so many steps."""
        alone = self.reserved([self.workload.longest] * 3)
        assert alone is not None
        find = self.reserved if which == LOWER else self.under_least_limit
        found = [find(sampled(self.workload, seed, steps)) for seed in range(runs)]
        return Star(alone, tuple(peak for peak in found if peak is not None))

    def reserved(self, lengths: Sequence[int], limit_bytes: int | None = None) -> int | None:
        """Return the peak reserved bytes of a run, or None where it ran out of memory."""
        try:
            with (
                self.open_device() as device,
                training(
                    device, self.workload, self.planner, limit_bytes, memory=self._memory
                ) as session,
            ):
                for length in lengths:
                    session.step(length)
                return device.peak_reserved_bytes()
        except torch.OutOfMemoryError:
            return None

    def under_least_limit(self, lengths: Sequence[int]) -> int:
        """Return the peak reserved bytes of a run under the least limit that lets it finish."""
        alone, most = self.reserved([self.workload.longest] * 3), self.reserved(lengths)
        assert alone is not None
        assert most is not None
        found = most
        too_little = round(ALONE_SHARE * alone)
        while most - too_little > PRECISION * most:
            limit = (too_little + most) // 2
            peak = self.reserved(lengths, limit)
            if peak is None:
                too_little = limit
            else:
                most, found = limit, peak
        return found


def sampled(workload: Workload, seed: int, steps: int) -> list[int]:
    """Return lengths drawn from the data set's, the longest among them two thirds of the way."""
    bins = bins_of(workload)
    rng = random.Random(seed)
    lengths = rng.choices([b.length for b in bins], [b.share for b in bins], k=steps)
    lengths[2 * steps // 3] = workload.longest
    return lengths


def judge(measured: Mapping[tuple[str, str], Star], device_label: str) -> Reproduction:
    """Compare stars by (task, which) with the paper's."""
    rows: list[Row] = []
    alone: list[Row] = []
    for workload in WORKLOADS:
        for which, expected in zip((LOWER, UPPER), memory_bounds(workload.name)):
            star = measured.get((workload.name, which))
            if star is None:
                continue
            runs = ", ".join(f"{100 * (peak / expected - 1):+.1f} %" for peak in sorted(star.runs))
            for values, what, obtained, note in (
                (rows, which, star.middle, f"runs: {runs}"),
                (alone, f"{which}, longest batch alone", star.alone, "not judged"),
            ):
                values.append(
                    Row(
                        series=workload.name,
                        what=what,
                        unit="GB",
                        expected=expected,
                        obtained=obtained,
                        length=workload.longest,
                        note=note,
                    )
                )
    return Reproduction(
        name="stars",
        title="least and most reserved memory",
        source="Fig 10 a, c, d: the stars",
        device_label=device_label,
        rows=(*rows, *alone),
        criteria=(
            Criterion(name="maximum error", value=max_error(rows), tolerance=TOLERANCE),
            Criterion(name="mean error", value=mean_error(rows)),
            Criterion(name="maximum error of the longest batch alone", value=max_error(alone)),
        ),
        notes=(
            f"Median over runs; {LOWER}: without a limit; {UPPER}: under the least limit that lets "
            "the run finish.",
        ),
    )


def check(
    open_device: OpenDevice, *, runs: int = RUNS, steps: int = STEPS, say: Say = silent
) -> Reproduction:
    """Measure both stars of every task and compare."""
    measured: dict[tuple[str, str], Star] = {}
    for workload in WORKLOADS:
        for which, planner in PLANNERS.items():
            say(f"stars: {workload.name}, {which}, {runs} runs of {steps} steps")
            measurement = Measurement(open_device, workload, planner)
            measured[workload.name, which] = measurement.star(which, runs, steps)
    with open_device() as device:
        return judge(measured, device.label)
