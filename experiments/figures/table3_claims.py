"""Verdicts on what the paper says of Mimose's overheads, and ours beside its table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.means import mean_interval
from mimose_bench.experiments.figures.overheads import Overheads
from mimose_bench.experiments.figures.result import ResultTable, Row
from mimose_bench.experiments.figures.table3_paper import (
    FEWEST_SHELTERED,
    MEANS,
    MOST_PLANNING,
    MOST_PLANNING_SHARE,
    MOST_SHELTERED,
    MOST_SHELTERED_RATIO,
    MS,
    PRINTED,
    SHARES,
)
from mimose_bench.experiments.tasks import TASKS

Figures = Mapping[str, Mapping[str, Sequence[Overheads]]]
"""The overheads of each seed's run, by variant and task."""


def rows(variant: str, task: str, runs: Sequence[Overheads]) -> list[Row]:
    """Return a task's values beside its row of the table."""
    paper = PRINTED[task]
    low, high = paper.planning
    values = (
        ("collector, an iteration", paper.collector, [o.collector for o in runs], ""),
        (
            "estimator and scheduler, a plan",
            (low + high) / 2,
            [o.planning for o in runs],
            f"{low / MS:.2f} to {high / MS:.2f} ms in the paper",
        ),
        ("total", paper.total, [o.total for o in runs], ""),
        ("iteration", paper.iteration, [o.iteration for o in runs], ""),
    )
    return [
        Row(
            series=f"{TASKS[task].title}, {variant}",
            what=what,
            unit="ms",
            expected=expected,
            obtained=fmean(found),
            note=note,
        )
        for what, expected, found, note in values
    ]


def claims(variant: str, tasks: Mapping[str, Sequence[Overheads]], label: str) -> list[Claim]:
    """Return what is claimed of a variant's overheads.

    Args:
        variant: The variant.
        tasks: Its overheads by task, one a seed.
        label: The device's label.
    """
    return [
        *_totals(variant, tasks, label),
        *_means(variant, tasks, label),
        *_shares(variant, tasks, label),
        *planning_claims(variant, tasks, label, ""),
        *_sheltered(variant, tasks, label),
    ]


def _totals(variant: str, tasks: Mapping[str, Sequence[Overheads]], label: str) -> list[Claim]:
    found = []
    for task, runs in tasks.items():
        mean, interval = mean_interval([o.iterations for o in runs])
        found.append(
            Claim(
                text=f"{TASKS[task].title}, {variant}: overhead in iterations",
                source="Table III",
                version=PRINTED[task].version,
                unit="iterations",
                expected=PRINTED[task].iterations,
                obtained=mean,
                interval=interval,
                bound="at most",
                device_label=label,
            )
        )
    return found


def _means(variant: str, tasks: Mapping[str, Sequence[Overheads]], label: str) -> list[Claim]:
    found = []
    for version, (names, expected) in MEANS.items():
        present = [tasks[name] for name in names if name in tasks]
        if len(present) < len(names):
            continue
        by_seed = [fmean(o.iterations for o in runs) for runs in zip(*present)]
        mean, interval = mean_interval(by_seed)
        found.append(
            Claim(
                text=f"{variant}: overhead in iterations, mean of {len(names)} tasks",
                source="text on Table III",
                version=version,
                unit="iterations",
                expected=expected,
                obtained=mean,
                interval=interval,
                bound="at most",
                device_label=label,
            )
        )
    return found


def _shares(variant: str, tasks: Mapping[str, Sequence[Overheads]], label: str) -> list[Claim]:
    found = []
    for version, (names, least, most) in SHARES.items():
        own = {name: tasks[name] for name in names if name in tasks}
        if not own:
            continue
        for which, bound, expected in ((min, "at least", least), (max, "at most", most)):
            wrong = (version, bound) == ("ipdps", "at most")
            found.append(
                _extreme(
                    f"{variant}: the collector's share of an iteration is {bound} this",
                    own,
                    lambda o: o.collector_share,
                    which,
                    unit="%",
                    version=version,
                    expected=expected,
                    bound=bound,
                    device_label=label,
                    note_more="Table III itself has 63 % for TC-Bert" if wrong else "",
                )
            )
    return found


def _sheltered(variant: str, tasks: Mapping[str, Sequence[Overheads]], label: str) -> list[Claim]:
    found = [
        _extreme(
            f"{variant}: sheltered iterations, {which.__name__}imum of all tasks",
            tasks,
            lambda o: float(o.num_sheltered),
            which,
            unit="iterations",
            version="v1",
            expected=expected,
            bound=bound,
            device_label=label,
        )
        for which, bound, expected in (
            (min, "at least", FEWEST_SHELTERED),
            (max, "at most", MOST_SHELTERED),
        )
    ]
    timed = {name: [o for o in runs if o.sheltered_ratios] for name, runs in tasks.items()}
    timed = {name: runs for name, runs in timed.items() if runs}
    if timed:
        found.append(
            _extreme(
                f"{variant}: a sheltered iteration takes at most twice plain training's time",
                timed,
                lambda o: max(o.sheltered_ratios),
                max,
                unit="x",
                version="v1",
                expected=MOST_SHELTERED_RATIO,
                bound="at most",
                device_label=label,
                note_more="the longest of each run",
            )
        )
    return found


def planning_claims(
    variant: str, tasks: Mapping[str, Sequence[Overheads]], label: str, setting: str
) -> list[Claim]:
    """Return what is claimed of the time that a plan takes.

    Args:
        variant: The variant.
        tasks: Its overheads by task.
        label: The device's label.
        setting: What was trained, where that is not the paper's task.
    """
    where = f"{variant}, {setting}" if setting else variant
    common: dict[str, Any] = {"version": "v1", "bound": "at most", "device_label": label}
    return [
        _extreme(
            f"{where}: estimator and scheduler together take under this for a plan",
            tasks,
            lambda o: o.planning,
            max,
            unit="ms",
            expected=MOST_PLANNING,
            **common,
        ),
        _extreme(
            f"{where}: and under this share of an iteration",
            tasks,
            lambda o: o.planning_share,
            max,
            unit="%",
            expected=MOST_PLANNING_SHARE,
            **common,
        ),
    ]


def _extreme(
    text: str,
    tasks: Mapping[str, Sequence[Overheads]],
    figure: Callable[[Overheads], float],
    which: Callable[..., Any],
    note_more: str = "",
    **claim: Any,
) -> Claim:
    """Return a claim on the task that has the least or the most of a figure."""
    by_task = {name: mean_interval([figure(o) for o in runs]) for name, runs in tasks.items()}
    name = which(by_task, key=lambda n: by_task[n][0])
    mean, interval = by_task[name]
    note = f"that of {TASKS[name].title}"
    return Claim(
        text=text,
        source="text on Table III",
        obtained=mean,
        interval=interval,
        note=f"{note}; {note_more}" if note_more else note,
        **claim,
    )


def table(figures: Figures, label: str) -> ResultTable:
    """Return everything in figures, a row a variant and task."""
    body = []
    for variant, tasks in figures.items():
        for task, runs in tasks.items():
            ratios = [ratio for o in runs for ratio in o.sheltered_ratios]
            mean, interval = mean_interval([o.iterations for o in runs])
            ends = "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
            body.append(
                (
                    TASKS[task].title,
                    variant,
                    f"{fmean(o.collector for o in runs) / MS:.2f} x "
                    f"{fmean(o.num_sheltered for o in runs):.1f}",
                    f"{fmean(o.planning for o in runs) / MS:.3f} x "
                    f"{fmean(o.num_plans for o in runs):.1f}",
                    f"{fmean(o.total for o in runs) / MS:.1f}",
                    f"{mean:.2f}{ends}",
                    f"{fmean(o.iteration for o in runs) / MS:.1f}",
                    f"{fmean(o.collector_share for o in runs):.1%}",
                    f"{fmean(o.planning_share for o in runs):.3%}",
                    f"{fmean(ratios):.2f}, {max(ratios):.2f}" if ratios else "-",
                    f"{sum(o.num_failed for o in runs)}, {sum(o.num_retried for o in runs)}",
                )
            )
    return ResultTable(
        title=f"means over runs, {label}; milliseconds, 95 % intervals over seeds",
        headers=(
            "task",
            "variant",
            "collector x iterations",
            "planning x plans",
            "total",
            "in iterations",
            "iteration",
            "collector's share",
            "planning's share",
            "sheltered / plain: mean, most",
            "out of memory, retried",
        ),
        rows=tuple(body),
    )
