"""Step time by input size."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import LEARNING_PHASES
from mimose_bench.plots import series, style


def draw(runs: Sequence[Run]) -> Figure:
    """Draw each step's time, a panel for each device (and clock), kind of lengths and budget.

    Runs without a limit are the reference and appear in every panel of their device and kind of
    lengths. Hollow markers are steps in which the planner was still measuring.
    """
    clocks = series.clock_titles(runs)
    tops = {
        clock: series.largest(
            t for r in runs if r.time_label == clock for t in series.finished(r)["step_seconds"]
        )
        for clock in clocks
    }
    groups = {(clock, lengths): members for clock, lengths, members in _groups(runs)}
    keys = [
        (clock, lengths, budget)
        for (clock, lengths), members in groups.items()
        for budget in sorted({r.budget_bytes for r in members} - {None}) or [None]
    ]
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(keys))
        for panel, (clock, lengths, budget) in zip(axes, keys, strict=True):
            members = [r for r in groups[clock, lengths] if r.budget_bytes in (budget, None)]
            unit = style.time_unit(tops[clock])
            for run in sorted(members, key=series.order):
                _points(panel, run, series.short_label(run, budget=False), unit)
            panel.set_ylim(0, 1.06 * tops[clock] / unit[0] or 1.0)
            style.title(panel, (series.budget_text(budget), clocks[clock], lengths))
        style.legend_below(figure, axes)
        style.notes(
            figure,
            series.clock_notes(runs) + series.length_notes(runs) + series.alike_notes(runs),
        )
    return figure


def _groups(runs: Sequence[Run]) -> list[tuple[str, str, list[Run]]]:
    """Return clock, kind of lengths and runs of what may lie in one panel, in order."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        found.setdefault((run.time_label, series.panel_key(run)[1]), []).append(run)
    return [(*key, members) for key, members in sorted(found.items())]


def _points(panel: Axes, run: Run, label: str, unit: tuple[float, str]) -> None:
    factor, name = unit
    look = style.look(run.planner)
    steps = series.finished(run).dropna(subset=["step_seconds"])
    sizes, axis_label = series.size_axis(run.steps)
    learning = steps["phase"].isin(LEARNING_PHASES)
    # The reference lies under the others, as a cross, which stays visible beneath them.
    marker = "+" if run.budget_bytes is None and run.planner == "baseline" else look.marker
    for rows, suffix in ((steps[~learning], ""), (steps[learning], " (measuring)")):
        if not len(rows):
            continue
        filled = {"c": look.colour} if not suffix or marker == "+" else {"facecolors": "none"}
        panel.scatter(
            sizes[rows.index].astype(float),
            rows["step_seconds"].astype(float) / factor,
            s=13,
            marker=marker,
            linewidths=0.8,
            alpha=0.75,
            edgecolors=None if marker == "+" else look.colour,
            label=label + suffix,
            **filled,
        )
    panel.set_xlabel(axis_label)
    panel.set_ylabel(f"step time ({name})")
