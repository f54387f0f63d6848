"""Where DTR's time goes, ours beside the paper's (the paper's Fig 5)."""

from __future__ import annotations

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mimose_bench.experiments.figures.result import FACTORS, Reproduction, Row
from mimose_bench.plots import style

_LOOKS = {
    "forward and backward": ("#0072B2", ""),
    "recomputation": ("#E69F00", "///"),
    "cost maintaining": ("#D55E00", "xxx"),
    "planning": ("#CC79A7", "---"),
}
"""Colour and hatching by the part."""


def draw(result: Reproduction) -> Figure:
    """Draw an iteration's parts at each budget, a panel for each side.

    Args:
        result: What :func:`mimose_bench.experiments.figures.fig5.check` returned.
    """
    rows = [row for row in result.rows if row.unit == "ms"]
    bars = list(dict.fromkeys(row.series for row in rows))
    with matplotlib.rc_context(style.RC):
        figure, (theirs, ours) = style.panels(2, sharey=True)
        for panel, side in ((theirs, "expected"), (ours, "obtained")):
            _stack(panel, rows, bars, side)
        theirs.set_title("the paper (Fig 5), V100")
        ours.set_title(result.device_label)
        theirs.set_ylabel("an iteration's time (ms)")
        style.legend_below(figure, [theirs])
    return figure


def _stack(panel: Axes, rows: list[Row], bars: list[str], side: str) -> None:
    for place, bar in enumerate(bars):
        bottom = 0.0
        for row in rows:
            if row.series == bar:
                colour, hatch = _LOOKS[row.what]
                height = getattr(row, side) / FACTORS["ms"]
                panel.bar(
                    place,
                    height,
                    bottom=bottom,
                    width=0.6,
                    color=colour,
                    hatch=hatch,
                    label=row.what,
                    **style.BAR,
                )
                bottom += height
    panel.set_xticks(range(len(bars)), bars)
    panel.set_xlabel("really used (DTR's own budget)")
    panel.grid(visible=False, axis="x")
