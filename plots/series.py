"""What the figures share: how runs are named and told apart, and what lies along the x axis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd

from mimose.units import GIB, MIB
from mimose_bench.experiments.reading import Run
from mimose_bench.plots import style

_TITLE = 60


def budget_text(budget_bytes: int | None) -> str:
    """Return a budget as figures name it."""
    if budget_bytes is None:
        return "no limit"
    factor, unit = (GIB, "GB") if budget_bytes >= GIB else (MIB, "MB")
    return f"{budget_bytes / factor:.3g} {unit}"


def labels(runs: Sequence[Run], *, budget: bool = True) -> list[str]:
    """Return a label a run: planner and budget, and the folder's name where those are equal.

    Args:
        runs: The runs.
        budget: Name every budget; otherwise only the lack of one.
    """
    short = []
    for run in runs:
        name = style.look(run.planner).label
        named = budget or run.budget_bytes is None
        short.append(f"{name}, {budget_text(run.budget_bytes)}" if named else name)
    keys = list(zip(short, (run.device_label for run in runs), strict=True))
    return [
        text if keys.count(key) == 1 else f"{text} ({run.name})"
        for text, key, run in zip(short, keys, runs, strict=True)
    ]


def devices(runs: Iterable[Run]) -> list[str]:
    """Return the device labels of ``runs``, each once: a panel each, never a shared axis."""
    return list(dict.fromkeys(run.device_label for run in runs))


def clocks(runs: Iterable[Run]) -> list[str]:
    """Return what keeps time in ``runs``, each once: a panel each in figures that show times."""
    return list(dict.fromkeys(run.time_label for run in runs))


def title(text: str) -> str:
    """Return a panel's title; what does not fit above a panel goes on a second line."""
    return text.replace(" (", "\n(", 1) if len(text) > _TITLE else text


def size_axis(steps: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return each step's place along an axis of input sizes, and the axis's label."""
    if steps["sequence_length"].notna().any():
        return steps["sequence_length"], "padded length (tokens)"
    return steps["input_size"], "input size (pixels)"


def order(run: Run) -> tuple[int, int]:
    """Return a key that sorts runs by planner, then by budget, the unlimited first."""
    names = list(style.PLANNERS)
    rank = names.index(run.planner) if run.planner in names else len(names)
    return rank, run.budget_bytes or 0


def largest(values: Iterable[object]) -> float:
    """Return the largest of the present ``values``; 0 without any."""
    present = [float(v) for v in values if v is not None and not pd.isna(v)]  # type: ignore[arg-type,call-overload]
    return max(present, default=0.0)
