"""Mimose's peak of allocated memory by input size, the paper's points beside (its Fig 11)."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mimose.units import GIB
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED
from mimose_bench.experiments.tasks import TASKS
from mimose_bench.plots import series, style
from mimose_bench.plots.peak_memory import PaperPoints, paper_points

_MARKERS = "os^DvPX"
_SHOWN = "the paper (Fig 11), V100, small"


def draw(runs: Sequence[Run], paper_curves: bool = True) -> Figure:
    """Draw each step's peak, a panel a task, variant, device and kind of lengths.

    A budget has a colour and a marker, and a dotted line at its height.

    Args:
        runs: The runs; those of other planners, or without a budget, are left out.
        paper_curves: Whether to draw the paper's points.
    """
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in runs:
        if run.planner == "mimose" and run.budget_bytes is not None and len(run.steps):
            variant = str((run.info.get("config") or {}).get("variant") or "printed")
            key = (str(run.info.get("task")), *series.panel_key(run), variant)
            groups.setdefault(key, []).append(run)
    with matplotlib.rc_context(style.RC):
        if not groups:
            return style.sentence("none of these runs is of Mimose under a budget")
        figure, axes = style.panels(len(groups), height=3.4)
        order = list(TASKS)
        ranked = sorted(groups, key=lambda k: (order.index(k[0]) if k[0] in order else 99, k))
        for panel, key in zip(axes, ranked, strict=True):
            task, device, lengths, variant = key
            members = sorted(groups[key], key=lambda run: run.budget_bytes or 0)
            _panel(panel, members, paper_points(task) if paper_curves else None)
            title = TASKS[task].title if task in TASKS else task
            style.title(panel, (f"{title}, variant {variant}", device, lengths))
        extra = {} if not paper_curves else {_SHOWN: Line2D([], [], **_THEIRS, color=style.PAPER)}
        style.legend_below(figure, (), extra=extra)
        style.notes(figure, series.length_notes(runs))
    return figure


_THEIRS = {"linestyle": "", "marker": ".", "markersize": 2.5, "alpha": 0.55}


def _panel(panel: Axes, runs: Sequence[Run], paper: PaperPoints | None) -> None:
    budgets = sorted({run.budget_bytes or 0 for run in runs})
    shades = colormaps["viridis"]
    for i, budget in enumerate(budgets):
        colour = shades(0.85 * i / max(len(budgets) - 1, 1))
        theirs = (paper or {}).get(budget, ())
        panel.plot(
            [p.input_size for p in theirs],
            [p.peak_bytes / GIB for p in theirs],
            **_THEIRS,  # type: ignore[arg-type]
            color=colour,
        )
        for run in (run for run in runs if run.budget_bytes == budget):
            steps = series.counted(run)
            steps = steps[~steps["outcome"].isin(FAILED)].dropna(subset=["peak_allocated_bytes"])
            sizes, label = series.size_axis(run.steps)
            panel.plot(
                sizes[steps.index].astype(float),
                steps["peak_allocated_bytes"].astype(float) / GIB,
                linestyle="",
                marker=_MARKERS[i % len(_MARKERS)],
                markersize=3.5,
                color=colour,
                markeredgecolor="white",
                markeredgewidth=0.3,
            )
            panel.set_xlabel(label)
        panel.axhline(budget / GIB, linestyle=":", color=colour, linewidth=1)
        panel.annotate(
            series.budget_text(budget),
            (1, budget / GIB),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 2),
            textcoords="offset points",
            ha="right",
            color=colour,
            fontsize=7,
        )
    panel.set_ylabel("peak allocated (GiB)")
    panel.set_ylim(0, max(budgets) / GIB * 1.08)
