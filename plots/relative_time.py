"""Time relative to plain training by memory (the paper's Fig 10), the paper's curves beside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from mimose.units import GIB
from mimose_bench.experiments import paper
from mimose_bench.experiments.figures.fig10_bars import BARS, DETECTORS, NAMES
from mimose_bench.experiments.figures.fig10_series import TITLES
from mimose_bench.experiments.figures.points import Point, points_of
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import is_expected
from mimose_bench.experiments.tasks import TASKS
from mimose_bench.plots import series, style

_AUTHORS = style.Look("#6A3D9A", "o", "Mimose, variant authors")
_SHOWN = "the paper (Fig 10), V100, dashed"


def draw(runs: Sequence[Run], paper_curves: bool = True) -> Figure:
    """Draw each planner's time against memory, a panel a task and device.

    Memory is the most that runs over sampled lengths reserved; of a point without such a run its
    budget, with a hollow marker. Times are of runs over expected lengths where there are some,
    without the steps in which a planner measures. Stars stand at what batches allocate with every
    block recomputed and with none, filled, and at the paper's, hollow.

    Args:
        runs: The runs; those without a baseline of the same settings are left out.
        paper_curves: Whether to draw the paper's.
    """
    points = points_of(runs)
    panels: dict[tuple[str, str], list[Point]] = {}
    for point in points:
        if point.time is not None:
            panels.setdefault((point.task, point.device_label), []).append(point)
    with matplotlib.rc_context(style.RC):
        if not panels:
            return style.sentence("no run has a baseline without a limit to be compared with")
        figure, axes = style.panels(len(panels), height=3.7)
        order = [*TITLES, *DETECTORS]
        ranked = sorted(
            panels, key=lambda k: (order.index(k[0]) if k[0] in order else len(order), k)
        )
        entries: dict[str, Any] = {}
        for panel, key in zip(axes, ranked, strict=True):
            task, device = key
            own = [run for run in runs if run.info.get("task") == task]
            _panel(panel, panels[key], entries)
            if paper_curves:
                _paper(panel, task)
            _stars(panel, [run for run in own if run.device_label == device], task, paper_curves)
            title = TASKS[task].title if task in TASKS else task
            style.title(panel, (title, device))
        _legend(figure, entries, paper_curves)
        style.notes(figure, [*series.clock_notes(runs), *_notes(points)])
    return figure


def _panel(panel: Axes, points: Sequence[Point], entries: dict[str, Any]) -> None:
    curves: dict[tuple[str, str, bool], list[Point]] = {}
    for point in points:
        curves.setdefault((point.planner, point.variant, bool(point.own)), []).append(point)
    names = list(style.PLANNERS)
    ranked = sorted(curves, key=lambda k: (names.index(k[0]) if k[0] in names else 99, k[1:]))
    for key in ranked:
        members = sorted(curves[key], key=_x)
        look = _look(key, curves)
        panel.plot(
            [_x(p) for p in members],
            [p.time.value for p in members if p.time],
            color=look.colour,
            linewidth=1.4 if key[0] == "mimose" else 0.9,
            zorder=3 if key[0] == "mimose" else 2,
        )
        for p in members:
            measured = p.reserved_bytes is not None
            panel.plot(
                [_x(p)],
                [p.time.value if p.time else None],
                look.marker,
                color=look.colour,
                markerfacecolor=look.colour if measured else "white",
                markersize=5,
                zorder=4 if key[0] == "mimose" else 3,
            )
        entries.setdefault(
            look.label,
            Line2D([], [], color=look.colour, marker=look.marker, markersize=5, linewidth=1.2),
        )
    panel.set_xlabel("most reserved (GiB); hollow: the budget")
    panel.set_ylabel("time / plain training")


def _look(key: tuple[str, str, bool], keys: Collection[tuple[str, str, bool]]) -> style.Look:
    """Return a curve's look; the planner's own colour is that of a reserve as given, if any is."""
    planner, variant, given = key
    if variant == "authors":
        return _AUTHORS
    look = style.look(planner)
    if given:
        return style.Look(look.colour, look.marker, f"{look.label}, reserve as given")
    if (planner, variant, True) in keys:
        return style.Look("#000000", look.marker, f"{look.label}, reserve by default")
    return look


def _x(point: Point) -> float:
    return (point.reserved_bytes or point.budget_bytes) / GIB


def _paper(panel: Axes, task: str) -> None:
    curves: dict[str, list[tuple[float, float]]] = {}
    if task in TITLES:
        for planner, points in paper.time_by_memory(TITLES[task]).items():
            curves[planner] = [(p.reserved_bytes / GIB, p.relative_time) for p in points]
    elif task in BARS:
        curves = {name: [(used, time)] for name, (time, used) in BARS[task].items()}  # type: ignore[index]
    for planner, places in curves.items():
        look = style.look(NAMES[planner])
        panel.plot(
            *zip(*places, strict=True),
            linestyle="--",
            color=look.colour,
            marker=look.marker,
            markerfacecolor="none",
            markersize=3.5,
            linewidth=0.9,
            alpha=0.7,
        )
        if len(places) == 1:
            panel.annotate(
                f"{planner}, the paper",
                places[0],
                xytext=(4, 3),
                textcoords="offset points",
                fontsize=6.5,
                color=look.colour,
            )


def _stars(panel: Axes, runs: Sequence[Run], task: str, paper_curves: bool) -> None:
    bottom = panel.get_ylim()[0]
    places = []
    for planner in ("full", "baseline"):
        peaks = [r.summary["peak_allocated_bytes"] for r in runs if r.planner == planner]
        places += [(max(filter(None, peaks)) / GIB, True)] if any(peaks) else []
    if paper_curves and task in TITLES:
        places += [(bound / GIB, False) for bound in paper.memory_bounds(TITLES[task])]
    for x, ours in places:
        panel.plot(
            [x],
            [bottom],
            "*",
            color="#444444",
            markerfacecolor="#444444" if ours else "white",
            markersize=9,
            clip_on=False,
            zorder=5,
        )
    panel.set_ylim(bottom=bottom)


def _legend(figure: Figure, entries: dict[str, Any], paper_curves: bool) -> None:
    star = {"linestyle": "", "marker": "*", "markersize": 8, "color": "#444444"}
    entries["every block recomputed, and none: allocated"] = Line2D([], [], **star)
    if paper_curves:
        entries[_SHOWN] = Line2D([], [], linestyle="--", color=style.PAPER)
        entries["the paper's bounds"] = Line2D([], [], **star, markerfacecolor="white")
    style.legend_below(figure, (), columns=5, extra=entries)


def _notes(points: Sequence[Point]) -> list[str]:
    kinds = {is_expected(run.steps) for p in points for run in p.runs}
    lines = ["without the steps in which a planner measures"]
    if True in kinds:
        lines[0] = "times: over expected lengths where there are such runs, " + lines[0]
    return lines
