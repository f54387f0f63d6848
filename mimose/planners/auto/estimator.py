"""Which predictions are good: those that the samples' own errors reach little enlarged."""

from __future__ import annotations

from typing import Any

import numpy as np

from mimose.planners.mimose.estimator import Estimator
from mimose.records import Size

_MOST_LEVERAGE = 2.0
"""Errors of the samples may come out so many times as large."""
_REACH = 30.0
"""The same for a size that is measured now, under a plan that leaves room for them."""
_FURTHEST = 1.25
_NOISE = 0.005
_ENOUGH_SHAPES = 3


class CarefulEstimator(Estimator):
    """Tells by how samples lie whether a size is near enough to them.

    A quadratic through three lengths of which two are nearly equal can be far off between them and
    the third, and one through three that are well apart is good a little beyond them. How much
    larger the samples' errors come out at a size, its *leverage*, follows from the sizes alone.

    That is for one extent that varies, beside the batch, and for three different sizes or more;
    otherwise what is between the samples is good, as for Mimose.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        varying = int((self._extents[:, 1:] != self._extents[0, 1:]).any(axis=0).sum())
        self._judges = varying == 1 and self.num_shapes >= _ENOUGH_SHAPES
        self._inverse = np.linalg.pinv(self._design)

    def leverage(self, size: Size) -> float:
        """Return how many times as large the samples' errors are at a size."""
        row = np.array(self._features.row(size)) @ self._inverse
        return float(np.sqrt(row @ row))

    def covers(self, size: Size, slack: int = 0) -> bool:
        """Whether predictions for a size are good; see :meth:`Estimator.covers`."""
        if not self._judges:
            return super().covers(size, slack)
        least, greatest = self.fitted_range
        # What never varied shows nothing of how memory grows with it.
        near = len(size) == len(greatest) and all(
            x <= (g if low == g else _FURTHEST * g) for x, g, low in zip(size, greatest, least)
        )
        return near and size[0] <= greatest[0] and self.leverage(size) <= _MOST_LEVERAGE

    def reaches(self, size: Size) -> bool:
        """Whether a prediction for a size is off by no more than :meth:`doubt`.

        It takes samples enough to be wrong about, and a size that is not many times theirs.
        """
        return self._judges and self.determined and self.leverage(size) <= _REACH

    def doubt(self, size: Size) -> int:
        """Return by how many bytes a prediction may be off because samples are.

        A few samples do not show how they scatter, so half a percent is taken for that at least.
        """
        doubt = super().doubt(size)
        if not self._judges:
            return doubt
        return max(doubt, int(_NOISE * self.leverage(size) * self._measured.max()))

    def clip(self, size: Size) -> Size:
        """Return ``size``, its lengths raised to the least ones seen if it is too far below."""
        if self._judges and self.leverage(size) <= _MOST_LEVERAGE:
            return size
        return super().clip(size)
