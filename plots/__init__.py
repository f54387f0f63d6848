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
from mimose_bench.experiments.figures.stored import Stored
from mimose_bench.experiments.gathering import Gathered
from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.reading import Run, readable_runs
from mimose_bench.experiments.report.contents import Drawing
from mimose_bench.plots import (
    breakdown,
    eviction_breakdown,
    input_sizes,
    layer_selection,
    loss,
    paired_times,
    peak_by_budget,
    peak_memory,
    relative_time,
    saved_values,
    step_time,
    style,
    timeline,
    unchecked_memory,
)

ACROSS: dict[str, Callable[..., Any]] = {
    "fig10": relative_time.draw,
    "fig11": peak_by_budget.draw,
    "cpu-training": paired_times.draw,
    "auto": relative_time.draw,
    "auto-training": paired_times.draw,
}
"""Figures that show runs of several tasks; drawn where they are asked for."""

FIGURES: dict[str, Callable[..., Any]] = {
    "peak-memory": peak_memory.draw,
    "step-time": step_time.draw,
    "loss": loss.draw,
    "breakdown": breakdown.draw,
    **ACROSS,
}

REPRODUCED: dict[str, tuple[str, Callable[[Reproduction], Any]]] = {
    "fig3": ("unchecked-memory", unchecked_memory.draw),
    "fig4": ("timeline", timeline.draw),
    "fig5": ("eviction-breakdown", eviction_breakdown.draw),
    "fig9": ("layer-selection", layer_selection.draw),
    "auto-menu": ("saved-values", saved_values.draw),
}
"""File name and function by the name of the reproduced figure."""

_UNUSABLE = (LookupError, TypeError, AttributeError, ArithmeticError)
"""What drawing raises where values lack what a figure is drawn from: of other versions, or cut."""

__all__ = [
    "FIGURES",
    "REPRODUCED",
    "draw_distribution",
    "draw_figures",
    "draw_gathered",
    "draw_reproduced",
    "drawings",
    "known_figures",
    "report_drawings",
]


def draw_distribution(found: Distribution, folder: str | Path) -> list[Path]:
    """Draw the sizes of a task's batches in each format; return the files.

    Raises:
        ValueError: If the folder cannot be written.
    """
    return style.save(input_sizes.draw(found), Path(folder), _file_name(found))


def _file_name(found: Distribution) -> str:
    kind = found.source.partition(":")[0]
    scale = () if found.scale == "full" else (found.scale,)
    return "-".join(["input-sizes", found.task, *scale, kind])


def drawings(result: Reproduction, runs: Sequence[Run] = ()) -> dict[str, Any]:
    """Return the drawings of a reproduced figure by their file names, none if it has none.

    Args:
        result: What its check found.
        runs: The runs that the check recorded, if it did.

    Raises:
        NothingToDrawError: If the runs hold nothing that the figure shows.
    """
    if result.name in REPRODUCED:
        name, draw = REPRODUCED[result.name]
        return {name: draw(result)}
    if result.name in FIGURES and any(len(run.steps) for run in runs):
        return {result.name: FIGURES[result.name]([run for run in runs if len(run.steps)])}
    return {}


def report_drawings(
    outcomes: Sequence[Stored], folder: Path
) -> tuple[dict[str, list[Drawing]], list[str]]:
    """Return figures for a report by the names of their checks, and what could not be drawn.

    Args:
        outcomes: Outcomes of checks.
        folder: The folder that they and the runs they recorded lie in.
    """
    found: dict[str, list[Drawing]] = {}
    problems = []
    for outcome in outcomes:
        if (result := outcome.result) is None:
            continue
        if outcome.is_thinned:
            problems.append(f"{outcome.name} has no figure: its values were thinned out")
            continue
        runs, passed_over = readable_runs(folder / "runs" / outcome.name)
        problems += passed_over
        alt = (
            f"{result.title[:1].upper()}{result.title[1:]} ({result.source}), {result.device_label}"
        )
        try:
            drawn = drawings(result, runs)
        except style.NothingToDrawError as error:
            problems.append(f"{outcome.name} has no figure: {error}")
            continue
        except (ValueError, *_UNUSABLE) as error:
            problems.append(f"the figure of {outcome.name} could not be drawn: {error!r}")
            continue
        found[outcome.name] = [
            Drawing(name=name, svg=style.to_svg(figure), alt=alt) for name, figure in drawn.items()
        ]
    return found, problems


def draw_reproduced(
    result: Reproduction, folder: str | Path, runs: Sequence[Run] = ()
) -> list[Path]:
    """Draw a reproduced figure in each format; return the files, none if nothing can be drawn.

    Args:
        result: What its check found.
        folder: Where to write.
        runs: The runs that the check recorded, if it did.

    Raises:
        ValueError: If the folder cannot be written.
    """
    try:
        found = drawings(result, runs).items()
    except style.NothingToDrawError:
        return []
    return [path for name, figure in found for path in style.save(figure, Path(folder), name)]


def known_figures(names: Sequence[str]) -> tuple[str, ...]:
    """Return ``names``, each the name of a figure of runs or of a reproduced one.

    Raises:
        ValueError: If one is neither; the nearest is named.
    """
    known = {**FIGURES, **REPRODUCED}
    for name in names:
        if name not in known:
            raise unknown_name("figure", name, known)
    return tuple(names)


def draw_gathered(
    found: Gathered,
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    paper: bool = True,
    say: Callable[[str], None] | None = None,
) -> list[Path]:
    """Draw figures of runs and of reproduced values; return the files written.

    Args:
        found: What to draw.
        folder: Where to write; values of several folders go to folders of their own in it.
        names: Names of figures; all by default.
        paper: Whether to draw the paper's own points beside, in figures of runs.
        say: Is told what is skipped.

    Raises:
        ValueError: If there is nothing to draw as one of ``names``, or at all, or the folder
            cannot be written.
    """
    written: list[Path] = []
    of_runs = [name for name in names if name in FIGURES]
    if found.runs and (of_runs or not names):
        written += draw_figures(found.runs, folder, of_runs, paper=paper, say=say)
    sources = {source for source, _ in found.outcomes}
    for source, outcome in found.outcomes:
        if outcome.result is None or (names and outcome.name not in names) or outcome.is_thinned:
            continue
        target = Path(folder) / source.resolve().name if len(sources) > 1 else Path(folder)
        runs, _ = readable_runs(source / "runs" / outcome.name)
        try:
            written += draw_reproduced(outcome.result, target, runs)
        except _UNUSABLE as error:
            problem = f"the figure of {outcome.name} in {source} could not be drawn: {error!r}"
            if names or say is None:
                raise ValueError(f"{problem}; repeat the check") from error
            say(f"warning: {problem}")
    if not written:
        wanted = ", ".join(names) or "a figure"
        raise ValueError(f"nothing that was given can be drawn as {wanted}")
    return written


def draw_figures(
    runs: Sequence[Run],
    folder: str | Path,
    names: Sequence[str] = (),
    *,
    paper: bool = True,
    say: Callable[[str], None] | None = None,
) -> list[Path]:
    """Draw figures in each format and return the files written.

    Runs of several tasks are drawn task by task, each in a folder of its own, but for the figures
    that show several tasks.

    Args:
        runs: The runs to draw.
        folder: Where to write.
        names: Keys of :data:`FIGURES`; by default all but those of several tasks.
        paper: Whether to draw the paper's own points beside, where the paper has such.
        say: Is told what is skipped: figures that were not asked for by name, and single tasks,
            that have nothing to draw.

    Raises:
        ValueError: If a figure's name is unknown, there is nothing to draw as one of ``names``, no
            run has a step, or the folder cannot be written. Nothing is written then, but for the
            last.
    """
    for name in names:
        if name not in FIGURES:
            raise unknown_name("figure", name, FIGURES)
    drawn = [run for run in runs if len(run.steps)]
    if not drawn:
        raise ValueError("none of these runs has a finished step to draw")
    made: list[tuple[Path, str, Any]] = []
    for name in names or (name for name in FIGURES if name not in ACROSS):
        missing = []
        several = [(Path(folder), drawn)] if name in ACROSS else _by_task(drawn, Path(folder))
        count = len(made)
        for target, members in several:
            try:
                made.append((target, name, _figure(name, members, paper)))
            except style.NothingToDrawError as error:
                missing.append((target.name, str(error)))
        if names and len(made) == count:
            raise ValueError(f"there is nothing to draw as {name}: {missing[0][1]}")
        for task, why in missing:
            which = f"{name} of {task}" if len(several) > 1 else name
            if say is not None:
                say(f"warning: {which} was skipped: {why}")
    return [path for target, name, figure in made for path in style.save(figure, target, name)]


def _by_task(runs: Sequence[Run], folder: Path) -> list[tuple[Path, list[Run]]]:
    """Return the runs of each task and the folder for their figures."""
    tasks: dict[str, list[Run]] = {}
    for run in runs:
        tasks.setdefault(str(run.info.get("task")), []).append(run)
    several = len(tasks) > 1
    return [(folder / task if several else folder, tasks[task]) for task in sorted(tasks)]


def _figure(name: str, runs: Sequence[Run], paper: bool) -> Any:
    """Return the figure ``name`` of ``runs``, of one task unless it is one of several."""
    if name in ACROSS:
        return ACROSS[name](runs, paper)
    if name == "peak-memory":
        points = peak_memory.paper_points(str(runs[0].info.get("task"))) if paper else None
        return peak_memory.draw(runs, points)
    return FIGURES[name](runs)
