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
    """Draw each step's time, a panel a device (and clock), scale, kind of lengths and budget.

    Runs without a limit are the reference and appear in every panel of their device, scale and
    kind of lengths. Hollow markers are steps in which the planner was still measuring.

    Raises:
        NothingToDrawError: If no step finished in any run.
    """
    if not any(series.finished(run)["step_seconds"].notna().any() for run in runs):
        raise style.NothingToDrawError("no step finished in any of these runs")
    clocks = series.clock_titles(runs)
    groups = _groups(runs)
    # Panels of one clock and scale share an axis, so that they can be compared.
    tops = {
        (clock, scale): series.largest(
            t
            for r in runs
            if (r.time_label, series.scale_text(r)) == (clock, scale)
            for t in series.finished(r)["step_seconds"]
        )
        for clock, scale, _ in groups
    }
    keys = [
        (key, budget)
        for key, members in groups.items()
        for budget in sorted({r.budget_bytes for r in members} - {None}) or [None]
    ]
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(keys))
        for panel, (key, budget) in zip(axes, keys, strict=True):
            clock, scale, lengths = key
            members = [r for r in groups[key] if r.budget_bytes in (budget, None)]
            top = tops[clock, scale]
            unit = style.time_unit(top)
            for run in sorted(members, key=series.order):
                _points(panel, run, series.short_label(run, budget=False), unit)
            panel.set_ylim(0, 1.06 * top / unit[0] or 1.0)
            style.title(panel, (series.budget_text(budget), clocks[clock], scale, lengths))
        style.legend_below(figure, axes)
        style.notes(
            figure,
            series.clock_notes(runs) + series.length_notes(runs) + series.alike_notes(runs),
        )
    return figure


def _groups(runs: Sequence[Run]) -> dict[tuple[str, str, str], list[Run]]:
    """Return runs that may lie in one panel by clock, scale and kind of lengths, in order."""
    found: dict[tuple[str, str, str], list[Run]] = {}
    for run in runs:
        _, scale, lengths = series.panel_key(run)
        found.setdefault((run.time_label, scale, lengths), []).append(run)
    return dict(sorted(found.items()))


def _points(panel: Axes, run: Run, label: str, unit: tuple[float, str]) -> None:
    factor, name = unit
    look = series.look(run)
    steps = series.finished(run).dropna(subset=["step_seconds"])
    sizes, axis_label = series.size_axis(run.steps)
    learning = steps["phase"].isin(LEARNING_PHASES)
    # The reference lies under the others, as a cross, which stays visible beneath them.
    marker = "+" if run.budget_bytes is None and run.planner == "baseline" else look.marker
    for rows, suffix in ((steps[~learning], ""), (steps[learning], " (measuring)")):
        if not len(rows):
            continue
        lines_only = marker in style.UNFILLED
        filled = {"c": look.colour} if not suffix or lines_only else {"facecolors": "none"}
        panel.scatter(
            sizes[rows.index].astype(float),
            rows["step_seconds"].astype(float) / factor,
            s=30 if lines_only else 13,  # Lines alone would be lost among filled neighbours.
            marker=marker,
            linewidths=1.2 if lines_only else 0.8,
            alpha=0.75,
            edgecolors=None if lines_only else look.colour,
            label=label + suffix,
            **filled,
        )
    panel.set_xlabel(axis_label)
    panel.set_ylabel(f"step time ({name})")
