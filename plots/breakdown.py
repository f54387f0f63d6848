"""Where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
from matplotlib.figure import Figure

from mimose_bench.experiments import summary
from mimose_bench.experiments.reading import Run
from mimose_bench.plots import series, style


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the mean seconds of a step's parts, a bar a run, a panel a device, clock and scale.

    Recomputation is part of the backward pass, where it runs. A run in which no step finished has
    no bar: a note names it.

    Raises:
        NothingToDrawError: If no step finished in any run.
    """
    texts = {run.directory: text for run, text in zip(runs, series.labels(runs), strict=True)}
    left_out = [run for run in runs if not len(series.finished(run))]
    runs = [run for run in runs if len(series.finished(run))]
    absent = ", ".join(f"{texts[run.directory]} ({run.device_label})" for run in left_out)
    if not runs:
        raise style.NothingToDrawError("no step finished in any of these runs")
    names = series.clock_titles(runs)
    shares = {run.directory: summary.breakdown(run.steps) for run in runs}
    groups: dict[tuple[str, str], list[Run]] = {}
    for clock in names:
        for run in sorted((r for r in runs if r.time_label == clock), key=series.order):
            groups.setdefault((clock, series.scale_text(run)), []).append(run)
    most = max(map(len, groups.values()))
    with matplotlib.rc_context(style.RC):
        figure, axes = style.panels(len(groups), width=6.2, height=0.9 + 0.42 * most)
        for panel, ((clock, scale), members) in zip(axes, groups.items(), strict=True):
            longest = max(sum(shares[run.directory].values()) for run in members)
            unit, unit_name = style.time_unit(longest)
            for row, run in enumerate(members):
                left = 0.0
                for part, colour in style.PARTS.items():
                    width = shares[run.directory][part] / unit
                    panel.barh(
                        row,
                        width,
                        left=left,
                        color=colour,
                        hatch=style.HATCHES[part],
                        height=0.68,
                        label=part,
                        **style.BAR,
                    )
                    left += width
            panel.set_yticks(range(len(members)), [texts[run.directory] for run in members])
            panel.set_ylim(most - 0.5, -0.5)
            panel.grid(visible=False, axis="y")
            style.title(panel, [names[clock], scale])
            panel.set_xlabel(f"mean step time ({unit_name})")
        style.legend_below(figure, axes, columns=7)
        style.notes(
            figure,
            [
                *series.clock_notes(runs),
                *series.length_notes(runs),
                *([f"left out, no step finished: {absent}"] if absent else []),
            ],
        )
    return figure
