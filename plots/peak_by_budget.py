"""Mimose's peak of allocated memory by input size, the paper's points beside (its Fig 11)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.tasks import TASKS
from mimose_bench.plots import series, style
from mimose_bench.plots.peak_memory import PaperPoints, paper_points

_SHOWN = "the paper (Fig 11), V100, small"


def draw(runs: Sequence[Run], paper_curves: bool = True) -> Figure:
    """Draw each step's peak, a panel a task, variant, device, scale and kind of lengths.

    A budget has a colour and a marker, and a dotted line at its height.

    Args:
        runs: The runs; those of other planners, or without a budget, are left out.
        paper_curves: Whether to draw the paper's points, in panels of runs that they may stand by
            (:func:`series.bears_paper`).

    Raises:
        NothingToDrawError: If no run of Mimose under a budget has a peak.
    """
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        if run.planner == "mimose" and run.budget_bytes is not None and len(_shown(run)):
            variant = str((run.info.get("config") or {}).get("variant") or "printed")
            key = (str(run.info.get("task")), *series.panel_key(run), variant)
            groups.setdefault(key, []).append(run)
    if not groups:
        raise style.NothingToDrawError(
            "none of these runs is of Mimose under a budget and has a step that finished: "
            "add such runs"
        )
    beside = False
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(groups), height=3.4)
        order = list(TASKS)
        ranked = sorted(groups, key=lambda k: (order.index(k[0]) if k[0] in order else 99, k))
        for panel, key in zip(axes, ranked, strict=True):
            task, device, scale, lengths, variant = key
            members = sorted(groups[key], key=lambda run: run.budget_bytes or 0)
            shown = paper_curves and series.bears_paper(members[0])
            points = paper_points(task) if shown else None
            beside = _panel(panel, members, points) or beside
            title = TASKS[task].title if task in TASKS else task
            style.title(panel, (f"{title}, variant {variant}", device, scale, lengths))
        extra = {} if not beside else {_SHOWN: Line2D([], [], **_THEIRS, color=style.PAPER)}
        style.legend_below(figure, (), extra=extra)
        style.notes(figure, series.length_notes(runs))
    return figure


_THEIRS = {"linestyle": "", "marker": ".", "markersize": 2.5, "alpha": 0.55}


def _shown(run: Run) -> pd.DataFrame:
    """Return the steps whose peaks are drawn."""
    return series.finished(run).dropna(subset=["peak_allocated_bytes"])


def _panel(panel: Axes, runs: Sequence[Run], paper: PaperPoints | None) -> bool:
    """Draw a panel; return whether the paper has points in it."""
    budgets = sorted({run.budget_bytes or 0 for run in runs})
    factor, unit = style.memory_unit(max(budgets))
    beside = False
    for budget, (colour, marker) in style.budget_looks(budgets).items():
        theirs = (paper or {}).get(budget, ())
        beside = beside or bool(theirs)
        panel.plot(
            [p.input_size for p in theirs],
            [p.peak_bytes / factor for p in theirs],
            **_THEIRS,  # type: ignore[arg-type]
            color=colour,
        )
        for run in (run for run in runs if run.budget_bytes == budget):
            steps = _shown(run)
            sizes, label = series.size_axis(run.steps)
            panel.plot(
                sizes[steps.index].astype(float),
                steps["peak_allocated_bytes"].astype(float) / factor,
                linestyle="",
                marker=marker,
                markersize=3.5,
                color=colour,
                markeredgecolor="white",
                markeredgewidth=0.3,
            )
            panel.set_xlabel(label)
        panel.axhline(budget / factor, linestyle=":", color=colour, linewidth=1)
        style.name_line(panel, budget / factor, series.budget_text(budget), colour)
    panel.set_ylabel(f"peak allocated ({unit})")
    panel.set_ylim(0, max(budgets) / factor * 1.08)
    return beside
