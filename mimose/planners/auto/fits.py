"""What is inside blocks at any size, from traces of a few: bytes exactly, seconds about."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mimose.menu import BlockGraph, Traced
from mimose.planners.auto.traces import Alike
from mimose.planners.mimose.features import Features
from mimose.records import Size
from mimose.solvers.menu import Vector, candidates

_MOST_SIZES = 5
"""At so many of the sizes seen is looked for what is worth dropping."""


@dataclass(frozen=True, eq=False, slots=True)
class Inside:
    """What is inside blocks that are alike, at one size.

    Attributes:
        fit: What this was predicted by.
        bytes: Of each value.
        seconds: Of each operator.
    """

    fit: Fit
    bytes: Vector
    seconds: Vector


class Fit:
    """Polynomials for blocks that are alike.

    Args:
        alike: The blocks. Times of at least one size are known.

    Attributes:
        blocks: Their numbers.
        graph: Their graph.
        candidates: The sets of values that are worth dropping at any of the sizes seen.
    """

    def __init__(self, alike: Alike) -> None:
        self.blocks = alike.blocks
        self.graph: BlockGraph = alike.graph
        self._features = Features(alike.sizes, alike.bytes)
        design = np.array([self._features.row(s) for s in alike.sizes])
        self._bytes = np.linalg.lstsq(design, alike.bytes, rcond=None)[0]
        known = ~np.isnan(alike.seconds).any(axis=1)
        times, rows = alike.seconds[known], design[known]
        columns = self._features.for_times(rows, times)
        self._seconds = np.zeros((design.shape[1], times.shape[1]))
        self._seconds[columns] = np.linalg.lstsq(rows[:, columns], times, rcond=None)[0]
        found = [self.at(s) for s in _spread(alike.sizes)]
        self.candidates = candidates(
            self.graph,
            [
                Traced(
                    self.blocks[0],
                    self.graph,
                    tuple(int(x) for x in inside.bytes),
                    tuple(inside.seconds.tolist()),
                )
                for inside in found
            ],
        )

    def at(self, size: Size) -> Inside:
        """Return what is inside the blocks at one size."""
        row = np.array(self._features.row(size))
        return Inside(
            self,
            np.maximum(np.rint(row @ self._bytes), 0.0),
            np.maximum(row @ self._seconds, 0.0),
        )


def _spread(sizes: tuple[Size, ...]) -> list[Size]:
    """Return a few of the sizes, from the smallest to the largest."""
    ordered = sorted(sizes, key=lambda s: (float(np.prod(s, dtype=np.float64)), s))
    places = np.linspace(0, len(ordered) - 1, min(_MOST_SIZES, len(ordered)))
    return [ordered[round(p)] for p in places]
