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
    """Draw each step's time, a panel for each device (and clock) and budget.

    Runs without a limit are the reference and appear in every panel of their device. Hollow
    markers are steps in which the planner was still measuring.
    """
    keys = sorted(
        {(r.time_label, r.budget_bytes) for r in runs if r.budget_bytes is not None}
        | {
            (d, None)
            for d in series.clocks(runs)
            if all(r.budget_bytes is None for r in runs if r.time_label == d)
        },
        key=lambda key: (key[0], key[1] or 0),
    )
    units = {
        device: style.time_unit(
            series.largest(
                t for r in runs if r.time_label == device for t in r.steps["step_seconds"]
            )
        )
        for device, _ in keys
    }
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(keys))
        for panel, (device, budget) in zip(axes, keys, strict=True):
            members = [
                r for r in runs if r.time_label == device and r.budget_bytes in (budget, None)
            ]
            members.sort(key=series.order)
            for run, label in zip(members, series.labels(members, budget=False), strict=True):
                _points(panel, run, label, units[device])
            panel.set_title(series.title(f"{series.budget_text(budget)}, {device}"))
        for panel, (device, _) in zip(axes, keys, strict=True):
            tops = [p.get_ylim()[1] for p, (d, _) in zip(axes, keys, strict=True) if d == device]
            panel.set_ylim(0, max(tops))
        style.legend_below(figure, axes)
    return figure


def _points(panel: Axes, run: Run, label: str, unit: tuple[float, str]) -> None:
    factor, name = unit
    look = style.look(run.planner)
    steps = run.steps[run.steps["outcome"] != "oom"].dropna(subset=["step_seconds"])
    steps = steps[steps["weight"] != 0]  # Over expected lengths: steps that only prepare.
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
