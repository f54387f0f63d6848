"""What a block saves for backward: a bar a value, coloured by the price of making it again."""

from __future__ import annotations

import matplotlib
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from mimose.units import MIB
from mimose_bench.experiments.figures.auto_menu import STAYS
from mimose_bench.experiments.figures.result import Reproduction
from mimose_bench.plots import style

_GREY = "#BBBBBB"


def draw(result: Reproduction) -> Figure:
    """Draw bytes and prices.

    Args:
        result: What :func:`mimose_bench.experiments.figures.auto_menu.check` returned.

    Raises:
        NothingToDrawError: If nothing can be made again.
    """
    bars = [(c.name, c.x[0] / MIB, c.y[0], c.y_unit == STAYS) for c in result.curves]
    prices = {name: 1e6 * price / size for name, size, price, stays in bars if not stays}
    if not prices:
        raise style.NothingToDrawError("no value of the block can be made again")
    norm = LogNorm(min(prices.values()), max(prices.values()))
    shades = colormaps["cividis_r"]
    with matplotlib.rc_context(style.RC):
        figure = Figure(figsize=(6.4, 0.24 * len(bars) + 1.1), layout="constrained")
        panel = figure.subplots()
        for place, (name, size, price, stays) in enumerate(bars):
            colour = _GREY if stays else shades(norm(prices[name]))
            panel.barh(place, size, color=colour, hatch="///" if stays else "", **style.BAR)
            text = "must stay" if stays else f"{1e3 * price:.2f} ms"
            panel.annotate(
                text,
                (size, place),
                xytext=(3, 0),
                textcoords="offset points",
                va="center",
                fontsize=7,
            )
        panel.set_yticks(range(len(bars)), [name for name, *_ in bars])
        panel.invert_yaxis()
        panel.grid(visible=False, axis="y")
        panel.set_xlim(0, 1.12 * max(size for _, size, *_ in bars))
        panel.set_xlabel("saved for backward (MiB)")
        scale = figure.colorbar(ScalarMappable(norm, shades), ax=panel, pad=0.01)
        scale.set_label("made again for (\N{MICRO SIGN}s a MiB)")
        style.title(panel, (result.tables[0].title,), 6.4)
    return figure
