"""Loss by step."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mimose_bench.experiments.reading import Run
from mimose_bench.plots import series, style

_DASH = 1.6
"""Length of a dash, in widths of the line."""


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the training loss, a panel a task, device and kind of lengths.

    A planner must not change the numbers, so curves of the same batches lie on one another: each
    is dashed where the others are not, so that all stay visible. Runs without a loss, as simulated
    ones are, are left out with a note; where no run has one, a sentence says why.
    """
    without = [run for run in runs if run.steps["loss"].isna().all()]
    if len(without) == len(runs):
        with matplotlib.rc_context(style.RC):
            return style.sentence(f"no loss: {_why(runs)}")
    groups: dict[tuple[str, str, str], list[Run]] = {}
    several = len({run.info.get("task") for run in runs}) > 1
    for run in sorted(runs, key=series.order):
        if run.steps["loss"].notna().any():
            task = str(run.info.get("task")) if several else ""
            groups.setdefault((task, *series.panel_key(run)), []).append(run)
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(groups), width=5.6)
        for panel, (key, members) in zip(axes, sorted(groups.items()), strict=True):
            _curves(panel, members)
            style.title(panel, key, width=5.6)
        style.legend_below(figure, axes, columns=3)
        style.notes(figure, [f"runs without a loss left out: {_why(without)}"] if without else [])
    return figure


def _why(runs: Sequence[Run]) -> str:
    """Return why none of ``runs`` has a loss."""
    simulated = {run.info.get("clock") is not None for run in runs}
    reasons = {True: "the steps are simulated", False: "no step finished"}
    return " or ".join(text for case, text in reasons.items() if case in simulated)


def _curves(panel: Axes, runs: Sequence[Run]) -> None:
    for i, (run, label) in enumerate(zip(runs, series.labels(runs), strict=True)):
        steps = run.steps.dropna(subset=["loss"])
        panel.plot(
            steps["step"].astype(float),
            steps["loss"].astype(float),
            color=style.look(run.planner).colour,
            linewidth=2.2,
            # An offset of i dashes into a pattern of one dash in as many as there are curves.
            linestyle=(-i * _DASH, (_DASH, (len(runs) - 1) * _DASH)) if len(runs) > 1 else "-",
            dash_capstyle="butt",
        )
        panel.plot([], [], color=style.look(run.planner).colour, linewidth=2.2, label=label)
    panel.set_xlabel("step")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylabel("training loss")
