"""What is inside blocks at any size, from traces of a few: bytes exactly, seconds about."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from mimose.menu import BlockGraph, Traced, course_of
from mimose.planners.auto.traces import Alike
from mimose.planners.mimose.features import Features, Matrix
from mimose.records import Size
from mimose.solvers.menu import Vector, candidates

_MOST_SIZES = 5
"""At so many of the sizes seen is looked for what is worth dropping."""


@dataclass(frozen=True, eq=False)
class Inside:
    """What is inside blocks that are alike, at one size.

    Attributes:
        fit: What this was predicted by.
        bytes: Of each value.
        seconds: Of each operator.
        levels: The peaks within the blocks' backward, one for each use of a value, as
            :class:`mimose.menu.Traced` has them; None if they are unknown.
    """

    fit: Fit
    bytes: Vector
    seconds: Vector
    levels: Vector | None = None

    def rise(self, dropped: tuple[int, ...], own: int) -> int:
        """Return by how many bytes the backward takes more with some values dropped.

        That is in comparison with a block that is recomputed, whose values are all there until
        backward has needed them for the last time.

        Args:
            dropped: The values.
            own: What the backward of the recomputed block takes, above the level before its
                forward. Where that is less than the peaks within have shown (hooks hold what they
                see a little longer), the difference is part of the rise.
        """
        if self.levels is None:
            return 0
        place = self.fit.places.get(dropped)
        if place is None:
            uses, more = _course(self.fit.graph, dropped)
            highest = float((self.levels[uses] + more @ self.bytes).max())
        else:
            highest = float(self._highest[place])
        return round(highest - min(float(self.levels.max()), own))

    @cached_property
    def _highest(self) -> Vector:
        """For each of the fit's candidates the highest peak of the backward."""
        assert self.levels is not None, "it is only asked for where they are known"
        uses, more, starts = self.fit.courses
        return np.maximum.reduceat(self.levels[uses] + more @ self.bytes, starts)


class Fit:
    """Polynomials for blocks that are alike.

    Args:
        alike: The blocks. Times of at least one size are known.

    Attributes:
        blocks: Their numbers.
        graph: Their graph.
        candidates: The sets of values that are worth dropping at any of the sizes seen.
        places: The place of each of them.
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
        self._levels: Matrix | None = None
        shown = ~np.isnan(alike.levels).any(axis=1)
        if shown.any() and alike.levels.shape[1]:
            sizes = [alike.sizes[row] for row in np.flatnonzero(shown)]
            self._level_features = Features(sizes, alike.levels[shown])
            rows = np.array([self._level_features.row(s) for s in sizes])
            self._levels = np.linalg.lstsq(rows, alike.levels[shown], rcond=None)[0]
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
        self.places = {dropped: place for place, dropped in enumerate(self.candidates.sets)}

    @cached_property
    def courses(self) -> tuple[NDArray[np.intp], Matrix, NDArray[np.intp]]:
        """The candidates' courses, one after the other, and where each begins."""
        found = [_course(self.graph, dropped) for dropped in self.candidates.sets]
        starts = np.cumsum([0, *(len(uses) for uses, _ in found)])[:-1]
        uses, more = (np.concatenate(parts) for parts in zip(*found))
        return uses, more, starts

    def at(self, size: Size) -> Inside:
        """Return what is inside the blocks at one size."""
        row = np.array(self._features.row(size))
        levels = None
        if self._levels is not None:
            levels = np.array(self._level_features.row(size)) @ self._levels
        return Inside(
            self,
            np.maximum(np.rint(row @ self._bytes), 0.0),
            np.maximum(row @ self._seconds, 0.0),
            levels,
        )


def _course(graph: BlockGraph, dropped: tuple[int, ...]) -> tuple[NDArray[np.intp], Matrix]:
    """Return, for each moment of a backward, its use and which values are there more, or less."""
    plain = {moment.use: moment.alive for moment in course_of(graph, ())}
    found = dict.fromkeys((m.use, m.alive) for m in course_of(graph, dropped))
    more = np.zeros((len(found), graph.num_values))
    for row, (use, alive) in enumerate(found):
        more[row, list(alive)] += 1.0
        more[row, list(plain[use])] -= 1.0
    return np.array([use for use, _ in found], np.intp), more


def _spread(sizes: tuple[Size, ...]) -> list[Size]:
    """Return a few of the sizes, from the smallest to the largest."""
    ordered = sorted(sizes, key=lambda s: (float(np.prod(s, dtype=np.float64)), s))
    places = np.linspace(0, len(ordered) - 1, min(_MOST_SIZES, len(ordered)))
    return [ordered[round(p)] for p in places]
