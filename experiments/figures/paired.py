"""Ratios of times over the same steps of several seeds, with intervals. Pure functions of runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mimose_bench.experiments.comparing import COMPARED, Ratio, pair
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import LEARNING_PHASES

DRAWS = 1000


def seed_of(run: Run) -> int:
    """Return a run's seed."""
    return int((run.info.get("config") or {}).get("seed", run.info.get("seed") or 0))


def setting_of(run: Run) -> tuple[Any, ...]:
    """Return what runs have in common that differ in planner and budget alone."""
    config = run.info.get("config") or {}
    shared = {k: v for k, v in config.items() if k not in COMPARED - {"steps"}}
    return run.info.get("task"), run.time_label, repr(sorted(shared.items(), key=lambda i: i[0]))


def by_setting(runs: Iterable[Run]) -> dict[tuple[Any, ...], Run]:
    """Return runs of one planner and budget by what they share with others; the latest of each."""
    return {setting_of(run): run for run in sorted(runs, key=lambda run: run.name)}


def pooled(mine: Sequence[Run], others: Sequence[Run], *, seed: int = 0) -> Ratio | None:
    """Return the time of ``mine`` relative to that of ``others`` over their common steps.

    Runs of a seed are paired step by step. Steps in which ``mine`` measured do not count, nor
    does the first. The interval is a bootstrap that draws seeds and, within each, steps.

    Args:
        mine: A run a seed.
        others: Likewise.
        seed: Seed of the bootstrap.

    Returns:
        None without a common step.

    Raises:
        ValueError: If the runs of a seed saw other batches.
    """
    first, second = by_setting(mine), by_setting(others)
    shared = [(run, second[key]) for key, run in first.items() if key in second]
    tables = [_seconds(pair(other.steps, run.steps)) for run, other in shared]
    tables = [table for table in tables if len(table)]
    if not tables:
        return None
    generator = np.random.default_rng(seed)
    draws = np.empty(DRAWS)
    for i in range(DRAWS):
        a = b = 0.0
        for which in generator.integers(len(tables), size=len(tables)):
            table = tables[which]
            chosen = table[generator.integers(len(table), size=len(table))]
            a, b = a + chosen[:, 0].sum(), b + chosen[:, 1].sum()
        draws[i] = a / b
    low, high = np.quantile(draws, (0.025, 0.975))
    whole = np.concatenate(tables)
    value = float(whole[:, 0].sum() / whole[:, 1].sum())
    return Ratio(value, float(low), float(high), len(whole))


def _seconds(paired: pd.DataFrame) -> np.ndarray:
    counted = paired[(paired["step"] > 0) & ~paired["phase"].isin(LEARNING_PHASES)]
    return counted[["step_seconds", "reference_seconds"]].to_numpy(dtype=float)
