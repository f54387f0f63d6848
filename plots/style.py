"""The one look of every figure: colour, marker and label a planner; panels, saving.

Colours are Okabe and Ito's, told apart with any colour vision; markers tell planners apart in
print without colour. Figures are built without pyplot, so nothing global is touched.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mimose.units import GIB, KIB, MIB
from mimose_bench.experiments.files import write_bytes

RC = {
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "savefig.dpi": 150,
    "pdf.fonttype": 42,
    # Text stays text: it can be searched, read aloud and scaled.
    "svg.fonttype": "none",
    "svg.hashsalt": "mimose-bench",
}

FORMATS: dict[str, dict[str, None]] = {
    "png": {},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
"""What figures are written as. Without a date the same rows give the same file."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a planner is drawn."""

    colour: str
    marker: str
    label: str


PLANNERS: dict[str, Look] = {
    "baseline": Look("#444444", "o", "Baseline"),
    "full": Look("#E69F00", "s", "Full recomputation"),
    "selective": Look("#CC79A7", "P", "Selective"),
    "fixed": Look("#999999", "X", "Fixed plan"),
    "sublinear": Look("#56B4E9", "^", "Sublinear"),
    "sublinear-greedy": Look("#1F6F9C", "2", "Sublinear, greedy"),
    "sqrt-n": Look("#332288", "p", "Square root of n"),
    "periodic": Look("#AA4499", "H", "Periodic"),
    "revolve": Look("#66C2A5", "8", "Revolve"),
    "dtr": Look("#D55E00", "v", "DTR"),
    "mimose": Look("#0072B2", "D", "Mimose"),
    "auto": Look("#C51B7D", "*", "Auto"),
    "rotor": Look("#009E73", "<", "Rotor"),
    "checkmate": Look("#B8A800", ">", "Checkmate"),
    "checkmate-lp": Look("#882255", "d", "Checkmate, relaxed"),
    "delta": Look("#8C510A", "h", "DELTA"),
}
"""A line a planner. One from outside gets the next of ``_OTHERS``, by its name alone."""

UNFILLED = ("+", "2")
"""Markers of lines, which have no inside."""

_OTHERS = ("#6A3D9A", "#1B7837", "#A6761D", "#7570B3")

PAPER = "#888888"
"""The paper's own points."""


class NothingToDrawError(ValueError):
    """What was given holds nothing that the figure shows; its text says what is missing."""


BUDGET_MARKERS = "os^DvPX<>ph"
"""Markers of budgets, the smallest first: a figure that shows one planner tells budgets by them."""

PARTS: dict[str, str] = {
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "optimizer": "#009E73",
    "collector": "#E69F00",
    "estimator": "#D55E00",
    "scheduler": "#CC79A7",
    "other": "#BBBBBB",
}
"""A colour for each part of a step."""

HATCHES: dict[str, str] = dict(
    zip(PARTS, ("", "///", "...", "xxx", "\\\\\\", "---", "++"), strict=True)
)
"""A hatching for each part, which tells neighbours apart without colour."""

BAR: dict[str, Any] = {"edgecolor": "white", "linewidth": 0.5}
"""How the parts of a bar are edged; the edge's colour is the hatching's."""


def budget_looks(budgets: Collection[int]) -> dict[int, tuple[Any, str]]:
    """Return a colour and a marker for each budget, which tell them apart without the other."""
    shades = colormaps["viridis"]
    return {
        budget: (
            shades(0.85 * i / max(len(budgets) - 1, 1)),
            BUDGET_MARKERS[i % len(BUDGET_MARKERS)],
        )
        for i, budget in enumerate(sorted(budgets))
    }


def name_line(panel: Axes, height: float, text: str, colour: Any) -> None:
    """Write what a horizontal line stands for just above its left end.

    Peaks grow with the input, so that there is room on the left.

    Args:
        panel: The panel.
        height: The line's height, in the axis's unit.
        text: What it stands for.
        colour: The line's colour.
    """
    panel.annotate(
        text,
        (0, height),
        xycoords=("axes fraction", "data"),
        xytext=(3, 2),
        textcoords="offset points",
        color=colour,
        fontsize=7,
    )


def look(planner: str, options: str = "") -> Look:
    """Return how ``planner`` is drawn.

    Args:
        planner: Its name.
        options: What it is given otherwise than by default, in words. Such a planner has its
            colour and another marker.
    """
    if options:
        plain = look(planner)
        others = [marker for marker in BUDGET_MARKERS if marker != plain.marker]
        marker = others[sum(options.encode()) % len(others)]
        return Look(plain.colour, marker, f"{plain.label} {options}")
    if planner in PLANNERS:
        return PLANNERS[planner]
    name = planner.rpartition(":")[2]
    return Look(_OTHERS[sum(name.encode()) % len(_OTHERS)], "*", name)


def panels(count: int, *, width: float = 4.2, height: float = 3.1, **options: Any) -> Any:
    """Return a figure of ``count`` panels and its axes in order, at most three in a row."""
    columns = 2 if count == 4 else min(count, 3)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(max(width * columns, 5.6), height * rows + 0.5), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **options).flatten().tolist()
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def title(panel: Axes, parts: Sequence[str], width: float = 4.2) -> None:
    """Put ``parts`` above a panel, comma between; what does not fit goes on a further line.

    Args:
        panel: The panel.
        parts: What the title names; empty ones are left out.
        width: The panel's width in inches.
    """
    most = int(11 * width)
    lines: list[str] = []
    for part in filter(None, parts):
        if lines and len(lines[-1]) + len(part) + 2 <= most:
            lines[-1] += f", {part}"
        else:
            lines += textwrap.wrap(part, most)
    panel.set_title("\n".join(lines))


def notes(figure: Figure, lines: Sequence[str]) -> None:
    """Put what holds for the whole figure above it, small, wrapped at its width."""
    if lines:
        width = int(15 * figure.get_figwidth())
        text = "\n".join(textwrap.fill(line, width) for line in lines)
        figure.suptitle(text, fontsize=7.5, color="#555555")


def legend_below(
    figure: Figure,
    axes: Sequence[Axes],
    columns: int = 4,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Put one legend for all panels below them, clear of the data; an entry a label.

    Args:
        figure: The figure.
        axes: Panels whose labelled artists are listed.
        columns: Most entries in a row; fewer where they would not fit.
        extra: More artists by their labels, listed last.
    """
    entries: dict[str, Any] = {}
    for panel in axes:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    entries |= extra or {}
    if entries:
        longest = max(len(label) for label in entries)
        fitting = max(1, int(figure.get_figwidth() * 14 // (longest + 6)))
        figure.legend(
            entries.values(),
            entries.keys(),
            loc="outside lower center",
            ncols=min(columns, fitting, len(entries)),
        )


def memory_unit(largest_bytes: float) -> tuple[float, str]:
    """Return the unit that suits an axis up to ``largest_bytes``, in bytes, and its name."""
    for factor, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if largest_bytes >= factor:
            return float(factor), name
    return 1.0, "bytes"


def time_unit(largest_seconds: float) -> tuple[float, str]:
    """Return the unit that suits an axis up to ``largest_seconds``, in seconds, and its name."""
    for factor, name in ((1.0, "s"), (1e-3, "ms")):
        if largest_seconds >= factor:
            return factor, name
    return 1e-6, "\N{MICRO SIGN}s"


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name`` into ``folder`` in each of :data:`FORMATS` and return the paths.

    Raises:
        ValueError: If the folder cannot be written.
    """
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with matplotlib.rc_context(RC):
            for kind, metadata in FORMATS.items():
                data = io.BytesIO()
                figure.savefig(data, format=kind, metadata=metadata)
                paths.append(folder / f"{name}.{kind}")
                write_bytes(paths[-1], data.getvalue())
    except OSError as error:
        raise ValueError(
            f"cannot write figures to {folder} ({error.strerror or error}): "
            "name a folder that can be written with --out"
        ) from error
    return paths


def to_svg(figure: Figure) -> str:
    """Return a figure as an SVG document."""
    text = io.StringIO()
    with matplotlib.rc_context(RC):
        figure.savefig(text, format="svg", metadata=FORMATS["svg"])
    return text.getvalue()
