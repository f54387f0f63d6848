"""Where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from mimose_bench.experiments import summary
from mimose_bench.experiments.reading import Run
from mimose_bench.plots import series, style


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the mean seconds of a step's parts, a bar a run, a panel a device and clock.

    Recomputation is part of the backward pass, where it runs.
    """
    names = series.clocks(runs)
    shares = {run.directory: summary.breakdown(run.steps) for run in runs}
    unit, unit_name = style.time_unit(max(sum(parts.values()) for parts in shares.values()))
    most = max(sum(r.time_label == d for r in runs) for d in names)
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(names), width=6.2, height=0.9 + 0.42 * most)
        for panel, device in zip(axes, names, strict=True):
            members = sorted((r for r in runs if r.time_label == device), key=series.order)
            texts = series.labels(members)
            for row, run in enumerate(members):
                if (run.steps["outcome"] == "oom").all():
                    panel.text(0, row, " no step finished: out of memory", va="center", fontsize=8)
                left = 0.0
                for part, colour in style.PARTS.items():
                    width = shares[run.directory][part] / unit
                    panel.barh(row, width, left=left, color=colour, height=0.68, label=part)
                    left += width
            panel.set_yticks(range(len(members)), texts)
            panel.set_ylim(most - 0.5, -0.5)
            panel.grid(visible=False, axis="y")
            panel.set_title(series.title(device))
            panel.set_xlabel(f"mean step time ({unit_name})")
        style.legend_below(figure, axes, columns=7)
    return figure
