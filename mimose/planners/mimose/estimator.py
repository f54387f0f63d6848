"""The lightning estimator: per-block quadratics in the size, all fitted and evaluated at once.

The paper (section IV-C) derives the degree from four classes of operators, of which attention's
scores grow fastest, with the square of the length. Everything is proportional to the batch, so the
features are batch x (1, length, length^2); what a step holds whatever its batch (a dense embedding
gradient) gets a feature of its own as soon as several batch sizes tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimose.costs import Profile
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, Sample
from mimose.planners.mimose.storages import Packing, Storages
from mimose.records import Size

Matrix = NDArray[np.float64]


class Features:
    """Turns sizes into rows of a least-squares problem, with as many columns as samples allow.

    One distinct length gives a constant, two a line, three or more a quadratic; two lengths (an
    encoder's and a decoder's) give all products up to degree two.

    Attributes:
        num_columns: Number of features.
        constant: Whether the first feature does not depend on the batch.
    """

    def __init__(self, sizes: Sequence[Size]) -> None:
        distinct = sorted(set(sizes))
        self._scale = np.maximum(np.array(distinct, np.float64).max(axis=0), 1.0).tolist()
        degrees = [min(len({s[i] for s in distinct}) - 1, 2) for i in range(1, len(distinct[0]))]
        shapes = sorted({s[1:] for s in distinct})
        powers = _powers(degrees)[: len(shapes)]
        # Without columns that no sample could tell apart a fit is exact where it can be.
        self.constant = len({s[0] for s in distinct}) > 1 and len(distinct) > len(powers)
        self._powers = powers
        self.num_columns = len(powers) + self.constant

    def row(self, size: Size) -> list[float]:
        """Return the features of one size."""
        scale = self._scale
        batch = size[0] / scale[0]
        lengths = [x / s for x, s in zip(size[1:], scale[1:])]
        row = [1.0] if self.constant else []
        for powers in self._powers:
            value = batch
            for length, power in zip(lengths, powers):
                if power == 1:
                    value *= length
                elif power == 2:
                    value *= length * length
            row.append(value)
        return row

    def batch_share(self, size: Size) -> float:
        """Return the batch of ``size`` relative to the largest one seen."""
        return float(size[0] / self._scale[0])


def _powers(degrees: Sequence[int]) -> list[tuple[int, ...]]:
    """Return exponents of the lengths, lowest total degree first, within each length's degree."""
    powers: list[tuple[int, ...]] = [()]
    for degree in degrees:
        powers = [(*p, d) for p in powers for d in range(degree + 1) if sum(p) + d <= 2]
    return sorted(powers, key=lambda p: (sum(p), max(p, default=0), tuple(-x for x in p)))


class Estimator:
    """Predicts a :class:`~mimose.costs.Profile` for any size from samples of a few.

    Args:
        samples: At least one sample.
        num_blocks: The model's number of blocks.
        optimizer_peak: See :class:`~mimose.costs.Profile`.
        optimizer_state: See :class:`~mimose.costs.Profile`.

    Attributes:
        fitted_range: The least and the greatest size of the samples, extent by extent.
        num_shapes: How many distinct sizes, the batch left out, the samples have.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        num_blocks: int,
        optimizer_peak: int = 0,
        optimizer_state: int = 0,
    ) -> None:
        sizes = [s.size for s in samples]
        self._num_blocks = num_blocks
        self._optimizer = (optimizer_peak, optimizer_state)
        self._num_bytes = len(PER_BLOCK) * num_blocks + len(OUTSIDE)
        self._features = Features(sizes)
        extents = np.array(sizes)
        self.fitted_range: tuple[Size, Size] = (
            tuple(extents.min(axis=0).tolist()),
            tuple(extents.max(axis=0).tolist()),
        )
        self.num_shapes = len({s[1:] for s in sizes})
        design = np.array([self._features.row(s) for s in sizes])
        targets = np.array([s.bytes for s in samples])
        times = _fit_times(design, np.array([s.seconds for s in samples]))
        self._storages = Storages(samples, design)
        self._coefficients = np.hstack([np.linalg.lstsq(design, targets, rcond=None)[0], times])

    def covers(self, size: Size, slack: int = 0) -> bool:
        """Whether ``size`` is no larger than what the samples show.

        Args:
            size: The size.
            slack: By how much a length may be beyond the largest one seen. A constant shows
                nothing of how memory grows, so it allows for none.
        """
        least, greatest = self.fitted_range
        if len(size) != len(greatest) or size[0] > greatest[0]:
            return False
        return all(
            x <= g + (slack if low < g else 0)
            for x, g, low in zip(size[1:], greatest[1:], least[1:])
        )

    def clip(self, size: Size) -> Size:
        """Return ``size`` with lengths below the fitted range raised to its lower end."""
        least = self.fitted_range[0]
        return (size[0], *(max(x, low) for x, low in zip(size[1:], least[1:])))

    def packing(self, size: Size) -> Packing | None:
        """Return what is lost between tensors at ``size``; None if their sizes are unknown."""
        return self._storages.predict(np.array(self._features.row(size)))

    def predict(self, size: Size) -> Profile:
        """Return the predicted costs of a step at ``size``."""
        row = np.array(self._features.row(size))
        values = row @ self._coefficients
        count, split = self._num_blocks, self._num_bytes
        share = self._features.batch_share(size)
        if share != 1.0 and not self._features.constant:
            # One batch size cannot tell what scales with the batch from what does not. The first
            # column is the intercept: the row counts it as scaling; count it in full instead
            # where that is more.
            intercept = self._coefficients[0] * (1.0 - share)
            values[:split] += np.maximum(intercept[:split], 0.0)
        np.maximum(values, 0.0, out=values)
        numbers = np.rint(values[:split]).astype(np.int64).tolist()
        seconds = values[split:].tolist()
        columns: dict[str, Any] = {
            name: tuple(numbers[i * count : (i + 1) * count]) for i, name in enumerate(PER_BLOCK)
        }
        columns.update(zip(OUTSIDE, numbers[len(PER_BLOCK) * count :]))
        optimizer_peak, optimizer_state = self._optimizer
        return Profile(
            forward_seconds=tuple(seconds),
            optimizer_peak=optimizer_peak,
            optimizer_state=optimizer_state,
            **columns,
        )


def _fit_times(design: Matrix, seconds: Matrix) -> Matrix:
    """Fit forward times; steps that another process disturbed do not count.

    Times that are unknown (NaN: the first iteration's are warm-up) are left out, and so are steps
    whose total is more than three deviations (by the median) off a first fit.
    """
    known = ~np.isnan(seconds).any(axis=1)
    if not known.any():
        return np.zeros((design.shape[1], seconds.shape[1]))
    design, seconds = design[known], seconds[known]
    fit = np.linalg.lstsq(design, seconds, rcond=None)[0]
    off = np.abs((seconds - design @ fit).sum(axis=1))
    bound = 3 * 1.4826 * np.median(off)
    good = off <= bound
    if bound > 0 and design.shape[1] < good.sum() < len(off):
        fit = np.linalg.lstsq(design[good], seconds[good], rcond=None)[0]
    return np.asarray(fit)
