"""What is inside blocks at any size, from traces of a few: bytes exactly, seconds about."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from mimose.menu import BlockGraph, Traced, moments_in_bits
from mimose.planners.auto.traces import Alike
from mimose.planners.mimose.features import Features, Matrix
from mimose.records import Size, Work
from mimose.solvers.menu import Candidates, Vector, candidates, rows_of

_MOST_SIZES = 5
"""At so many of the sizes seen is looked for what is worth dropping."""
_ENOUGH_SIZES = 3
_MOST_COURSES = 4096
_NEW_SETS = 4
"""To weigh a set takes so many times as long where it is not known yet what it takes."""


@dataclass(frozen=True, eq=False)
class Inside:
    """What is inside blocks that are alike, at one size.

    Attributes:
        fit: What this was predicted by.
        bytes: Of each value.
        seconds: Of each operator.
        levels: The levels within the blocks' backward as backward comes to each use of a value, and
            then the peaks from there to the next, as :class:`mimose.menu.Traced` has both, but from
            the highest; None if they are unknown.
    """

    fit: Fit
    bytes: Vector
    seconds: Vector
    levels: Vector | None = None

    def rise(self, dropped: tuple[int, ...]) -> int:
        """Return by how many bytes the backward takes more with some values dropped, or less.

        That is in comparison with a block that is recomputed, whose values are all there until
        backward has needed them for the last time.
        """
        if self.levels is None:
            return 0
        place = self.fit.places.get(dropped)
        if place is not None:
            return round(float(self._highest[place]))
        places, more = _course(self.fit.graph, dropped)
        return round(float((self.levels[places] + more @ self.bytes).max()))

    @cached_property
    def _highest(self) -> Vector:
        """For each of the fit's candidates the highest peak of the backward."""
        assert self.levels is not None, "it is only asked for where they are known"
        places, more, starts = self.fit.courses
        return np.maximum.reduceat(self.levels[places] + more @ self.bytes, starts)


class Insides(Mapping[int, Inside]):
    """What is inside blocks, by their numbers, worked out when it is asked for.

    Most steps keep all, and never ask.

    Args:
        find: Works it out.
    """

    def __init__(self, find: Callable[[], Mapping[int, Inside]]) -> None:
        self._find = find

    @cached_property
    def _found(self) -> Mapping[int, Inside]:
        return self._find()

    def __getitem__(self, block: int) -> Inside:
        return self._found[block]

    def __iter__(self) -> Iterator[int]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


class Tally:
    """Counts what fitting takes.

    A column that is fitted counts as an update; each of its figures, and each set of values that is
    weighed, takes about as long as a candidate.
    """

    __slots__ = ("_candidates", "_updates")

    def __init__(self) -> None:
        self._candidates = self._updates = 0

    def fitted(self, columns: int, sizes: int) -> None:
        """Count a fit of so many columns to so many sizes."""
        self._updates += columns
        self._candidates += columns * sizes

    def weighed(self, sets: int) -> None:
        """Count sets of values."""
        self._candidates += sets

    def take(self) -> Work | None:
        """Return what was counted since this was last asked; None if nothing was."""
        if not (self._updates or self._candidates):
            return None
        work = Work(candidates=self._candidates, updates=self._updates)
        self._candidates = self._updates = 0
        return work


class Fit:
    """Polynomials for blocks that are alike.

    Args:
        alike: The blocks. Times of at least one size are known.
        earlier: The last fit to the same blocks, if there was one.
        tally: Counts the work.

    Attributes:
        blocks: Their numbers.
        graph: Their graph.
    """

    def __init__(
        self, alike: Alike, earlier: Fit | None = None, tally: Tally | None = None
    ) -> None:
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
        self._levels = [_Levels.fitted(alike.sizes, levels) for levels in alike.levels]
        self._shown = _spread(alike.sizes)
        self._tally = tally or Tally()
        num_columns = alike.bytes.shape[1] + times.shape[1] + len(self.graph.uses)
        self._tally.fitted(num_columns, len(alike.sizes))
        same = earlier if earlier is not None and earlier.graph == self.graph else None
        self._is_new: bool = same is None or (same._is_new and not same._has_candidates)
        if same is not None and same._serves(self._shown):
            # What is worth dropping at the smallest and the largest is so in between.
            self._shown = same._shown
            derived = ("candidates", "places", "courses")
            self.__dict__.update({k: same.__dict__[k] for k in derived if k in same.__dict__})

    def _serves(self, shown: list[Size]) -> bool:
        """Whether this fit's candidates are good for sizes of which these are a few."""
        own = self._shown
        enough = self._has_candidates and len(own) >= _ENOUGH_SIZES
        return enough and (own[0], own[-1]) == (shown[0], shown[-1])

    @property
    def _has_candidates(self) -> bool:
        return "candidates" in self.__dict__

    @cached_property
    def candidates(self) -> Candidates:
        """The sets of values that are worth dropping at any of the sizes seen."""
        traced = []
        for size in self._shown:
            inside = self.at(size)
            sizes = tuple(int(x) for x in inside.bytes)
            traced.append(Traced(self.blocks[0], self.graph, sizes, tuple(inside.seconds.tolist())))
        found = candidates(self.graph, traced)
        self._tally.weighed(found.weighed * (_NEW_SETS if self._is_new else 1))
        return found

    @cached_property
    def places(self) -> dict[tuple[int, ...], int]:
        """The place of each of them."""
        return {dropped: place for place, dropped in enumerate(self.candidates.sets)}

    def holds(self, dropped: tuple[int, ...]) -> bool:
        """Whether making some values again takes inputs that the blocks do not save."""
        place = self.places.get(dropped)
        if place is None:
            return self.graph.holds(dropped)
        return bool(self.candidates.holds[place])

    @cached_property
    def courses(self) -> tuple[NDArray[np.intp], Matrix, NDArray[np.intp]]:
        """The candidates' courses, one after the other, and where each begins."""
        found = [_course(self.graph, dropped) for dropped in self.candidates.sets]
        starts = np.cumsum([0, *(len(places) for places, _ in found)])[:-1]
        places = np.concatenate([places for places, _ in found])
        more = np.concatenate([more for _, more in found]).astype(np.float64)
        return places, more, starts

    def at(self, size: Size, grads_resident: bool = True) -> Inside:
        """Return what is inside the blocks at one size, in a step of that gradient state."""
        row = np.array(self._features.row(size))
        levels = self._levels[grads_resident]
        return Inside(
            self,
            np.maximum(np.rint(row @ self._bytes), 0.0),
            np.maximum(row @ self._seconds, 0.0),
            None if levels is None else levels.at(size),
        )


@dataclass(frozen=True)
class _Levels:
    """Polynomials for levels.

    Attributes:
        features: What they are polynomials of.
        coefficients: A column a level.
    """

    features: Features
    coefficients: Matrix

    @classmethod
    def fitted(cls, sizes: Sequence[Size], levels: Matrix) -> _Levels | None:
        """Return those for rows of levels, one a size, as far as known; None if none is."""
        shown = ~np.isnan(levels).any(axis=1)
        if not shown.any() or not levels.shape[1]:
            return None
        known, rows = [sizes[int(row)] for row in np.flatnonzero(shown)], levels[shown]
        features = Features(known, rows)
        design = np.array([features.row(s) for s in known])
        return cls(features, np.linalg.lstsq(design, rows, rcond=None)[0])

    def at(self, size: Size) -> Vector:
        """Return the levels at one size."""
        return np.array(self.features.row(size)) @ self.coefficients


@lru_cache(maxsize=_MOST_COURSES)
def _course(
    graph: BlockGraph, dropped: tuple[int, ...]
) -> tuple[NDArray[np.intp], NDArray[np.int8]]:
    """Return, for each moment of a backward, its level's place and which values are there more.

    Or less, which counts below 0. An operator that runs again does so before what is needed is
    there: from the level at which backward came to it. The node itself has peaks of its own.
    """
    plain = {use: alive for use, alive, _ in moments_in_bits(graph, ())}
    count = len(graph.uses)
    found = dict.fromkeys(
        (use if ran else count + use, alive) for use, alive, ran in moments_in_bits(graph, dropped)
    )
    rows = rows_of([alive for _, alive in found], graph.num_values).astype(np.int8)
    before = rows_of([plain[place % count] for place, _ in found], graph.num_values)
    more = rows - before.astype(np.int8)
    return np.array([place for place, _ in found], np.intp), more


def _spread(sizes: tuple[Size, ...]) -> list[Size]:
    """Return a few of the sizes, from the smallest to the largest."""
    ordered = sorted(sizes, key=lambda s: (float(np.prod(s, dtype=np.float64)), s))
    places = np.linspace(0, len(ordered) - 1, min(_MOST_SIZES, len(ordered)))
    return [ordered[round(p)] for p in places]
