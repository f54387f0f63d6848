"""What the figures share: how runs are named, grouped and told apart, and which steps count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pandas as pd

from mimose.units import GIB, MIB
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED, is_expected
from mimose_bench.plots import style

_EXPECTED = "expected lengths"
_WEIGHTED = "a step for each length of an epoch; means weigh it by its share"


def budget_text(budget_bytes: int | None) -> str:
    """Return a budget as figures name it."""
    if budget_bytes is None:
        return "no limit"
    factor, unit = (GIB, "GB") if budget_bytes >= GIB else (MIB, "MB")
    return f"{budget_bytes / factor:.3g} {unit}"


def look(run: Run) -> style.Look:
    """Return how a run's planner is drawn, with what options it has that are not as by default."""
    return style.look(run.planner, run.options_label)


def short_label(run: Run, *, budget: bool = True) -> str:
    """Return planner and budget; with ``budget`` False only the lack of a budget is named."""
    name = look(run).label
    named = budget or run.budget_bytes is None
    return f"{name}, {budget_text(run.budget_bytes)}" if named else name


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a label a run that no other run of its device has.

    It is planner and budget, then as far as needed the kind of lengths, the seed, and what is
    peculiar to the folder's name.
    """
    found = [short_label(run) for run in runs]
    if len({is_expected(run.steps) for run in runs}) > 1:
        found = [
            f"{text}, {_EXPECTED}" if is_expected(run.steps) else text
            for text, run in zip(found, runs, strict=True)
        ]
    found = _tell_apart(found, runs, lambda alike: [f"seed {_seed(run)}" for run in alike])
    return _tell_apart(found, runs, lambda alike: _name_ends([run.name for run in alike]))


def panel_key(run: Run) -> tuple[str, str, str]:
    """Return what runs must share to be drawn in one panel: device, scale and kind of lengths.

    The second is empty at full scale, the third for sampled lengths.
    """
    return run.device_label, scale_text(run), _EXPECTED if is_expected(run.steps) else ""


def scale_text(run: Run) -> str:
    """Return a run's scale as figures name it; empty for the full one."""
    scale = str((run.info.get("config") or {}).get("scale") or "full")
    return "" if scale == "full" else f"scale {scale}"


def bears_paper(run: Run) -> bool:
    """Return whether the paper's points may stand beside: full scale, on CUDA or as a V100."""
    return not scale_text(run) and run.device_label.startswith(
        ("measured on cuda", "simulated v100")
    )


def counted(run: Run) -> pd.DataFrame:
    """Return the steps to draw: over expected lengths none of those that only prepare."""
    return run.steps[run.steps["weight"] != 0]


def finished(run: Run) -> pd.DataFrame:
    """Return the counted steps that ended well: neither out of memory nor given up."""
    steps = counted(run)
    return steps[~steps["outcome"].isin(FAILED)]


def clock_titles(runs: Iterable[Run]) -> dict[str, str]:
    """Return a title for whatever keeps time in ``runs``, by its whole label.

    It is the device's label; the whole one where a device has several clocks.
    """
    devices = {run.time_label: run.device_label for run in runs}
    shared = Counter(devices.values())
    return {whole: device if shared[device] == 1 else whole for whole, device in devices.items()}


def clock_notes(runs: Iterable[Run]) -> list[str]:
    """Return a line for each clock of which more is known than the device's label says."""
    known = {run.time_label for run in runs if run.time_label != run.device_label}
    return [f"times: {label}" for label in sorted(known)]


def length_notes(runs: Iterable[Run]) -> list[str]:
    """Return a line on what expected lengths are, if any run is over such."""
    return [f"{_EXPECTED}: {_WEIGHTED}"] if any(is_expected(run.steps) for run in runs) else []


def alike_notes(runs: Sequence[Run]) -> list[str]:
    """Return a line on runs that a figure of points cannot tell apart, if there are such."""
    groups: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        key = (run.planner_label, run.budget_bytes, run.time_label, *panel_key(run))
        groups.setdefault(key, []).append(run)
    alike = [
        ", ".join(filter(None, (f"{len(group)} runs of {short_label(group[0])}", lengths)))
        for (*_, lengths), group in groups.items()
        if len(group) > 1
    ]
    return [f"drawn alike: {'; '.join(alike)}"] if alike else []


def size_axis(steps: pd.DataFrame) -> tuple[pd.Series, str]:
    """Return each step's place along an axis of input sizes, and the axis's label."""
    if steps["sequence_length"].notna().any():
        return steps["sequence_length"], "padded length (tokens)"
    if steps["image_pixels"].notna().any():
        return steps["image_pixels"], "height x width (pixels)"
    return steps["input_size"], "input size (pixels of the batch)"


def order(run: Run) -> tuple[int, str, bool, int]:
    """Return a key that sorts runs by planner, kind of lengths and budget, the unlimited first."""
    names = list(style.PLANNERS)
    rank = names.index(run.planner) if run.planner in names else len(names)
    return rank, run.planner_label, is_expected(run.steps), run.budget_bytes or 0


def largest(values: Iterable[object]) -> float:
    """Return the largest of the present ``values``; 0 without any."""
    present = [float(v) for v in values if v is not None and not pd.isna(v)]  # type: ignore[arg-type,call-overload]
    return max(present, default=0.0)


def _tell_apart(
    texts: Sequence[str], runs: Sequence[Run], more: Callable[[Sequence[Run]], Sequence[str]]
) -> list[str]:
    """Add ``more`` to the labels that several runs of a device have, where it differs."""
    keys = [(text, run.device_label) for text, run in zip(texts, runs, strict=True)]
    added = list(texts)
    for key, count in Counter(keys).items():
        places = [i for i, other in enumerate(keys) if other == key]
        extra = more([runs[i] for i in places])
        if count > 1 and len(set(extra)) > 1:
            for i, text in zip(places, extra, strict=True):
                added[i] = f"{key[0]}, {text}"
    return added


def _name_ends(names: Sequence[str]) -> list[str]:
    """Return folder names without the parts, joined by hyphens, that all of them begin with."""
    parts = [name.split("-") for name in names]
    same = 0
    while all(len(p) > same + 1 and p[same] == parts[0][same] for p in parts):
        same += 1
    return ["-".join(p[same:]) for p in parts]


def _seed(run: Run) -> object:
    return (run.info.get("config") or {}).get("seed", run.info.get("seed"))
