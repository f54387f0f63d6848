"""Runs side by side over the same batches: pure functions, no files.

Time relative to a reference is the sum over *paired* steps, those that both runs finished on the
same batch, so that neither a lucky order of lengths nor an early end favours anyone. Runs over
expected lengths are paired length by length, and each pair counts by its share of an epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mimose_bench.experiments.summary import (
    FAILED,
    LEARNING_PHASES,
    is_expected,
    planning_seconds,
)

_BATCH = ["input_size", "batch_size", "sequence_length", "decoder_length", "image_pixels"]
_CHOOSING = {
    "--task": "task",
    "--task-option": "task_options",
    "--data": "data",
    "--vocab": "vocab",
    "--scale": "scale",
    "--batch-size": "batch_size",
    "--seed": "seed",
}
"""Options that choose the batches, and what they are called in a run's ``config``."""
_PLANNING = ("estimator", "scheduler")


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of summed step times and its 95 % bootstrap interval.

    Attributes:
        value: Seconds of the run over seconds of the reference.
        low: Lower end of the interval; None over expected lengths, where nothing is drawn.
        high: Upper end of the interval, likewise.
        num_pairs: Number of paired steps.
    """

    value: float
    low: float | None
    high: float | None
    num_pairs: int


def reference_of(runs: Sequence[Any]) -> Any:
    """Return the run that others are best compared with: the baseline where there is one.

    That is without a limit rather than under a budget, finished rather than not, and on the first
    run's device and clock. Without any it is the first run.
    """
    first = runs[0]
    baselines = [
        run for run in runs if run.planner == "baseline" and run.time_label == first.time_label
    ]
    if not baselines:
        return first

    def rank(run: Any) -> tuple[bool, bool]:
        return run.info["outcome"] != "done", run.budget_bytes is not None

    return min(baselines, key=rank)


def pair(reference: pd.DataFrame, steps: pd.DataFrame, advice: str | None = None) -> pd.DataFrame:
    """Return the steps that both runs finished: the run's rows, ``reference_seconds`` added.

    Args:
        reference: The reference run's iterations.
        steps: The other run's iterations.
        advice: What to do about runs over other batches, where that is known better than here.

    Raises:
        ValueError: If a step of the same number had another batch, or if one run alone is over
            expected lengths.
    """
    if is_expected(steps) != is_expected(reference):
        raise ValueError(
            "one is over sampled lengths and the other over expected ones: "
            "repeat one of them with the other's --lengths"
        )
    advice = advice or f"repeat them with the same {', '.join(_CHOOSING)}"
    if is_expected(steps):
        both = _by_size(reference, steps, advice)
    else:
        both = steps.merge(reference, on=["rank", "step"], suffixes=("", "_reference"))
    for column in _BATCH:
        mine, theirs = both[column], both[f"{column}_reference"]
        differs = ((mine != theirs) & mine.notna() & theirs.notna()).fillna(False)
        if differs.any():
            row = both[differs.astype(bool)].iloc[0]
            raise ValueError(
                f"the runs did not see the same batches (step {row['step']} has {column} "
                f"{row[column]} in one and {row[f'{column}_reference']} in the other): {advice}"
            )
    finished = ~both["outcome"].isin(FAILED) & ~both["outcome_reference"].isin(FAILED)
    timed = both["step_seconds"].notna() & both["step_seconds_reference"].notna()
    paired = both[(finished & timed).astype(bool)]
    return paired.rename(columns={"step_seconds_reference": "reference_seconds"})


def _by_size(reference: pd.DataFrame, steps: pd.DataFrame, advice: str) -> pd.DataFrame:
    """Return the steps that count in both runs, one a size.

    Raises:
        ValueError: If a size that both have stands for another share of the epoch.
    """
    mine, theirs = (frame[frame["weight"] > 0] for frame in (steps, reference))
    both = mine.merge(theirs, on=["rank", "input_size"], suffixes=("", "_reference"))
    # The renamed columns are what the check of the batches looks at.
    both["input_size_reference"] = both["input_size"]
    apart = set(mine["input_size"]) ^ set(theirs["input_size"])
    cut_short = min(len(mine), len(theirs)) == len(both)  # One run ended early.
    reweighed = (both["weight"] - both["weight_reference"]).abs() > 1e-9
    if reweighed.any() or (apart and not cut_short):
        raise ValueError(f"the runs are over other expected lengths: {advice}")
    return both


def time_ratio(
    paired: pd.DataFrame, *, learning: bool = True, planning: bool = True, seed: int = 0
) -> Ratio | None:
    """Return the time of paired steps relative to the reference, or None if there are none.

    Args:
        paired: What :func:`pair` returned.
        learning: Whether steps in which the planner was still measuring count. The first step
            never does: it is warm-up, in this run as in the reference.
        planning: Whether the time that planners take counts.
        seed: Seed of the bootstrap.
    """
    paired = paired[paired["step"] > 0]
    chosen = paired if learning else paired[~paired["phase"].isin(LEARNING_PHASES)]
    mine = chosen["step_seconds"].to_numpy(dtype=float)
    theirs = chosen["reference_seconds"].to_numpy(dtype=float)
    if not planning:
        other = {f"{part}_seconds": f"{part}_seconds_reference" for part in _PLANNING}
        reference = chosen[list(other.values())].set_axis(list(other), axis=1)
        mine = mine - planning_seconds(chosen).to_numpy()
        theirs = theirs - planning_seconds(reference).to_numpy()
    if not mine.size or theirs.sum() <= 0:
        return None
    if is_expected(chosen):
        weights = chosen["weight"].to_numpy(dtype=float)
        ratio = float((weights * mine).sum() / (weights * theirs).sum())
        return Ratio(ratio, None, None, int(mine.size))
    generator = np.random.default_rng(seed)
    draws = np.empty(1000)
    for i in range(draws.size):
        index = generator.integers(mine.size, size=mine.size)
        draws[i] = mine[index].sum() / theirs[index].sum()
    low, high = np.quantile(draws, (0.025, 0.975))
    return Ratio(float(mine.sum() / theirs.sum()), float(low), float(high), int(mine.size))


def slowed_by_others(run: Any) -> float | None:
    """Return how many times the processor time of its thread a run on the CPU took.

    That is 1 on a machine that has nothing else to do; waiting for batches is left out. None where
    the record does not say, and of other devices, for which the thread may wait.
    """
    used, took = run.info.get("thread_seconds"), run.info.get("wall_seconds")
    if not used or took is None or run.device_label != "measured on cpu":
        return None
    return float((took - (run.summary.get("total_wait_seconds") or 0.0)) / used)


def loss_difference(paired: pd.DataFrame) -> float | None:
    """Return the largest difference of the losses of paired steps; None without losses.

    None over expected lengths as well: one planner prepares in more steps than another, so that
    weights differ when a length comes.
    """
    if is_expected(paired):
        return None
    difference = (paired["loss"] - paired["loss_reference"]).abs().dropna()
    return float(difference.max()) if len(difference) else None


def compare(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a row a run, the first run being the reference of every ratio.

    A ratio is left out (None) for a run on another device than the reference, or whose simulated
    clock is another one.

    Args:
        runs: Runs as :func:`mimose_bench.experiments.reading.load_run` returns them.

    Raises:
        ValueError: If the runs saw different batches.
    """
    reference = runs[0]
    rows = []
    for run in runs:
        row = {key: run.summary.get(key) for key in _SHOWN}
        same_device = run.time_label == reference.time_label
        whole = rest = bare = difference = None
        try:
            paired = pair(reference.steps, run.steps, _advice(reference, run))
        except ValueError as error:
            raise ValueError(f"{reference.name} and {run.name}: {error}") from error
        if same_device:
            whole, rest = time_ratio(paired), time_ratio(paired, learning=False)
            bare = time_ratio(paired, planning=False)
            difference = loss_difference(paired)
        row |= {
            "run": run.name,
            "planner": run.planner,
            "planner_label": run.planner_label,
            "is_reference": run is reference,
            "device_label": run.device_label,
            "time_label": run.time_label,
            "outcome": run.info["outcome"],
            "num_pairs": len(paired),
            "paired_share": float(paired["weight"].sum()) if is_expected(paired) else None,
            "time_ratio": whole and whole.value,
            "time_ratio_low": whole and whole.low,
            "time_ratio_high": whole and whole.high,
            "time_ratio_responsive": rest and rest.value,
            "time_ratio_responsive_low": rest and rest.low,
            "time_ratio_responsive_high": rest and rest.high,
            "time_ratio_without_planning": bare and bare.value,
            "max_loss_difference": difference,
            "slowed_by_others": slowed_by_others(run),
            **_planned_once(run),
        }
        rows.append(row)
    return rows


def _advice(reference: Any, run: Any) -> str | None:
    """Return what to do about two runs over other batches; None if their settings do not tell."""
    theirs, mine = (each.info.get("config") or {} for each in (reference, run))
    apart = [
        f"{option} ({theirs.get(key)} and {mine.get(key)})"
        for option, key in _CHOOSING.items()
        if (theirs.get(key) or None) != (mine.get(key) or None)
    ]
    return f"repeat one of them with the other's {', '.join(apart)}" if apart else None


def _planned_once(run: Any) -> dict[str, Any]:
    """Return what is to be said of a plan that was made once for the whole run."""
    solution = run.info.get("solution")
    if not solution:
        return {"solution": None, "predicted_time_ratio": None, "planned_peak_bytes": None}
    base = solution["baseline_seconds"]
    # Nothing but steps of the planned size has a prediction.
    planned = run.steps[run.steps["predicted_peak_bytes"].notna()]["peak_allocated_bytes"].dropna()
    return {
        "solution": solution,
        "predicted_time_ratio": solution["predicted_seconds"] / base if base else None,
        "planned_peak_bytes": int(planned.max()) if len(planned) else None,
    }


def differences(runs: Sequence[Any]) -> list[str]:
    """Return a line for each setting in which the runs differ, but for planner and budget.

    A ratio of times says something about the planners only where there is none.
    """
    lines = []
    configs = [run.info.get("config") or {} for run in runs]
    for key in sorted({key for config in configs for key in config} - COMPARED):
        values = [config.get(key) for config in configs]
        if any(value != values[0] for value in values):
            lines.append(f"{key}: {', '.join(str(value) for value in values)}")
    return lines


COMPARED = {
    "actions",
    "budget",
    "cache_step",
    "enforce",
    "every",
    "filter",
    "flops",
    "fresh_plan",
    "gap",
    "heuristic",
    "margin",
    "on_oom",
    "out",
    "plan",
    "plan_size",
    "planner",
    "planner_options",
    "prefetch",
    "offload",
    "reserve",
    "sampling",
    "segments",
    "sheltered",
    "steps",
    "time_limit",
    "trigger",
    "variant",
}
"""Settings that are compared, or say how a planner decides, or where the run lies."""

_SHOWN = (
    "budget_bytes",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "fragmentation_bytes",
    "budget_use",
    "num_steps",
    "num_ok",
    "num_retried",
    "num_oom",
    "num_thrashing",
    "num_alloc_retries",
    "num_violations",
    "num_plans_made",
    "mean_recomputed_blocks",
    "mean_remade_blocks",
    "mean_remade_bytes",
    "mean_offloaded_bytes",
    "median_step_seconds",
    "mean_step_seconds",
    "lengths",
    "median_estimator_seconds",
    "median_scheduler_seconds",
    "eviction",
    "final_loss",
)
