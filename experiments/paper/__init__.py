"""The paper's own figures as data, to print and draw beside this project's results.

Digitised from the figures of Mimose, IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025; SOURCES.md
beside the JSON files says what each holds. Memory comes back in bytes: "GB" means 2**30 bytes in
the paper. Tasks and data sets carry the paper's names ("QA-Bert", "SQuAD").
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

_GIB = 1 << 30
_HISTOGRAM_KEYS = {"SWAG": "S", "SQuAD": "K", "GLUE-QQP": "Q", "UN_PC": "U"}
_BATCH_SIZES = {"SWAG": 16, "SQuAD": 12, "GLUE-QQP": 32, "UN_PC": 8}
_SELECTIONS = {
    "none": "Pytorch",
    "first": "First-encoder",
    "last": "Last-encoder",
    "first two": "First-2encoder",
    "last two": "Last-2encoder",
}
_MEMORY_KEYS = {"SWAG": "SWAG", "SQuAD": "SQuAD", "GLUE-QQP": "QQP", "UN_PC": "UN_PC"}
PEAKS_SHOWN = ("MC-Roberta", "TR-T5", "QA-Bert", "TC-Bert", "OD-R50", "OD-R101")
"""The tasks in Fig 11."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """Share of batches by padded length (Fig 3).

    Attributes:
        batch_size: Samples in a batch.
        first_edge: Lower edge of the first bin, in tokens.
        bin_width: Width of a bin, in tokens.
        shares: Share of the batches in each bin; they sum to one.
    """

    batch_size: int
    first_edge: float
    bin_width: float
    shares: tuple[float, ...]

    @property
    def edges(self) -> tuple[float, ...]:
        """The bins' edges, one more than there are bins."""
        return tuple(self.first_edge + i * self.bin_width for i in range(len(self.shares) + 1))

    @property
    def mean(self) -> float:
        """Mean length, each bin's batches taken to lie at its middle."""
        return self._moment(1)

    @property
    def deviation(self) -> float:
        """Standard deviation of the length; likewise."""
        return math.sqrt(max(self._moment(2) - self.mean**2, 0.0))

    def quantile(self, share: float) -> float:
        """Return the length below which ``share`` of the batches lie, evenly spread in a bin."""
        return float(np.interp(share, self._reached, self.edges))

    def shares_between(self, edges: Sequence[float]) -> np.ndarray:
        """Return the share of the batches between each two of ``edges``."""
        return np.diff(np.interp(edges, self.edges, self._reached))

    @property
    def _reached(self) -> tuple[float, ...]:
        return (0.0, *accumulate(self.shares))

    def _moment(self, power: int) -> float:
        middles = (edge + self.bin_width / 2 for edge in self.edges)
        return sum(share * x**power for share, x in zip(self.shares, middles))


@dataclass(frozen=True, slots=True)
class AreaSummary:
    """What is known of the areas of a detector's padded images, in pixels.

    Attributes:
        mean: Their mean.
        least: The smallest.
        greatest: The largest.
        source: Where this comes from.
    """

    mean: float
    least: int
    greatest: int
    source: str


class MemoryPoint(NamedTuple):
    """Peak memory at one input size (padded length, or height x width for images)."""

    input_size: int
    peak_bytes: int


class TimePoint(NamedTuple):
    """Reserved memory really used, and iteration time relative to plain PyTorch (Fig 10)."""

    reserved_bytes: int
    relative_time: float


def length_histogram(dataset: str) -> Histogram:
    """Return the histogram of padded batch lengths of ``dataset`` (Fig 3).

    Raises:
        ValueError: If the figure does not show ``dataset``.
    """
    data = _load("fig3_hist")
    key = _pick(dataset, _HISTOGRAM_KEYS, "Fig 3")
    first, width, _ = data["edges"][key]
    shares = data["h"][key]
    total = sum(shares)  # 0.995 to 0.999 as drawn: bars too low to see are missing
    return Histogram(_BATCH_SIZES[dataset], first, width, tuple(share / total for share in shares))


def budgets(task: str) -> tuple[int, ...]:
    """Return the budgets, in bytes, that the paper ran a task under; none where it has no such."""
    return tuple(gb * _GIB for gb in _load("budgets").get(task, ()))


def detection_areas(task: str) -> AreaSummary | None:
    """Return the image areas in a log that the paper's authors released, if there is one."""
    found = _load("areas").get(task)
    return None if found is None else AreaSummary(**found)


def unchecked_memory(dataset: str) -> tuple[MemoryPoint, ...]:
    """Return peak memory without checkpointing by padded length (Fig 3).

    Raises:
        ValueError: If the figure does not show ``dataset``.
    """
    return _memory_points(_load("fig3_pts")[_pick(dataset, _MEMORY_KEYS, "Fig 3")])


def peak_by_input_size(task: str) -> dict[int, tuple[MemoryPoint, ...]]:
    """Return Mimose's peak allocated memory by input size, for each budget in bytes (Fig 11).

    Raises:
        ValueError: If the figure does not show ``task``.
    """
    data = _load("fig11")
    key = _pick(task, {name.split(" ", 1)[1]: name for name in data}, "Fig 11")
    return {int(gb) * _GIB: _memory_points(points) for gb, points in data[key].items()}


def layer_selection() -> dict[str, tuple[tuple[int, float], ...]]:
    """Return (sequence length, peak memory in MB) with some encoders recomputed (Fig 9).

    The curves are ``none``, ``first``, ``last``, ``first two`` and ``last two``, after the
    encoders recomputed. The figure does not say how many bytes its MB are; see
    :mod:`mimose_bench.experiments.figures.fig9`. Three or four keys of each curve are no lengths
    but strokes of the figure's legend (fractional, and far from every curve): they are left out.
    """
    data = _load("fig9")
    return {
        curve: tuple(
            sorted((int(float(size)), mb) for size, mb in data[key].items() if _is_whole(size))
        )
        for curve, key in _SELECTIONS.items()
    }


def time_by_memory(task: str) -> dict[str, tuple[TimePoint, ...]]:
    """Return each planner's time against the memory it really used (Fig 10 a-d).

    Raises:
        ValueError: If the figure does not show ``task`` over several budgets.
    """
    data = _load("fig10")
    key = _pick(task, {name: name for name in data if "@" not in name}, "Fig 10")
    return {
        planner: tuple(TimePoint(round(gb * _GIB), time) for gb, time in points)
        for planner, points in data[key].items()
        if planner not in ("lower", "upper")
    }


def memory_bounds(task: str) -> tuple[int, int]:
    """Return bytes reserved with every layer checkpointed, and with none (stars in Fig 10).

    Raises:
        ValueError: If the figure does not show ``task`` over several budgets.
    """
    data = _load("fig10")
    entry = data[_pick(task, {name: name for name in data if "@" not in name}, "Fig 10")]
    return round(entry["lower"] * _GIB), round(entry["upper"] * _GIB)


def _memory_points(pairs: list[list[float]]) -> tuple[MemoryPoint, ...]:
    return tuple(MemoryPoint(round(size), round(gb * _GIB)) for size, gb in pairs)


def _pick(name: str, keys: dict[str, str], figure: str) -> str:
    if name not in keys:
        raise ValueError(f"{figure} of the paper shows {', '.join(keys)}, not {name!r}")
    return keys[name]


def _is_whole(size: str) -> bool:
    return float(size).is_integer()


@functools.cache
def _load(name: str) -> Any:
    text = resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8")
    return json.loads(text)
