"""One function a figure; reads results only.

To add a figure, write a module with ``draw(runs) -> Figure`` and name it in :data:`FIGURES`, or
one with ``draw(result) -> Figure`` of a reproduced figure and name it in :data:`REPRODUCED`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mimose_bench.experiments.distribution import Distribution
from mimose_bench.experiments.figures.result import Reproduction
from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.reading import Run
from mimose_bench.plots import (
    breakdown,
    eviction_breakdown,
    input_sizes,
    layer_selection,
    loss,
    peak_memory,
    step_time,
    style,
    unchecked_memory,
)

FIGURES: dict[str, Callable[..., Any]] = {
    "peak-memory": peak_memory.draw,
    "step-time": step_time.draw,
    "loss": loss.draw,
    "breakdown": breakdown.draw,
}

REPRODUCED: dict[str, tuple[str, Callable[[Reproduction], Any]]] = {
    "fig3": ("unchecked-memory", unchecked_memory.draw),
    "fig5": ("eviction-breakdown", eviction_breakdown.draw),
    "fig9": ("layer-selection", layer_selection.draw),
}
"""File name and function by the name of the reproduced figure."""

__all__ = ["FIGURES", "REPRODUCED", "draw_distribution", "draw_figures", "draw_reproduced"]


def draw_distribution(found: Distribution, folder: str | Path) -> list[Path]:
    """Draw the sizes of a task's batches as PNG and PDF; return the files.

    Raises:
        ValueError: If the folder cannot be written.
    """
    return style.save(input_sizes.draw(found), Path(folder), _file_name(found))


def _file_name(found: Distribution) -> str:
    kind = found.source.partition(":")[0]
    scale = () if found.scale == "full" else (found.scale,)
    return "-".join(["input-sizes", found.task, *scale, kind])


def draw_reproduced(result: Reproduction, folder: str | Path) -> list[Path]:
    """Draw a reproduced figure as PNG and PDF; return the files, none where it has no drawing.

    Raises:
        ValueError: If the folder cannot be written.
    """
    if result.name not in REPRODUCED:
        return []
    name, draw = REPRODUCED[result.name]
    return style.save(draw(result), Path(folder), name)


def draw_figures(
    runs: Sequence[Run],
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    paper: bool = True,
) -> list[Path]:
    """Draw figures as PNG and PDF and return the files written.

    Runs of several tasks are drawn task by task, each in a folder of its own.

    Args:
        runs: The runs to draw.
        folder: Where to write.
        names: Keys of :data:`FIGURES`; all by default.
        paper: Whether to draw the paper's own points beside, where the paper has such.

    Raises:
        ValueError: If a figure's name is unknown, no run has a step, or the folder cannot be
            written.
    """
    for name in names:
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES)
    drawn = [run for run in runs if len(run.steps)]
    if not drawn:
        raise ValueError("none of these runs has a finished step to draw")
    tasks = sorted({str(run.info.get("task")) for run in drawn})
    written: list[Path] = []
    for task in tasks:
        target = Path(folder) / task if len(tasks) > 1 else Path(folder)
        points = peak_memory.paper_points(task) if paper else None
        of_task = [run for run in drawn if str(run.info.get("task")) == task]
        for name in names or FIGURES:
            options = {"paper": points} if name == "peak-memory" else {}
            written += style.save(FIGURES[name](of_task, **options), target, name)
    return written
