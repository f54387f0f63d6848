"""Peak memory by input size, for each budget (the paper's Fig 11)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mimose_bench.experiments.paper import PEAKS_SHOWN, MemoryPoint, peak_by_input_size
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED
from mimose_bench.experiments.tasks import TASKS
from mimose_bench.plots import series, style

_DIED = "#D55E00"
_ENDS = {"oom": "out of memory", "thrashing": "given up (thrashing)"}

PaperPoints = Mapping[int, Sequence[MemoryPoint]]
Looks = Mapping[int | None, tuple[Any, str]]


def draw(runs: Sequence[Run], paper: PaperPoints | None = None) -> Figure:
    """Draw each step's peak of allocated bytes, a panel a planner, device, scale and lengths.

    Dashed lines are the budgets, crosses the steps that ran out of memory or were given up.

    Args:
        runs: The runs.
        paper: The paper's points for each budget in bytes, drawn in a grey panel of their own
            beside runs that they may stand by (:func:`series.bears_paper`).

    Raises:
        NothingToDrawError: If no step has a peak.
    """
    if not any(series.counted(run)["peak_allocated_bytes"].notna().any() for run in runs):
        raise style.NothingToDrawError("no step of these runs has a peak of memory")
    if not any(map(series.bears_paper, runs)):
        paper = None
    groups: dict[tuple[str, str, str, str], list[Run]] = {}
    for run in sorted(runs, key=series.order):
        groups.setdefault((series.look(run).label, *series.panel_key(run)), []).append(run)
    budgets = sorted({run.budget_bytes for run in runs if run.budget_bytes is not None})
    looks: Looks = {None: ("#444444", "."), **style.budget_looks(budgets)}
    # Panels of one device and scale share an axis, so that they can be compared.
    tops = {
        key[:2]: _top([r for r in runs if series.panel_key(r)[:2] == key[:2]])
        for key in map(series.panel_key, runs)
    }
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(groups) + bool(paper))
        ours = axes[: len(groups)]
        for panel, (key, members) in zip(ours, groups.items(), strict=True):
            planner, device, scale, lengths = key
            top = tops[device, scale]
            unit = style.memory_unit(top)
            for run in members:
                _points(panel, run, looks[run.budget_bytes], unit)
            for budget in sorted({r.budget_bytes for r in members} - {None}):
                text = series.budget_text(budget)
                style.name_line(panel, budget / unit[0], text, looks[budget][0])
            style.title(panel, (planner, device, scale, lengths))
            panel.set_ylim(0, 1.06 * top / unit[0])
        if paper:
            _paper_panel(axes[-1], paper, series.size_axis(runs[0].steps)[1])
        _legend(figure, looks, runs)
        style.notes(figure, series.length_notes(runs) + series.alike_notes(runs))
    return figure


def paper_points(task: str) -> PaperPoints | None:
    """Return the paper's points for ``task``, or None if its Fig 11 does not show it."""
    if task not in TASKS or TASKS[task].title not in PEAKS_SHOWN:
        return None
    return peak_by_input_size(TASKS[task].title)


def _top(runs: Sequence[Run]) -> float:
    peaks = [p for run in runs for p in series.counted(run)["peak_allocated_bytes"]]
    return series.largest([*peaks, *(run.budget_bytes for run in runs)]) or 1.0


def _points(panel: Axes, run: Run, look: tuple[Any, str], unit: tuple[float, str]) -> None:
    (factor, name), (colour, marker) = unit, look
    steps = series.counted(run).dropna(subset=["peak_allocated_bytes"])
    sizes, label = series.size_axis(run.steps)
    died = steps["outcome"].isin(FAILED)
    edge = {"edgecolors": "white", "linewidths": 0.3} if marker != "." else {"linewidths": 0}
    for rows, shown in (
        (steps[~died], {"marker": marker, "s": 14, "color": colour, **edge}),
        (steps[died], {"marker": "x", "s": 46, "color": _DIED, "linewidths": 1.5, "zorder": 3}),
    ):
        panel.scatter(
            sizes[rows.index].astype(float),
            rows["peak_allocated_bytes"].astype(float) / factor,
            **shown,
        )
    if run.budget_bytes is not None:
        panel.axhline(run.budget_bytes / factor, color=colour, linestyle="--", linewidth=1)
    panel.set_xlabel(label)
    panel.set_ylabel(f"peak allocated ({name})")


def _legend(figure: Figure, looks: Looks, runs: Sequence[Run]) -> None:
    """List the budgets in their order, and the cross if there is one."""
    shown = {run.budget_bytes for run in runs}
    entries = [
        Line2D([], [], color=colour, marker=marker, linestyle="--" if budget else "", markersize=5)
        for budget, (colour, marker) in looks.items()
        if budget in shown
    ]
    names = [
        "no limit" if budget is None else f"budget {series.budget_text(budget)}"
        for budget in looks
        if budget in shown
    ]
    ends = {end for run in runs for end in run.steps["outcome"]}
    if ends.intersection(FAILED):
        entries.append(Line2D([], [], color=_DIED, marker="x", linestyle="", markersize=6))
        names.append(" or ".join(_ENDS[end] for end in FAILED if end in ends))
    figure.legend(entries, names, loc="outside lower center", ncols=min(len(names), 5))


def _paper_panel(panel: Axes, paper: PaperPoints, axis: str) -> None:
    largest = max(paper)
    factor, name = style.memory_unit(largest)
    greys = colormaps["Greys"]
    for i, (budget, points) in enumerate(sorted(paper.items())):
        colour = greys(0.4 + 0.5 * i / max(len(paper) - 1, 1))
        panel.plot(
            [p.input_size for p in points],
            [p.peak_bytes / factor for p in points],
            ".",
            color=colour,
            markersize=2.5,
        )
        panel.axhline(budget / factor, color=colour, linestyle="--", linewidth=1)
        text = series.budget_text(budget)
        style.name_line(panel, budget / factor, text, colour)
    panel.set_title("the paper's Mimose (Fig 11), V100", color=style.PAPER)
    panel.set_xlabel(axis)
    panel.set_ylabel(f"peak allocated ({name})")
    panel.set_ylim(0, largest / factor * 1.1)
