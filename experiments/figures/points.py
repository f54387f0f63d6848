"""Runs as the points of Fig 10: time relative to plain training, and memory really used.

A point is a task under a planner and a budget. Its time comes from a run over expected lengths
where there is one, its memory from runs over sampled lengths, whose order decides what is reserved.
Pure functions of runs.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from mimose_bench.experiments.comparing import COMPARED, Ratio, pair, time_ratio
from mimose_bench.experiments.labels import options_label
from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED, LEARNING_PHASES, is_expected

_TOLD = ("variant", "reserve", "trigger")
"""Options that a point has as fields of their own."""

_NOT_SHARED = COMPARED - {"steps"}


@dataclass(kw_only=True)
class Point:
    """A task under a planner and a budget.

    Attributes:
        task: The task's name.
        planner: The planner's name.
        variant: Mimose's variant; empty for other planners.
        options: Other options that are not as by default, in words.
        own: The reserve and the trigger that a tensor-level planner was given; empty without.
        budget_bytes: The budget.
        device_label: Where its runs were made.
        expected: The run over expected lengths, and the baseline's.
        sampled: Likewise those over sampled lengths, one a seed.
    """

    task: str
    planner: str
    variant: str
    options: str
    own: str
    budget_bytes: int
    device_label: str
    expected: tuple[Run, Run] | None = None
    sampled: list[tuple[Run, Run]] = field(default_factory=list)

    @property
    def runs(self) -> list[Run]:
        """All its runs."""
        return [mine for mine, _ in self._pairs]

    @property
    def finished(self) -> bool:
        """Whether every run ended well."""
        return all(run.info["outcome"] == "done" for run in self.runs)

    @functools.cached_property
    def time(self) -> Ratio | None:
        """Time relative to the baseline without steps of measuring; None unless it finished."""
        if not self.finished:
            return None
        pairs = [self.expected] if self.expected else self.sampled[:1]
        return time_ratio(pair(pairs[0][1].steps, pairs[0][0].steps), learning=False)

    @functools.cached_property
    def whole_time(self) -> Ratio | None:
        """The same over sampled lengths, steps of measuring among them."""
        if not self.sampled or not self.finished:
            return None
        mine, reference = self.sampled[0]
        return time_ratio(pair(reference.steps, mine.steps))

    @property
    def reserved_bytes(self) -> int | None:
        """Most bytes reserved over runs of sampled lengths that finished."""
        return self._most("peak_reserved_bytes", [mine for mine, _ in self.sampled])

    @property
    def allocated_bytes(self) -> int | None:
        """Most bytes allocated."""
        return self._most("peak_allocated_bytes", self.runs)

    @property
    def _pairs(self) -> list[tuple[Run, Run]]:
        return ([self.expected] if self.expected else []) + self.sampled

    def _most(self, key: str, runs: Sequence[Run]) -> int | None:
        peaks = [run.summary[key] for run in runs if run.info["outcome"] == "done"]
        return max((int(peak) for peak in peaks if peak is not None), default=None)


def points_of(runs: Iterable[Run]) -> list[Point]:
    """Return the points that runs make; those without a baseline of their settings make none."""
    runs = [run for run in runs if len(run.steps)]
    references = {
        _setting(run): run for run in runs if run.planner == "baseline" and run.budget_bytes is None
    }
    found: dict[tuple[Any, ...], Point] = {}
    for run in runs:
        reference = references.get(_setting(run))
        if run.budget_bytes is None or reference is None:
            continue
        config = run.info.get("config") or {}
        variant = (config.get("variant") or "printed") if run.planner == "mimose" else ""
        identity = {
            "task": str(run.info["task"]),
            "planner": run.planner,
            "variant": variant,
            "options": options_label(run.planner, config, _TOLD),
            "own": own(config.get("reserve"), config.get("trigger")),
            "budget_bytes": run.budget_bytes,
            "device_label": run.device_label,
        }
        point = found.setdefault(tuple(identity.values()), Point(**identity))
        if is_expected(run.steps):
            point.expected = run, reference
        else:
            point.sampled.append((run, reference))
    return list(found.values())


def own(reserve: object, trigger: object) -> str:
    """Return in words what a tensor-level planner was given."""
    parts = [reserve and f"{reserve} left", trigger and f"trigger {trigger}"]
    return ", ".join(part for part in parts if isinstance(part, str))


def over(mine: Point, other: Point) -> Ratio | None:
    """Return the other's time over mine, step by step, without those in which mine measured.

    None unless both finished runs over the same kind of lengths.
    """
    if not (mine.finished and other.finished):
        return None
    both = (
        (mine.expected, other.expected)
        if mine.expected and other.expected
        else (mine.sampled[0], other.sampled[0])
        if mine.sampled and other.sampled
        else None
    )
    if both is None:
        return None
    found = time_ratio(pair(both[1][0].steps, both[0][0].steps), learning=False)
    if found is None:
        return None
    low, high = (None if end is None else 1 / end for end in (found.high, found.low))
    return Ratio(1 / found.value, low, high, found.num_pairs)


def with_sheltered(point: Point, share_of_epoch: float) -> float | None:
    """Return the time relative to the baseline of a run of so much of an epoch.

    Of a run over expected lengths; what its steps of measuring took longer than the baseline at
    their lengths is spread over the whole.
    """
    settings = {} if not point.expected else point.expected[0].info.get("task_settings") or {}
    ratio = point.time
    if point.expected is None or ratio is None or not settings.get("num_examples"):
        return None
    mine, reference = point.expected
    steps = mine.steps[(mine.steps["step"] > 0) & ~mine.steps["outcome"].isin(FAILED)]
    steps = steps[steps["phase"].isin(LEARNING_PHASES)]
    plain = reference.steps[reference.steps["weight"] > 0].sort_values("input_size")
    sizes, seconds, weights = (
        plain[name].to_numpy(dtype=float) for name in ("input_size", "step_seconds", "weight")
    )
    usual = np.interp(steps["input_size"].to_numpy(dtype=float), sizes, seconds)
    extra = float((steps["step_seconds"].to_numpy(dtype=float) - usual).sum())
    count = share_of_epoch * settings["num_examples"] / settings["batch_size"]
    whole = count * float((weights * seconds).sum() / weights.sum())
    return ratio.value + extra / whole


def mean_time(points: Sequence[Point]) -> float | None:
    """Return the mean of the relative times that there are."""
    found = [ratio.value for point in points if (ratio := point.time) is not None]
    return fmean(found) if found else None


def _setting(run: Run) -> tuple[Any, ...]:
    config = {
        key: value
        for key, value in (run.info.get("config") or {}).items()
        if key not in _NOT_SHARED
    }
    return run.info.get("task"), run.time_label, repr(sorted(config.items(), key=lambda i: i[0]))
