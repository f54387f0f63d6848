"""Runs side by side over the same batches: pure functions, no files.

Time relative to a reference is the sum over *paired* steps, those that both runs finished on the
same batch, so that neither a lucky order of lengths nor an early end favours anyone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mimose_bench.experiments.summary import LEARNING_PHASES

_BATCH = ["input_size", "batch_size", "sequence_length"]


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio of summed step times and its 95 % bootstrap interval.

    Attributes:
        value: Seconds of the run over seconds of the reference.
        low: Lower end of the interval.
        high: Upper end of the interval.
        num_pairs: Number of paired steps.
    """

    value: float
    low: float
    high: float
    num_pairs: int


def pair(reference: pd.DataFrame, steps: pd.DataFrame) -> pd.DataFrame:
    """Return the steps that both runs finished: the run's rows, ``reference_seconds`` added.

    Args:
        reference: The reference run's iterations.
        steps: The other run's iterations.

    Raises:
        ValueError: If a step of the same number had another batch.
    """
    both = steps.merge(reference, on=["rank", "step"], suffixes=("", "_reference"))
    for column in _BATCH:
        mine, theirs = both[column], both[f"{column}_reference"]
        differs = ((mine != theirs) & mine.notna() & theirs.notna()).fillna(False)
        if differs.any():
            row = both[differs.astype(bool)].iloc[0]
            raise ValueError(
                f"the runs did not see the same batches (step {row['step']} has {column} "
                f"{row[column]} in one and {row[f'{column}_reference']} in the other): "
                "repeat them with the same --task, --data, --scale, --batch-size and --seed"
            )
    finished = (both["outcome"] != "oom") & (both["outcome_reference"] != "oom")
    timed = both["step_seconds"].notna() & both["step_seconds_reference"].notna()
    paired = both[(finished & timed).astype(bool)]
    return paired.rename(columns={"step_seconds_reference": "reference_seconds"})


def time_ratio(paired: pd.DataFrame, *, learning: bool = True, seed: int = 0) -> Ratio | None:
    """Return the time of paired steps relative to the reference, or None if there are none.

    Args:
        paired: What :func:`pair` returned.
        learning: Whether steps in which the planner was still measuring count. The first step
            never does: it is warm-up, in this run as in the reference.
        seed: Seed of the bootstrap.
    """
    paired = paired[paired["step"] > 0]
    chosen = paired if learning else paired[~paired["phase"].isin(LEARNING_PHASES)]
    mine = chosen["step_seconds"].to_numpy(dtype=float)
    theirs = chosen["reference_seconds"].to_numpy(dtype=float)
    if not mine.size or theirs.sum() <= 0:
        return None
    generator = np.random.default_rng(seed)
    draws = np.empty(1000)
    for i in range(draws.size):
        index = generator.integers(mine.size, size=mine.size)
        draws[i] = mine[index].sum() / theirs[index].sum()
    low, high = np.quantile(draws, (0.025, 0.975))
    return Ratio(float(mine.sum() / theirs.sum()), float(low), float(high), int(mine.size))


def loss_difference(paired: pd.DataFrame) -> float | None:
    """Return the largest difference of the losses of paired steps; None without losses."""
    difference = (paired["loss"] - paired["loss_reference"]).abs().dropna()
    return float(difference.max()) if len(difference) else None


def compare(runs: Sequence[Any]) -> list[dict[str, Any]]:
    """Return a row a run, the first run being the reference of every ratio.

    A ratio is left out (None) for a run on another device than the reference.

    Args:
        runs: Runs as :func:`mimose_bench.experiments.reading.load_run` returns them.

    Raises:
        ValueError: If the runs saw different batches.
    """
    reference = runs[0]
    rows = []
    for run in runs:
        row = {key: run.summary.get(key) for key in _SHOWN}
        same_device = run.device_label == reference.device_label
        whole = rest = difference = None
        try:
            paired = pair(reference.steps, run.steps)
        except ValueError as error:
            raise ValueError(f"{reference.name} and {run.name}: {error}") from error
        if same_device:
            whole, rest = time_ratio(paired), time_ratio(paired, learning=False)
            difference = loss_difference(paired)
        row |= {
            "run": run.name,
            "planner": run.planner,
            "device_label": run.device_label,
            "outcome": run.info["outcome"],
            "num_pairs": len(paired),
            "time_ratio": whole and whole.value,
            "time_ratio_low": whole and whole.low,
            "time_ratio_high": whole and whole.high,
            "time_ratio_responsive": rest and rest.value,
            "time_ratio_responsive_low": rest and rest.low,
            "time_ratio_responsive_high": rest and rest.high,
            "max_loss_difference": difference,
        }
        rows.append(row)
    return rows


def differences(runs: Sequence[Any]) -> list[str]:
    """Return a line for each setting in which the runs differ, but for planner and budget.

    A ratio of times says something about the planners only where there is none.
    """
    lines = []
    configs = [run.info.get("config") or {} for run in runs]
    for key in sorted({key for config in configs for key in config} - _COMPARED):
        values = [config.get(key) for config in configs]
        if any(value != values[0] for value in values):
            lines.append(f"{key}: {', '.join(str(value) for value in values)}")
    return lines


# What is compared, or says how a planner decides, or where the run lies.
_COMPARED = {
    "budget",
    "cache_step",
    "enforce",
    "margin",
    "on_oom",
    "out",
    "plan",
    "planner",
    "planner_options",
    "sheltered",
    "steps",
    "variant",
}

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
    "num_alloc_retries",
    "num_violations",
    "num_plans_made",
    "median_step_seconds",
    "median_estimator_seconds",
    "median_scheduler_seconds",
    "final_loss",
)
