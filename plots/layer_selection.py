"""What recomputing the first or last encoders saves, ours over the paper's (the paper's Fig 9)."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mimose_bench.experiments.figures.result import FACTORS, Reproduction
from mimose_bench.plots import style

_LOOKS = {
    "none": ("#444444", "o"),
    "first": ("#56B4E9", "<"),
    "last": ("#D55E00", ">"),
    "first two": ("#0072B2", "v"),
    "last two": ("#E69F00", "^"),
}
"""Colour and marker by the encoders recomputed."""


def draw(result: Reproduction) -> Figure:
    """Draw peaks by sequence length, and what each choice saves against none.

    Of the two readings of the figure it is the one in 2**20 bytes.

    Args:
        result: What :func:`mimose_bench.experiments.figures.fig9.check` returned.
    """
    unit = FACTORS["MiB"]
    shown = [row for row in result.rows if row.unit == "MiB"]
    none = {row.length: row for row in shown if row.series == "none"}
    with matplotlib.rc_context(style.RC):
        figure, (peaks, saved) = style.panels(2)
        for name, (colour, marker) in _LOOKS.items():
            rows = [row for row in shown if row.series == name]
            ours = {"color": colour, "linewidth": 1, "label": f"{name} recomputed"}
            theirs = _points(colour, marker)
            lengths = [row.length for row in rows]
            peaks.plot(lengths, [row.obtained / unit for row in rows], **ours)
            peaks.plot(lengths, [row.expected / unit for row in rows], **theirs)
            beside = [row for row in rows if row.length in none]
            lengths = [row.length for row in beside]
            saved.plot(
                lengths,
                [(none[row.length].obtained - row.obtained) / unit for row in beside],
                **ours,
            )
            saved.plot(
                lengths,
                [(none[row.length].expected - row.expected) / unit for row in beside],
                **theirs,
            )
        peaks.set_title("peak memory")
        peaks.set_ylabel("peak allocated (MiB)")
        saved.set_title("what recomputing saves")
        saved.set_ylabel("saved against none (MiB)")
        for panel in (peaks, saved):
            panel.set_xlabel("sequence length (tokens)")
        sides = {
            f"ours, {result.device_label}": Line2D([], [], color=style.PAPER, linewidth=1),
            "the paper (Fig 9), V100": Line2D([], [], **_points(style.PAPER, "o")),
        }
        style.legend_below(figure, [peaks], columns=5, extra=sides)
    return figure


def _points(colour: str, marker: str) -> dict[str, Any]:
    """Return how the paper's points are drawn: hollow, so that a line shows through."""
    return {
        "linestyle": "",
        "color": colour,
        "marker": marker,
        "markersize": 3.5,
        "markerfacecolor": "none",
        "markeredgewidth": 0.7,
    }
