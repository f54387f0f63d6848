"""What a run comes to, worked out from its rows: pure functions, no files.

Frames have the columns of ``schema.STEPS``. Bytes are ``int``, times float seconds, and what the
rows cannot give is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

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
        is none), ``num_plans_made`` the plans that did not come from a cache.
    """
    outcome = steps["outcome"]
    done = steps[outcome.isin(["ok", "retried"])]
    budget = info.get("budget_bytes")
    allocated, reserved = _max(steps["peak_allocated_bytes"]), _max(steps["peak_reserved_bytes"])
    losses = _floats(done["loss"])
    return {
        "run_dir": run_dir,
        "num_steps": len(steps),
        "num_ok": int((outcome == "ok").sum()),
        "num_retried": int((outcome == "retried").sum()),
        "num_oom": int((outcome == "oom").sum()),
        "budget_bytes": budget,
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "median_step_seconds": _median(done["step_seconds"]),
        "mean_step_seconds": _mean(done["step_seconds"]),
        "total_seconds": _seconds(done["step_seconds"]),
        "final_loss": _number(losses[-1]) if losses.size else None,
        "device_label": info.get("device_label"),
        "fragmentation_bytes": None if None in (allocated, reserved) else reserved - allocated,
        "num_alloc_retries": _total(steps["num_alloc_retries"]),
        "num_violations": count_violations(steps),
        "budget_use": budget_use(steps, budget),
        "num_plans_made": int((steps["cache_hit"] == False).sum()),  # noqa: E712 (null is neither)
        "num_sheltered": int((steps["phase"] == "sheltered").sum()),
        "median_estimator_seconds": _median(steps["estimator_seconds"]),
        "median_scheduler_seconds": _median(steps["scheduler_seconds"]),
        "total_collector_seconds": _seconds(steps["collector_seconds"]),
        "total_wait_seconds": _seconds(steps["wait_seconds"]),
        "mean_recomputed_blocks": _mean(done["num_recomputed"]),
    }


def count_violations(steps: pd.DataFrame) -> int:
    """Return the out-of-memory steps, retried steps and allocator retries, added up."""
    bad = int(steps["outcome"].isin(["oom", "retried"]).sum())
    return bad + _total(steps["num_alloc_retries"])


def budget_use(steps: pd.DataFrame, budget_bytes: int | None) -> float | None:
    """Return the median over steps of peak allocated over budget.

    Responsive steps that had to recompute are what the budget binds; without any, every step that
    finished counts.
    """
    if budget_bytes is None:
        return None
    bound = steps[(steps["phase"] == "responsive") & (steps["num_recomputed"] > 0)]
    chosen = bound if len(bound) else steps[steps["outcome"] != "oom"]
    peak = _median(chosen["peak_allocated_bytes"])
    return None if peak is None else peak / budget_bytes


def breakdown(steps: pd.DataFrame) -> dict[str, float]:
    """Return the mean seconds a step spends in each of its parts; ``other`` is what remains.

    Recomputation is part of the backward pass, since that is where it runs.
    """
    done = steps[steps["outcome"] != "oom"]
    parts = {
        part: _seconds(done[f"{part}_seconds"]) / max(len(done), 1)
        for part in ("forward", "backward", "optimizer", "collector", "estimator", "scheduler")
    }
    total = _seconds(done["step_seconds"]) / max(len(done), 1)
    # Timer readings of the parts may add up to a hair more than the whole.
    parts["other"] = max(0.0, total - sum(parts.values()))
    return parts


def _floats(column: pd.Series) -> np.ndarray:
    """Return the column's present values as floats."""
    return column.dropna().to_numpy(dtype=float)


def _median(column: pd.Series) -> float | None:
    values = _floats(column)
    return _number(np.median(values)) if values.size else None


def _mean(column: pd.Series) -> float | None:
    values = _floats(column)
    return _number(values.mean()) if values.size else None


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
