"""Time relative to plain training by budget over several seeds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from mimose_bench.experiments.figures.paired import pooled
from mimose_bench.experiments.reading import Run
from mimose_bench.plots import series, style

_Place = tuple[int, float, float, float]
"""Budget, and a ratio of times with its interval."""


def draw(runs: Sequence[Run], paper_curves: bool = True) -> Figure:
    """Draw each planner's time against the budget, a panel a task and device.

    Bars are 95 % intervals over seeds and steps. Runs that did not finish, and those without a
    baseline of the same settings, are left out. The paper has no such figure.

    Args:
        runs: The runs.
        paper_curves: Makes no difference.

    Raises:
        NothingToDrawError: If no run can be compared with a baseline.
    """
    del paper_curves
    finished = [run for run in runs if run.info["outcome"] == "done" and len(run.steps)]
    panels: dict[tuple[str, str, str], dict[style.Look, list[_Place]]] = {}
    for key in dict.fromkeys(_key(run) for run in finished):
        mine = [run for run in finished if _key(run) == key]
        plain = [r for r in mine if r.planner == "baseline" and r.budget_bytes is None]
        mine.sort(key=series.order)
        for look, budget in dict.fromkeys((series.look(r), r.budget_bytes) for r in mine):
            under = [r for r in mine if (series.look(r), r.budget_bytes) == (look, budget)]
            ratio = None if budget is None else pooled(under, plain)
            if ratio is None or ratio.low is None or ratio.high is None or budget is None:
                continue
            places = panels.setdefault(key, {}).setdefault(look, [])
            places.append((budget, ratio.value, ratio.low, ratio.high))
    if not panels:
        raise style.NothingToDrawError(
            "no finished run under a budget shares two steps or more that do not measure with a "
            "baseline without a limit of the same settings: add such a baseline, or longer runs"
        )
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(panels), height=3.6)
        for panel, (key, curves) in zip(axes, sorted(panels.items()), strict=True):
            top = max(place[0] for places in curves.values() for place in places)
            factor, unit = style.memory_unit(top)
            for look, places in curves.items():
                places.sort()
                panel.errorbar(
                    [place[0] / factor for place in places],
                    [place[1] for place in places],
                    yerr=[
                        [max(place[1] - place[2], 0) for place in places],
                        [max(place[3] - place[1], 0) for place in places],
                    ],
                    color=look.colour,
                    marker=look.marker,
                    markersize=5,
                    linewidth=1.2,
                    capsize=2.5,
                    label=look.label,
                )
            panel.set_xlabel(f"budget ({unit})")
            panel.set_ylabel("time / plain training")
            style.title(panel, key)
        style.legend_below(figure, axes)
        style.notes(figure, ["bars: 95 % of a bootstrap over seeds and paired steps"])
    return figure


def _key(run: Run) -> tuple[str, str, str]:
    """Return task, scale (empty for the full one) and what keeps time."""
    return str(run.info.get("task")), series.scale_text(run), run.time_label
