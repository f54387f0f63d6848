"""DTR's breakdown and its overhead measured with real tensors, on the cpu, for Fig 5."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, quantiles
from time import process_time

from mimose.eviction import EvictionFigures
from mimose.units import format_bytes
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.evicting import Course, train_on
from mimose_bench.experiments.figures.result import FACTORS, ResultTable
from mimose_bench.experiments.figures.session import Say, opened, training
from mimose_bench.experiments.tasks import TaskOptions, make_task
from mimose_bench.experiments.tasks.base import Scale

MS = FACTORS["ms"]
SETTLE = 2
CPU_SHARES = (0.8, 0.7, 0.6, 0.5)
"""Budgets on the cpu, as shares of what plain training reserves there over the same batches."""
CPU_STEPS = 8
PARTS = {
    "forward and backward": "forward_backward_seconds",
    "recomputation": "recompute_seconds",
    "cost maintaining": "maintenance_seconds",
    "planning": "search_seconds",
}
"""The paper's words for the parts, and ours."""


def measured_on_cpu(steps: int, scale: Scale, say: Say) -> tuple[ResultTable, ResultTable]:
    """Measure a breakdown and the overhead without a budget with real tensors."""
    task = make_task("qa-bert", TaskOptions(scale=scale, data="synthetic"))
    batches = list(task.batches(steps + SETTLE))
    with opened("cpu") as device:
        plain = train_on(device, task, "baseline", None, batches)
        label = device.label
    most = plain.peak_reserved
    rows = []
    for share in CPU_SHARES:
        with opened("cpu") as device:
            course = train_on(device, task, "dtr", round(share * most), batches)
        rows.append(_cpu_row(share, round(share * most), course))
        say(f"fig5: qa-bert {scale} at {share:.0%}: {course.reason or f'{course.seconds:.3f} s'}")
    title = f"qa-bert at scale {scale}, {label}"
    breakdown = ResultTable(
        title=f"{title}: ms a step, budgets as shares of the {format_bytes(most)} that plain "
        f"training reserves ({plain.pass_seconds / MS:.0f} ms for forward and backward)",
        headers=(
            "budget",
            *PARTS,
            "other overhead",
            "evictions",
            "run again",
            "reserved",
        ),
        rows=tuple(rows),
    )
    return breakdown, _cpu_overhead(task, batches, title)


def _cpu_row(share: float, budget: int, course: Course) -> tuple[str, ...]:
    name = f"{share:.0%}, {format_bytes(budget)}"
    if not course.records:
        return name, course.failure, *["-"] * 7
    parts = course.parts()
    times = (*PARTS.values(), "overhead_seconds")
    return (
        name,
        *(f"{parts[part] / MS:.1f}" for part in times),
        f"{parts['num_evictions']:.0f}",
        f"{parts['num_rematerializations']:.0f}",
        format_bytes(course.peak_reserved),
    )


def _cpu_overhead(task: object, batches: Sequence[Batch], title: str) -> ResultTable:
    """Measure in turns, each batch plainly and under DTR, in the processor's time.

    A step on the cpu keeps its thread busy throughout, and what else the machine does is not in it.
    """
    ratios, own = [], []
    with opened("cpu") as device, training(device, task, "baseline") as session:  # type: ignore[arg-type]
        for number, batch in enumerate(batches):
            seconds = {}
            for planner in ("baseline", "dtr"):
                session.use(planner)
                begun = process_time()
                session.take(batch)
                seconds[planner] = process_time() - begun
            figures = session.evicted
            assert isinstance(figures, EvictionFigures)
            if number >= SETTLE:
                ratios.append(seconds["dtr"] / seconds["baseline"] - 1)
                more = seconds["dtr"] - seconds["baseline"]
                own.append(more / figures.num_operators * 1e6)
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    return ResultTable(
        title=f"{title}: overhead without a budget over plain training, processor time, in turns",
        headers=("median", "quartiles", "microseconds an operator"),
        rows=((f"{median(ratios):+.1%}", f"{low:+.1%} to {high:+.1%}", f"{median(own):.1f}"),),
    )
