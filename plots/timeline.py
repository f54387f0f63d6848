"""Memory over the time of one iteration, the paper's ends and peaks marked (its Fig 4)."""

from __future__ import annotations

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mimose_bench.experiments.figures.fig4 import BUDGET_BYTES, CASES
from mimose_bench.experiments.figures.result import FACTORS, Reproduction
from mimose_bench.plots import style

_LOOKS = (("#444444", "o"), ("#0072B2", "s"), ("#D55E00", "^"))
"""Colour and marker by the case."""


def draw(result: Reproduction) -> Figure:
    """Draw the curves, once all of them and once the two short iterations.

    Args:
        result: What :func:`mimose_bench.experiments.figures.fig4.check` returned.
    """
    curves = {curve.name: curve for curve in result.curves}
    unit, ms = FACTORS["GB"], FACTORS["ms"]
    with matplotlib.rc_context(style.RC):
        figure, (whole, short) = style.panels(2, sharey=True)
        for panel, shown in ((whole, CASES), (short, CASES[:2])):
            for case in shown:
                curve = curves[case.name]
                place = CASES.index(case)
                colour, marker = _LOOKS[place]
                panel.plot(
                    [x / ms for x in curve.x],
                    [y / unit for y in curve.y],
                    color=colour,
                    linewidth=1,
                    marker=marker,
                    markersize=4.5,
                    markerfacecolor="white",
                    # Spaced along the line, not by its points, of which there are thousands.
                    markevery=(0.03 * (place + 1), 0.14),
                    label=case.name,
                )
                _mark(panel, case.seconds / ms, case.peak_bytes, colour, marker)
            panel.axhline(BUDGET_BYTES / unit, color="#444444", linestyle="--", linewidth=0.9)
            panel.set_xlabel("time in the iteration (ms)")
            panel.set_xlim(left=0)
            panel.set_ylim(1.4, 3.3)
        whole.set_title("three iterations")
        short.set_title("those of 55 tokens")
        whole.set_ylabel("allocated memory (GB of $2^{30}$ bytes)")
        style.legend_below(
            figure,
            [whole],
            extra={
                f"ours, {result.device_label}": Line2D([], [], color=style.PAPER, linewidth=1),
                "the paper's end (Fig 4), V100": _key(":"),
                "the paper's peak": _key("-."),
                "the budget, 3 GB": Line2D([], [], color="#444444", linestyle="--", linewidth=0.9),
            },
        )
    return figure


def _mark(panel: Axes, end_ms: float, peak_bytes: float | None, colour: str, marker: str) -> None:
    panel.axvline(end_ms, color=colour, linestyle=":", linewidth=1.2)
    panel.plot(
        [end_ms],
        [0.97],
        marker,
        transform=panel.get_xaxis_transform(),
        color=colour,
        markersize=4.5,
    )
    if peak_bytes is not None:
        height = peak_bytes / FACTORS["GB"]
        panel.plot(
            [0, end_ms],
            [height, height],
            color=colour,
            linestyle="-.",
            marker=marker,
            markersize=4.5,
            linewidth=0.9,
        )


def _key(line: str) -> Line2D:
    return Line2D([], [], color=style.PAPER, linestyle=line, linewidth=1.2)
