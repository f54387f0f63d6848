"""What learning costs auto, how well it predicts and how much of its budget it uses.

Runs over sampled lengths on the simulated GPU, the budget enforced, each beside plain training over
the same batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mimose.units import format_bytes
from mimose_bench.experiments.comparing import pair
from mimose_bench.experiments.figures.auto import AUTO, COMMON, MIMOSE, PRINTED, SOURCE
from mimose_bench.experiments.figures.claims import Bound, Claim, ClaimUnit
from mimose_bench.experiments.figures.recorded import Cell, Record, Recorded
from mimose_bench.experiments.figures.result import Reproduction, ResultTable
from mimose_bench.experiments.figures.session import Say, silent
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import (
    LEARNING_PHASES,
    count_violations,
    makes_again,
    planning_seconds,
)
from mimose_bench.experiments.tables import MISSING
from mimose_bench.experiments.tasks import TASKS

BATCHES = ("qa-bert", "tc-bert", "mc-roberta")
EXPANDABLE = "auto, expandable segments"
"""What auto is called where the allocator has those."""
BUDGET = "5GB"
STEPS, QUICK_STEPS, QUICK_TASKS = 1000, 30, 1
"""Steps of each task: 3,000 in all."""

ITERATIONS = 0.5
"""Most iterations that learning is to cost in all."""
ERROR = 0.001
"""Most that predicted peaks are to be off in the mean."""
USE = 0.95
"""Least share of the budget that is to be allocated at the peak where values are made again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Figures of one run.

    Attributes:
        steps: Its steps.
        learning: Steps in which it measured.
        iterations: What those took more than plain training's, in plain iterations.
        own: What those took more than the same planner's plans take in such a budget once it has
            learned, in plain iterations; None where that was not run.
        error: Mean error of predicted peaks of allocated bytes, as a share; None without any.
        worst: The largest one.
        use: Median of peak allocated over budget where values are made again; None without any.
        violations: Steps that ran out of memory or were repeated, and allocator retries.
        miss: Median seconds of planning without the cache; None without any.
        hit: The same with it.
    """

    steps: int
    learning: int
    iterations: float
    own: float | None
    error: float | None
    worst: float | None
    use: float | None
    violations: int
    miss: float | None
    hit: float | None


def settled_grid(tasks: int = len(BATCHES)) -> dict[str, Any]:
    """Return what shows what auto's plans take once it has learned: every length of each task."""
    return {
        "tasks": list(BATCHES[:tasks]),
        "budgets": [BUDGET],
        "planners": ["baseline", AUTO],
        "seeds": [1],
        "options": {**COMMON, "lengths": "expected"},
    }


def grid(
    tasks: int = len(BATCHES), steps: int = STEPS, *, expandable: bool = False
) -> dict[str, Any]:
    """Return what is run.

    Args:
        tasks: How many of the tasks.
        steps: Steps of each.
        expandable: Whether the allocator has expandable segments; auto alone is run so.
    """
    common = {
        "tasks": list(BATCHES[:tasks]),
        "budgets": [BUDGET],
        "seeds": [1],
        "options": {**COMMON, "steps": steps},
    }
    if expandable:
        common["options"]["allocator"] = "expandable"
        return {**common, "planners": ["baseline", AUTO]}
    return {**common, "planners": ["baseline", AUTO, MIMOSE], "planner": PRINTED}


@dataclass(frozen=True, slots=True)
class Settled:
    """What plans take more than plain training by length, once their planner has learned.

    Attributes:
        lengths: In ascending order.
        seconds: One a length.
    """

    lengths: np.ndarray
    seconds: np.ndarray

    @classmethod
    def of(cls, mine: Run, plain: Run) -> Settled:
        """Return what runs over expected lengths show.

        Raises:
            ValueError: If they are over other ones, or if all of a run's steps measured.
        """
        paired = pair(plain.steps, mine.steps)
        learned = paired[paired["phase"] == "responsive"].sort_values("sequence_length")
        if not len(learned):
            raise ValueError("no step of the run over expected lengths was planned")
        more = learned["step_seconds"] - learned["reference_seconds"]
        return cls(learned["sequence_length"].to_numpy(dtype=float), more.to_numpy(dtype=float))

    def at(self, lengths: pd.Series) -> np.ndarray:
        """Return seconds for some lengths, those between two seen ones in proportion."""
        return np.interp(lengths.to_numpy(dtype=float), self.lengths, self.seconds)


def measure(mine: Run, plain: Run, settled: Settled | None = None) -> Learning:
    """Return a run's figures beside plain training's over the same batches.

    Args:
        mine: The run.
        plain: Plain training.
        settled: What plans of the same planner take in the same budget.

    Raises:
        ValueError: If the batches differ.
    """
    steps = mine.steps
    paired = pair(plain.steps, steps)
    learning = paired[paired["phase"].isin(LEARNING_PHASES)]
    more = learning["step_seconds"] - learning["reference_seconds"]
    iteration = plain.steps["step_seconds"].mean()
    own = None
    if settled is not None:
        own = float((more - settled.at(learning["sequence_length"])).sum() / iteration)
    answered = steps[(steps["phase"] == "responsive") & (steps["outcome"] == "ok")]
    predicted = answered[answered["predicted_peak_bytes"].notna()]
    peaks = predicted["peak_allocated_bytes"].astype(float)
    errors = (predicted["predicted_peak_bytes"].astype(float) / peaks - 1).abs()
    again = answered[makes_again(answered)]["peak_allocated_bytes"]
    planning = planning_seconds(answered)
    hit = answered["cache_hit"].fillna(False).astype(bool)
    assert mine.budget_bytes is not None, "the grid gives one"
    return Learning(
        steps=len(steps),
        learning=len(learning),
        iterations=float(more.sum() / iteration),
        own=own,
        error=float(errors.mean()) if len(errors) else None,
        worst=float(errors.max()) if len(errors) else None,
        use=float(again.median()) / mine.budget_bytes if len(again) else None,
        violations=count_violations(steps),
        miss=_median(planning[~hit]),
        hit=_median(planning[hit]),
    )


def _median(seconds: pd.Series) -> float | None:
    return float(seconds.median()) if len(seconds) else None


def check(
    record: Record, *, tasks: int = len(BATCHES), steps: int = STEPS, say: Say = silent
) -> Reproduction:
    """Run the grid and judge what auto's runs come to.

    Args:
        record: Runs a grid.
        tasks: How many of the tasks to take.
        steps: Steps of each.
        say: Takes lines of progress.
    """
    say(f"auto-learning: {tasks} tasks, {steps} steps each")
    native = record(grid(tasks, steps))
    stretched = record(grid(tasks, steps, expandable=True))
    # Every length is too much for a quick look.
    learned = record(settled_grid(tasks)) if steps == STEPS else None
    found: dict[tuple[str, str], Learning] = {}
    reasons = []
    for task in BATCHES[:tasks]:
        for recorded, planner, called in (
            (native, AUTO, AUTO),
            (stretched, AUTO, EXPANDABLE),
            (native, MIMOSE, MIMOSE),
        ):
            (plain,) = recorded.find(task=task, label="baseline")
            (cell,) = recorded.find(task=task, label=planner)
            try:
                settled = _settled(learned, task) if called == AUTO else None
                found[task, called] = _measured(cell, plain, settled)
            except ValueError as error:
                reasons.append(f"{TASKS[task].title} under {called}: {error}.")
    return judge(found, native.time_label, reasons)


def _settled(learned: Recorded | None, task: str) -> Settled | None:
    if learned is None:
        return None
    (plain,) = learned.find(task=task, label="baseline")
    (cell,) = learned.find(task=task, label=AUTO)
    return Settled.of(*_runs(cell, plain))


def _measured(cell: Cell, plain: Cell, settled: Settled | None) -> Learning:
    return measure(*_runs(cell, plain), settled)


def _runs(*cells: Cell) -> list[Run]:
    runs = [cell.run for cell in cells if cell.run is not None]
    if len(runs) < len(cells):
        raise ValueError("one of the runs left no record")
    return runs


def judge(
    found: Mapping[tuple[str, str], Learning], device_label: str, reasons: Sequence[str] = ()
) -> Reproduction:
    """Hold auto's figures against the aims.

    Args:
        found: Figures by task and planner, :data:`EXPANDABLE` for auto with expandable segments.
        device_label: Where they were obtained.
        reasons: Why some are missing, a sentence each.
    """
    claims: list[Claim] = []

    def add(
        text: str,
        unit: ClaimUnit,
        expected: float,
        bound: Bound,
        of: Callable[[Learning], float | None],
        planner: str = AUTO,
    ) -> None:
        segments = " with expandable segments" if planner == EXPANDABLE else ""
        claims.extend(
            Claim(
                text=f"{TASKS[task].title} in {BUDGET}{segments}: {text}",
                source=SOURCE,
                version="other",
                unit=unit,
                expected=expected,
                obtained=of(each),
                bound=bound,
                device_label=device_label,
                note=f"{each.steps} steps",
            )
            for (task, called), each in found.items()
            if called == planner
        )

    text = "learning costs iterations in all"
    own = f"{text}, beside what plans take in this budget once it has learned"
    add(text, "iterations", ITERATIONS, "at most", lambda e: e.iterations)
    add(own, "iterations", ITERATIONS, "at most", lambda e: e.own)
    for planner in (AUTO, EXPANDABLE):
        add("mean error of predicted peaks", "%", ERROR, "at most", lambda e: e.error, planner)
        use = "median peak over budget where values are made again"
        add(use, "%", USE, "at least", lambda e: e.use, planner)
        add("violations of the budget", "count", 0, "at most", lambda e: e.violations, planner)
    return Reproduction(
        name="auto-learning",
        title="what learning costs auto, and how near to its budget it goes",
        source=SOURCE,
        device_label=device_label,
        rows=(),
        claims=tuple(claims),
        tables=(_table(found, device_label),) if found else (),
        notes=(
            "Learning costs what steps of measuring take more than plain training's on the same "
            "batches. Lengths beyond those seen call for such steps later in a run, too. Such "
            "batches mostly do not fit the budget as they are: what auto's plans for them take "
            "more than plain training once it has learned is no cost of learning. By runs over "
            "all lengths, a second figure leaves it out.",
            "On a simulated GPU planning is counted work at prices measured on cpu.",
            *reasons,
        ),
    )


def _table(found: Mapping[tuple[str, str], Learning], device_label: str) -> ResultTable:
    rows = [
        (
            TASKS[task].title,
            planner,
            f"{each.steps}",
            f"{each.learning}",
            f"{each.iterations:.2f}",
            MISSING if each.own is None else f"{each.own:.2f}",
            f"{_percent(each.error)}, {_percent(each.worst)}",
            _percent(each.use),
            f"{each.violations}",
            f"{_micro(each.miss)}, {_micro(each.hit)}",
        )
        for (task, planner), each in found.items()
    ]
    return ResultTable(
        title=f"over the same sampled batches in {format_bytes(5 << 30)}, {device_label}",
        headers=(
            "task",
            "planner",
            "steps",
            "of measuring",
            "they cost (iterations)",
            "beside learned plans' cost",
            "error of peaks: mean, most",
            "peak over budget, median",
            "violations",
            "planning (us): miss, hit",
        ),
        rows=tuple(rows),
    )


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.2%}"


def _micro(seconds: float | None) -> str:
    return MISSING if seconds is None else f"{1e6 * seconds:.0f}"
