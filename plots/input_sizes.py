"""How large a task's batches are, ours over the paper's (the histograms of the paper's Fig 3)."""

from __future__ import annotations

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from mimose_bench.experiments.distribution import Distribution, bin_edges
from mimose_bench.plots import style

_OURS = "#0072B2"
_MOST_BINS = 60


def draw(found: Distribution) -> Figure:
    """Draw the share of the batches by their padded length, or their image's pixels."""
    edges = bin_edges(found, _MOST_BINS)
    shares = np.histogram(found.lengths, edges)[0] / len(found.lengths)
    kind = found.source.partition(":")[0]
    label = "padded length (tokens)" if found.unit == "tokens" else "height x width (pixels)"
    with matplotlib.rc_context(style.RC):
        figure, (panel,) = style.panels(1, width=6.0)
        panel.stairs(shares, edges, fill=True, color=_OURS, alpha=0.45, label=f"here ({kind})")
        if found.paper is not None:
            panel.stairs(
                found.paper.shares,
                found.paper.edges,
                color="black",
                linewidth=1.0,
                linestyle="--",
                label="the paper (Fig 3)",
            )
        panel.axvline(float(found.lengths.mean()), color=_OURS, linewidth=1.0, label="mean here")
        paper_mean = found.paper_statistics().get("mean")
        if paper_mean is not None:
            panel.axvline(
                paper_mean, color="black", linewidth=1.0, linestyle=":", label="the paper's mean"
            )
        panel.set_xlabel(label)
        panel.set_ylabel("share of batches")
        panel.set_ylim(bottom=0)
        scale = "" if found.scale == "full" else f"scale {found.scale}"
        style.title(panel, (found.title, scale, f"batches of {found.batch_size}"), width=6.0)
        style.notes(figure, [f"here: {found.source}"])
        style.legend_below(figure, [panel])
    return figure
