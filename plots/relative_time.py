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

_Key = tuple[str, str, str, bool]
"""Planner, Mimose's variant, its other options, and whether a reserve was given."""

_AUTHORS = style.Look("#6A3D9A", "o", "Mimose, variant authors")
_SHOWN = "the paper (Fig 10), V100, dashed"
_STARS = "every block recomputed, and none: allocated"
_BOUNDS = "the paper's bounds"
_STAR: dict[str, Any] = {"linestyle": "", "marker": "*", "markersize": 8, "color": "#444444"}


def draw(runs: Sequence[Run], paper_curves: bool = True) -> Figure:
    """Draw each planner's time against memory, a panel a task, device and scale.

    Memory is the most that runs over sampled lengths reserved; of a point without such a run its
    budget, with a hollow marker. Times are of runs over expected lengths where there are some,
    without the steps in which a planner measures. Stars stand at what batches allocate with every
    block recomputed and with none, filled, and at the paper's, hollow.

    Args:
        runs: The runs; those without a baseline of the same settings are left out.
        paper_curves: Whether to draw the paper's, in panels of runs that they may stand by
            (:func:`series.bears_paper`).

    Raises:
        NothingToDrawError: If no run can be compared with a baseline.
    """
    scales: dict[str, list[Run]] = {}
    for run in runs:
        scales.setdefault(series.scale_text(run), []).append(run)
    # A point does not hold its scale: those of each are made apart.
    points = {scale: points_of(members) for scale, members in scales.items()}
    panels: dict[tuple[str, str, str], list[Point]] = {}
    for scale, found in points.items():
        for point in found:
            if point.time is not None:
                panels.setdefault((point.task, point.device_label, scale), []).append(point)
    shown = [point for found in points.values() for point in found]
    if not panels:
        raise style.NothingToDrawError(_missing(shown))
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(panels), height=3.7)
        order = [*TITLES, *DETECTORS]
        ranked = sorted(
            panels, key=lambda k: (order.index(k[0]) if k[0] in order else len(order), k)
        )
        entries: dict[str, Any] = {}
        for panel, key in zip(axes, ranked, strict=True):
            task, device, scale = key
            own = [
                run
                for run in scales[scale]
                if run.info.get("task") == task and run.device_label == device
            ]
            beside = paper_curves and series.bears_paper(own[0])
            unit = style.memory_unit(max(_x(point) for point in panels[key]))
            _panel(panel, panels[key], unit, entries)
            if beside:
                _paper(panel, task, unit[0], entries)
            _stars(panel, own, task if beside else None, unit[0], entries)
            title = TASKS[task].title if task in TASKS else task
            style.title(panel, (title, device, scale))
        # The keys of what is no planner's come last.
        last = {
            label: entries.pop(label) for label in (_STARS, _SHOWN, _BOUNDS) if label in entries
        }
        style.legend_below(figure, (), columns=5, extra=entries | last)
        style.notes(figure, [*series.clock_notes(runs), *_notes(shown)])
    return figure


def _missing(points: Sequence[Point]) -> str:
    """Return why none of ``points`` has a time."""
    if not points:
        return (
            "no run under a budget has a baseline without a limit of the same settings to be "
            "compared with: add such a baseline"
        )
    if not any(point.finished for point in points):
        return "no run that has a baseline finished: add runs under a larger budget"
    return (
        "no run shares a step that it did not measure in with its baseline: add runs of more steps"
    )


def _panel(
    panel: Axes, points: Sequence[Point], unit: tuple[float, str], entries: dict[str, Any]
) -> None:
    factor, unit_name = unit
    curves: dict[_Key, list[Point]] = {}
    for point in points:
        key = point.planner, point.variant, point.options, bool(point.own)
        curves.setdefault(key, []).append(point)
    names = list(style.PLANNERS)
    ranked = sorted(curves, key=lambda k: (names.index(k[0]) if k[0] in names else 99, k[1:]))
    for key in ranked:
        members = sorted(curves[key], key=_x)
        look = _look(key, curves)
        panel.plot(
            [_x(p) / factor for p in members],
            [p.time.value for p in members if p.time],
            color=look.colour,
            linewidth=1.4 if key[0] == "mimose" else 0.9,
            zorder=3 if key[0] == "mimose" else 2,
        )
        for p in members:
            measured = p.reserved_bytes is not None
            panel.plot(
                [_x(p) / factor],
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
    panel.set_xlabel(f"most reserved ({unit_name}); hollow: the budget")
    panel.set_ylabel("time / plain training")


def _look(key: _Key, keys: Collection[_Key]) -> style.Look:
    """Return a curve's look; the planner's own colour is that of a reserve as given, if any is."""
    planner, variant, options, given = key
    if variant == "authors" and not options:
        return _AUTHORS
    if variant == "authors":
        options = f"variant={variant} {options}"
    look = style.look(planner, options)
    if given:
        return style.Look(look.colour, look.marker, f"{look.label}, reserve as given")
    if (*key[:3], True) in keys:
        return style.Look("#000000", look.marker, f"{look.label}, reserve by default")
    return look


def _x(point: Point) -> int:
    """Return the bytes at which a point stands."""
    return point.reserved_bytes or point.budget_bytes


def _paper(panel: Axes, task: str, factor: float, entries: dict[str, Any]) -> None:
    curves: dict[str, list[tuple[float, float]]] = {}
    if task in TITLES:
        for planner, points in paper.time_by_memory(TITLES[task]).items():
            curves[planner] = [(p.reserved_bytes / factor, p.relative_time) for p in points]
    elif task in BARS:
        curves = {
            name: [(used * GIB / factor, time)]
            for name, (time, used) in BARS[task].items()  # type: ignore[index]
        }
    if curves:
        entries[_SHOWN] = Line2D([], [], linestyle="--", color=style.PAPER)
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


def _stars(
    panel: Axes, runs: Sequence[Run], papers: str | None, factor: float, entries: dict[str, Any]
) -> None:
    """Draw the bounds of ``runs``, and the paper's of task ``papers`` unless that is None."""
    bottom = panel.get_ylim()[0]
    places = []
    for planner in ("full", "baseline"):
        peaks = [r.summary["peak_allocated_bytes"] for r in runs if r.planner == planner]
        places += [(max(filter(None, peaks)) / factor, True)] if any(peaks) else []
    if papers is not None and papers in TITLES:
        places += [(bound / factor, False) for bound in paper.memory_bounds(TITLES[papers])]
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
        entries[_STARS if ours else _BOUNDS] = Line2D(
            [], [], **_STAR, markerfacecolor="#444444" if ours else "white"
        )
    panel.set_ylim(bottom=bottom)


def _notes(points: Sequence[Point]) -> list[str]:
    kinds = {is_expected(run.steps) for p in points for run in p.runs}
    lines = ["without the steps in which a planner measures"]
    if True in kinds:
        lines[0] = "times: over expected lengths where there are such runs, " + lines[0]
    return lines
