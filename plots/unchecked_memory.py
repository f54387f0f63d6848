"""Memory of unchecked training by padded length, ours over the paper's (the paper's Fig 3)."""

from __future__ import annotations

import matplotlib
from matplotlib.figure import Figure

from mimose_bench.experiments.figures.result import FACTORS, Reproduction
from mimose_bench.plots import style

_PAPER = "#D55E00"
"""Stands out from our line, on which most of the paper's points lie."""


def draw(result: Reproduction) -> Figure:
    """Draw the peaks of each data set in a panel of its own.

    Args:
        result: What :func:`mimose_bench.experiments.figures.fig3.check` returned.
    """
    series = list(dict.fromkeys(row.series for row in result.rows))
    unit = FACTORS["GB"]
    look = style.look("baseline")
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(series))
        for panel, name in zip(axes, series, strict=True):
            rows = [row for row in result.rows if row.series == name]
            panel.plot(
                [row.length for row in rows],
                [row.expected / unit for row in rows],
                "o",
                color=_PAPER,
                markersize=2.5,
                markerfacecolor="none",
                markeredgewidth=0.5,
                zorder=3,
                label="the paper (Fig 3), V100",
            )
            left_out = [point for point in result.left_out if point.series == name]
            panel.plot(
                [point.length for point in left_out],
                [point.expected / unit for point in left_out],
                "x",
                color=_PAPER,
                markersize=5,
                zorder=3,
                label="the paper, sheltered iterations",
            )
            ours = sorted({(row.length, row.obtained) for row in rows})
            panel.plot(
                [length for length, _ in ours],
                [peak / unit for _, peak in ours],
                color=look.colour,
                # Wide and pale: it shows on both sides of the points on it.
                linewidth=6,
                alpha=0.3,
                marker="o" if len(ours) < 30 else None,
                markersize=8,
                label=f"{look.label}, {result.device_label}",
            )
            panel.set_title(name)
            panel.set_xlabel("padded length (tokens)")
            panel.set_ylabel("peak allocated (GiB)")
            panel.set_ylim(bottom=0)
        style.legend_below(figure, axes)
    return figure
