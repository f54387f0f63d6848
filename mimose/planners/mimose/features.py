"""What a batch's memory is taken to depend on: as few functions of its size as tell samples apart.

The paper (section IV-C) derives a polynomial of degree two from four classes of operators, of which
attention's scores grow fastest, with the square of the length. Everything is proportional to the
batch, so the features are batch x (1, length, length^2, ...).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mimose.records import Size

Matrix = NDArray[np.float64]

_MOST_PRODUCTS = 2
"""Extents of which products are taken; a size with more of them is one that memory is linear in."""
_INDEPENDENT = 1e-7
# Areas padded to whole windows are nearly the area itself: what tells two of them apart by less
# than this is taken for noise.
_INDEPENDENT_OF_MANY = 1e-3
_SETTLED = 1e-9
"""A fit that is off by less than this share is exact: no column can improve it."""
_WORSE = 1.0
_FOLLOWS = 1.005


class Features:
    """Turns sizes into rows of a least-squares problem.

    Two lengths (an encoder's and a decoder's) give all products up to degree two, three and more
    extents each a column of its own. Of these, a column is taken only if the samples tell it from
    those before it, and one of degree two only if the fit is worse without: twice the variance, or
    no longer exact.

    Args:
        sizes: Sizes of the samples, which all have as many extents.
        targets: A row of figures a sample, which the columns are to explain; without, every column
            that the samples tell apart is taken.

    Attributes:
        num_columns: Number of features.
        constant: Whether the last feature does not depend on the batch.
    """

    def __init__(self, sizes: Sequence[Size], targets: Matrix | None = None) -> None:
        extents = np.array(sizes, np.float64)
        self._scale = np.maximum(extents.max(axis=0), 1.0).tolist()
        self._many = extents.shape[1] - 1 > _MOST_PRODUCTS
        distinct = [len(set(column)) for column in zip(*sizes)][1:]
        degrees = [min(n - 1, 1 if self._many else 2) for n in distinct]
        candidates = _powers(degrees)
        rows = np.array([self._products(s, candidates) for s in sizes])
        # Behind all the others, so that it takes no column's place where samples are few.
        ones = np.ones((len(sizes), int(len({s[0] for s in sizes}) > 1)))
        kept = choose(
            np.hstack([rows, ones]),
            targets,
            needed=[sum(p) < 2 for p in candidates] + [True] * ones.shape[1],
            least=_INDEPENDENT_OF_MANY if self._many else _INDEPENDENT,
        )
        self.constant = len(candidates) in kept
        kept = [i for i in kept if i < len(candidates)]
        self._powers = [candidates[i] for i in kept]
        # What follows from other columns in every sample is expected to do so in a new size.
        bound = [i for i, p in enumerate(candidates) if self._many and sum(p) and i not in kept]
        self._bound = [candidates[i] for i in bound]
        self._relations = np.linalg.lstsq(rows[:, kept], rows[:, bound], rcond=None)[0]
        self.num_columns = len(kept) + self.constant

    def row(self, size: Size) -> list[float]:
        """Return the features of one size; the first one is proportional to the batch alone."""
        row = self._products(size, self._powers)
        if self.constant:
            row.append(1.0)
        return row

    def batch_share(self, size: Size) -> float:
        """Return the batch of ``size`` relative to the largest one seen."""
        return float(size[0] / self._scale[0])

    def follows(self, size: Size) -> bool:
        """Return whether an extent without a column of its own is no larger than those tell."""
        if not self._bound:
            return True
        expected = np.array(self._products(size, self._powers)) @ self._relations
        return bool((self._products(size, self._bound) <= _FOLLOWS * expected).all())

    def _products(self, size: Size, powers: Sequence[tuple[int, ...]]) -> list[float]:
        scale = self._scale
        batch = size[0] / scale[0]
        lengths = [x / s for x, s in zip(size[1:], scale[1:])]
        row = []
        for exponents in powers:
            value = batch
            for length, power in zip(lengths, exponents):
                if power == 1:
                    value *= length
                elif power == 2:
                    value *= length * length
            row.append(value)
        return row

    def for_times(self, design: Matrix, seconds: Matrix | None = None) -> list[int]:
        """Return the columns of ``design`` that explain ``seconds``, which are noisy.

        Nearly equal columns would share the noise out between large numbers of either sign: where
        there are many extents, each has to make the fit better.
        """
        needed = [sum(p) < (1 if self._many else 2) for p in self._powers] + [True] * self.constant
        most = max(2, len(design) // 2) if self._many else None
        return choose(design, seconds, needed, _INDEPENDENT, most)


def choose(
    columns: Matrix,
    targets: Matrix | None,
    needed: Sequence[bool],
    least: float,
    most: int | None = None,
) -> list[int]:
    """Return which columns to fit ``targets`` with, at least the first; see :class:`Features`.

    Args:
        columns: A column a candidate, the simplest first.
        targets: What is to be explained; None takes all that are independent.
        needed: Which columns are taken whenever they are independent.
        least: The least share of a column that must be its own.
        most: How many to take at most.
    """
    kept = _independent(columns, least)[:most]
    if targets is None:
        return kept
    exact = _SETTLED**2 * float((targets * targets).sum())
    unexplained = _unexplained(columns[:, kept], targets)
    while True:
        free = len(columns) - len(kept)
        without = [
            (_unexplained(columns[:, [k for k in kept if k != i]], targets), i)
            for i in reversed(kept[1:])
            if not needed[i]
        ]
        if not without:
            return kept
        left, index = min(without)
        if left > exact and (free == 0 or left / (free + 1) > _WORSE * unexplained / free):
            return kept
        kept.remove(index)
        unexplained = left


def _independent(columns: Matrix, least: float) -> list[int]:
    """Return the columns of which more than a share is no combination of those before them."""
    kept: list[int] = []
    basis = np.zeros((len(columns), 0))
    for index, column in enumerate(columns.T):
        own = column - basis @ (basis.T @ column)
        own -= basis @ (basis.T @ own)
        norm = float(np.linalg.norm(own))
        if kept and norm <= least * float(np.linalg.norm(column)):
            continue
        kept.append(index)
        basis = np.hstack([basis, own[:, None] / norm])
        if len(kept) == len(columns):
            break
    return kept


def _unexplained(columns: Matrix, targets: Matrix) -> float:
    """Return the sum of squares that a fit of ``targets`` leaves."""
    left = targets - columns @ np.linalg.lstsq(columns, targets, rcond=None)[0]
    return float((left * left).sum())


def _powers(degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Return exponents of the extents, lowest total degree first, within each extent's degree."""
    powers: list[tuple[int, ...]] = [()]
    most = max([*degrees, 0])
    for degree in degrees:
        powers = [(*p, d) for p in powers for d in range(degree + 1) if sum(p) + d <= max(most, 1)]
    return sorted(powers, key=lambda p: (sum(p), max(p, default=0), tuple(-x for x in p)))
