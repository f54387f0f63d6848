"""Loss by step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mimose_bench.experiments.reading import Run
from mimose_bench.plots import series, style

_DASH = 1.6
"""Length of a dash, in widths of the line."""

_FILLS = ("full", "none", "left", "right", "top", "bottom")
"""How the markers of one planner's curves are filled, in turn."""

_TURNS = "2134"
"""Likewise how a marker without an inside is turned."""


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the training loss, a panel a task, device, scale and kind of lengths.

    A planner must not change the numbers, so curves of the same batches lie on one another: each
    is dashed where the others are not, so that all stay visible, and carries its planner's marker.
    Runs without a loss, as simulated ones are, are left out with a note.

    Raises:
        NothingToDrawError: If no run has a loss.
    """
    without = [run for run in runs if run.steps["loss"].isna().all()]
    if len(without) == len(runs):
        raise style.NothingToDrawError(f"no run has a loss: {_why(runs)}")
    groups: dict[tuple[str, ...], list[Run]] = {}
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
    seen: Counter[str] = Counter()
    for i, (run, label) in enumerate(zip(runs, series.labels(runs), strict=True)):
        steps = run.steps.dropna(subset=["loss"])
        look = series.look(run)
        number = seen[run.planner_label]
        is_lines = look.marker in style.UNFILLED
        drawn = {
            "color": look.colour,
            "linewidth": 2.2,
            "marker": _TURNS[number % len(_TURNS)] if is_lines else look.marker,
            "markersize": 12 if is_lines else 6,
            "fillstyle": _FILLS[number % len(_FILLS)],
            "markerfacecoloralt": "white",
        }
        seen[run.planner_label] += 1
        panel.plot(
            steps["step"].astype(float),
            steps["loss"].astype(float),
            **drawn,
            # Each curve's markers stand where the others' do not.
            markevery=((i + 0.5) / len(runs) * 0.2, 0.2),
            # An offset of i dashes into a pattern of one dash in as many as there are curves.
            linestyle=(-i * _DASH, (_DASH, (len(runs) - 1) * _DASH)) if len(runs) > 1 else "-",
            dash_capstyle="butt",
        )
        panel.plot([], [], **drawn, label=label)
    panel.set_xlabel("step")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_ylabel("training loss")
