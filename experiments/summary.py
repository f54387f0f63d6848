"""What a run comes to, worked out from its rows: pure functions, no files.

Frames have the columns of ``schema.STEPS``. Bytes are ``int``, times float seconds, and what the
rows cannot give is None.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

RESERVED_NOTE = (
    "reserved bytes depend on the order of batches: a run over sampled lengths gives them"
)
"""Why a run over expected lengths has no reserved bytes."""

FAILED = ("oom", "thrashing")
"""Outcomes of steps that did not finish."""

LEARNING_PHASES = ("sheltered", "profile")
"""Phases in which a planner measures and that end: a long run is judged without them."""


def summarize(
    steps: pd.DataFrame, info: Mapping[str, Any], *, run_dir: str | None = None
) -> dict[str, Any]:
    """Return a run's summary.

    Args:
        steps: The run's iterations.
        info: The run's ``run.json``; ``budget_bytes`` and ``device_label`` are taken from it.
        run_dir: The run's folder.

    Returns:
        A dictionary. ``total_seconds`` is the sum of the steps' seconds, ``num_violations`` the
        out-of-memory steps, retried steps and allocator retries together, ``budget_use`` the median
        peak allocated over the budget in responsive steps that recomputed (in all steps if there
        is none), ``num_plans_made`` the plans that did not come from a cache, ``eviction`` what
        :func:`eviction_breakdown` returns.

        In a run over expected lengths means, medians and peaks are of the steps that stand for a
        share of the epoch, by that share; ``lengths`` says so, and nothing is said of reserved
        bytes, which depend on the order of batches.
    """
    outcome = steps["outcome"]
    expected = is_expected(steps)
    counted = steps[steps["weight"] > 0] if expected else steps
    done = counted[counted["outcome"].isin(["ok", "retried"])]
    budget = info.get("budget_bytes")
    allocated = _max(counted["peak_allocated_bytes"])
    reserved = None if expected else _max(steps["peak_reserved_bytes"])
    return {
        "run_dir": run_dir,
        "num_steps": len(steps),
        "num_ok": int((outcome == "ok").sum()),
        "num_retried": int((outcome == "retried").sum()),
        "num_oom": int((outcome == "oom").sum()),
        "budget_bytes": budget,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "median_step_seconds": _median(done, "step_seconds"),
        "mean_step_seconds": _mean(done, "step_seconds"),
        "total_seconds": _seconds(steps["step_seconds"][~outcome.isin(FAILED)]),
        "final_loss": _number(done["loss"].iloc[-1]) if len(done) else None,
        "device_label": info.get("device_label"),
        "fragmentation_bytes": None if None in (allocated, reserved) else reserved - allocated,
        "num_alloc_retries": _total(steps["num_alloc_retries"]),
        "num_violations": count_violations(steps),
        "budget_use": budget_use(steps, budget),
        "num_plans_made": int((steps["cache_hit"] == False).sum()),  # noqa: E712 (null is neither)
        "num_sheltered": int((steps["phase"] == "sheltered").sum()),
        "median_estimator_seconds": _median(counted, "estimator_seconds"),
        "median_scheduler_seconds": _median(counted, "scheduler_seconds"),
        "total_collector_seconds": _seconds(steps["collector_seconds"]),
        "total_wait_seconds": _seconds(steps["wait_seconds"]),
        "mean_recomputed_blocks": _mean(done, "num_recomputed"),
        "mean_remade_blocks": _mean(done, "num_remade"),
        "mean_remade_bytes": _mean_in(done, "remade_bytes"),
        "mean_offloaded_bytes": _mean_in(done, "offloaded_bytes"),
        "mean_planning_seconds": _mean(done.assign(planning=planning_seconds(done)), "planning"),
        "num_thrashing": int((outcome == "thrashing").sum()),
        "eviction": eviction_breakdown(counted),
        "mfu": utilization(done, "model_flops", info),
        "hfu": utilization(done, "hardware_flops", info),
        "lengths": "expected" if expected else "sampled",
        "note": RESERVED_NOTE if expected else None,
    }


def utilization(done: pd.DataFrame, column: str, info: Mapping[str, Any]) -> float | None:
    """Return FLOPs over what the device could have done in the same time.

    Args:
        done: Finished steps.
        column: ``model_flops`` for MFU, which leaves recomputation out; ``hardware_flops`` for HFU.
        info: The run's ``run.json``; the peak is in ``flops``.

    Returns:
        A share, or None where FLOPs or the device's peak are not known.
    """
    peak = (info.get("flops") or {}).get("peak_flops")
    known = done[done[column].notna() & done["step_seconds"].notna()]
    if column == "hardware_flops" and done["num_remade"].fillna(0).any():
        return None  # The rest of the steps would speak for all.
    flops, weights = _weighed(known, column)
    seconds, _ = _weighed(known, "step_seconds")
    weights = np.ones(len(flops)) if weights is None else weights
    time = float((seconds * weights).sum())
    if peak is None or not time:
        return None
    return _number((flops * weights).sum() / (time * peak))


def is_expected(steps: pd.DataFrame) -> bool:
    """Return whether the steps are of a run over expected lengths, each with a weight."""
    return bool(steps["weight"].notna().any())


def planning_seconds(steps: pd.DataFrame) -> pd.Series:
    """Return the seconds of each step that the planner took: predicting, choosing, learning."""
    return (steps["estimator_seconds"].fillna(0.0) + steps["scheduler_seconds"].fillna(0.0)).astype(
        float
    )


def count_violations(steps: pd.DataFrame) -> int:
    """Return the out-of-memory steps, retried steps and allocator retries, added up."""
    bad = int(steps["outcome"].isin(["oom", "retried"]).sum())
    return bad + _total(steps["num_alloc_retries"])


def makes_again(steps: pd.DataFrame) -> pd.Series:
    """Return which steps had to recompute blocks, or to make single values of them again."""
    single = steps["plan"].fillna("").astype(str).str.contains("remake|offload")
    return ((steps["num_recomputed"].fillna(0) > 0) | single).astype(bool)


def budget_use(steps: pd.DataFrame, budget_bytes: int | None) -> float | None:
    """Return the median over steps of peak allocated over budget.

    Responsive steps that had to recompute, be it single values, are what the budget binds; without
    any, every step that finished counts.
    """
    if budget_bytes is None:
        return None
    counted = steps[steps["weight"] > 0] if is_expected(steps) else steps
    again = counted["num_recomputed"].fillna(0) + counted["num_remade"].fillna(0)
    bound = counted[(counted["phase"] == "responsive") & (again > 0)]
    chosen = bound if len(bound) else counted[~counted["outcome"].isin(FAILED)]
    peak = _median(chosen, "peak_allocated_bytes")
    return None if peak is None else peak / budget_bytes


def breakdown(steps: pd.DataFrame) -> dict[str, float]:
    """Return the mean seconds a step spends in each of its parts; ``other`` is what remains.

    Recomputation is part of the backward pass, since that is where it runs, and a tensor-level
    policy's time of forward and backward (:func:`eviction_breakdown` takes it apart). Steps of a
    run over expected lengths count by their weight.
    """
    mean = _mean_of(steps[~steps["outcome"].isin(FAILED)])
    parts = {
        part: mean(f"{part}_seconds")
        for part in ("forward", "backward", "optimizer", "collector", "estimator", "scheduler")
    }
    total = mean("step_seconds")
    # Timer readings of the parts may add up to a hair more than the whole.
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


def eviction_breakdown(steps: pd.DataFrame) -> dict[str, float] | None:
    """Return where forward and backward passes under a tensor-level policy spent their time.

    The parts of the paper's Fig 5, means over the steps that finished. Where the host runs ahead of
    the device its work overlaps with operators, and ``forward_backward_seconds`` is less than
    these take by themselves.

    Returns:
        None if no step ran under such a policy; else ``forward_backward_seconds`` (what is left
        without the others), ``recompute_seconds``, ``maintenance_seconds`` (costs and access times
        kept up to date), ``search_seconds`` (choosing, planning in the paper's words),
        ``overhead_seconds`` (the rest of seeing each operator), ``swap_wait_seconds``, and of a
        mean step ``num_evictions``, ``num_rematerializations`` and ``swapped_bytes``.
    """
    done = steps[~steps["outcome"].isin(FAILED) & steps["eviction_search_seconds"].notna()]
    if not len(done):
        return None
    mean = _mean_of(done)
    parts = {
        "recompute_seconds": mean("recompute_seconds"),
        "maintenance_seconds": mean("eviction_maintenance_seconds"),
        "search_seconds": mean("eviction_search_seconds"),
        "overhead_seconds": mean("eviction_overhead_seconds"),
        "swap_wait_seconds": mean("swap_wait_seconds"),
    }
    passes = mean("forward_seconds") + mean("backward_seconds")
    return {
        "forward_backward_seconds": max(0.0, passes - sum(parts.values())),
        **parts,
        **{name: mean(name) for name in ("num_evictions", "num_rematerializations")},
        "swapped_bytes": mean("swapped_bytes"),
    }


def _mean_of(done: pd.DataFrame) -> Callable[[str], float]:
    """Return a function that gives a column's mean over steps, by weight where they have one."""
    weights = done["weight"].to_numpy(dtype=float) if is_expected(done) else np.ones(len(done))
    whole = weights.sum() or 1.0

    def mean(column: str) -> float:
        return float((done[column].fillna(0).to_numpy(dtype=float) * weights).sum() / whole)

    return mean


def _floats(column: pd.Series) -> np.ndarray:
    """Return the column's present values as floats."""
    return column.dropna().to_numpy(dtype=float)


def _median(steps: pd.DataFrame, column: str) -> float | None:
    """Return the median, of weighted steps the least value that half the weight reaches."""
    values, weights = _weighed(steps, column)
    if not values.size:
        return None
    if weights is None:
        return _number(np.median(values))
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return _number(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _mean(steps: pd.DataFrame, column: str) -> float | None:
    values, weights = _weighed(steps, column)
    return _number(np.average(values, weights=weights)) if values.size else None


def _mean_in(done: pd.DataFrame, column: str) -> float | None:
    """Return the mean over those steps that had anything of the kind; None if none is known."""
    some = done[done[column].fillna(0) > 0]
    return _mean(some, column) if len(some) else None


def _weighed(steps: pd.DataFrame, column: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the column's present values and, where steps have weights, theirs."""
    present = steps[steps[column].notna()]
    weights = present["weight"].to_numpy(dtype=float) if is_expected(present) else None
    return present[column].to_numpy(dtype=float), weights


def _seconds(column: pd.Series) -> float:
    return float(_floats(column).sum())


def _max(column: pd.Series) -> int | None:
    present = column.dropna()
    return int(present.max()) if len(present) else None


def _total(column: pd.Series) -> int:
    return int(column.dropna().sum())


def _number(value: Any) -> float | None:
    number = float(value)
    return number if np.isfinite(number) else None
