"""Loss by step."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mimose_bench.experiments.reading import Run
from mimose_bench.plots import series, style


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the training loss, a panel a device.

    A planner must not change the numbers, so curves of the same batches lie on one another: each
    is drawn thinner than the one below it, and all stay visible. A simulated device has no losses,
    and its panel says so.
    """
    names = series.devices(runs)
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(names), width=5.6)
        for panel, device in zip(axes, names, strict=True):
            members = sorted((r for r in runs if r.device_label == device), key=series.order)
            panel.set_title(device)
            if any(run.steps["loss"].notna().any() for run in members):
                _curves(panel, members)
            else:
                _nothing(panel, members)
        style.legend_below(figure, axes, columns=3)
    return figure


def _curves(panel: Axes, runs: Sequence[Run]) -> None:
    for i, (run, label) in enumerate(zip(runs, series.labels(runs), strict=True)):
        steps = run.steps.dropna(subset=["loss"])
        panel.plot(
            steps["step"].astype(float),
            steps["loss"].astype(float),
            color=style.look(run.planner).colour,
            linewidth=0.8 + 3.2 * (len(runs) - 1 - i) / max(len(runs) - 1, 1),
            alpha=0.85,
            solid_capstyle="round",
            label=label,
        )
    panel.set_xlabel("step")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylabel("training loss")


def _nothing(panel: Axes, runs: Sequence[Run]) -> None:
    simulated = all(run.info.get("clock") is not None for run in runs)
    why = "the steps are simulated" if simulated else "no step finished"
    panel.text(0.5, 0.5, f"no loss: {why}", transform=panel.transAxes, ha="center", fontsize=8)
    panel.set_xticks([])
    panel.set_yticks([])
