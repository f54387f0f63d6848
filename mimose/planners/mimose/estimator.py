"""The lightning estimator: per-block quadratics in the size, all fitted and evaluated at once.

What the features are is :mod:`mimose.planners.mimose.features`'s affair. Everything is proportional
to the batch but for what a step holds whatever its batch (a dense embedding gradient): that gets a
feature of its own as soon as several batch sizes tell the two apart, and is bounded until then.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mimose.costs import Profile
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, Row, Sample
from mimose.planners.mimose.features import Features, Matrix
from mimose.planners.mimose.storages import Packing, Storages
from mimose.records import Size

_LEAST_FREEDOM = 3
"""Samples beyond the fit's columns that it takes to tell how samples scatter."""
_ERRORS = 4.0
"""Standard errors. One odd sample of ten, at an end of their range, hides much of itself: with it
the error is up to three of those that are seen."""


class Estimator:
    """Predicts a :class:`~mimose.costs.Profile` for any size from samples of a few.

    Args:
        samples: At least one sample.
        num_blocks: The model's number of blocks.
        optimizer_peak: See :class:`~mimose.costs.Profile`.
        optimizer_state: See :class:`~mimose.costs.Profile`.
        fixed: A row as :func:`~mimose.planners.mimose.collector.to_row` returns it: the most that
            may not depend on the batch. It matters only where an extent never varied, so that
            what grows with it cannot be told from that; unbounded by default.
        grads_resident: Whether the steps that are predicted begin with gradients.
        packed: Whether memory between tensors is lost, as with segments of fixed sizes.

    Attributes:
        grads_resident: The same.
        places: For the planner to note, by size and what its lengths are rounded up to multiples
            of, whether the samples cover it, what it rounds up to and whether it is below them.
        fitted_range: The least and the greatest size of the samples, extent by extent.
        num_shapes: How many distinct sizes, the batch left out, the samples have.
        determined: Whether there are samples enough that the fit can be wrong about them. One that
            goes through all of them, in several extents, may be far off between them.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        num_blocks: int,
        optimizer_peak: int = 0,
        optimizer_state: int = 0,
        fixed: Row | None = None,
        grads_resident: bool = True,
        *,
        packed: bool = True,
    ) -> None:
        self.grads_resident = grads_resident
        self.places: dict[tuple[Size, int], tuple[bool, Size, bool]] = {}
        sizes = [s.size for s in samples]
        self._num_blocks = num_blocks
        self._optimizer = (optimizer_peak, optimizer_state)
        self._num_bytes = len(PER_BLOCK) * num_blocks + len(OUTSIDE)
        targets = np.array([s.bytes for s in samples])
        # Of all that is measured activations are the least noisy, and they have every term.
        self._features = Features(sizes, targets[:, :num_blocks])
        self._extents = extents = np.array(sizes)
        self._measured = targets
        varying = int((extents != extents[0]).any(axis=0).sum())
        self.determined = varying < 2 or len(sizes) > self._features.num_columns
        self._is_clamped = varying > 1
        self.fitted_range: tuple[Size, Size] = (
            tuple(extents.min(axis=0).tolist()),
            tuple(extents.max(axis=0).tolist()),
        )
        self.num_shapes = len({s[1:] for s in sizes})
        design = np.array([self._features.row(s) for s in sizes])
        times = _fit_times(self._features, design, np.array([s.seconds for s in samples]))
        self._storages = Storages(samples, design) if packed else None
        self._design = design
        self._coefficients = np.hstack([np.linalg.lstsq(design, targets, rcond=None)[0], times])
        # The first column counts the intercept as scaling with the batch, which one batch size
        # cannot tell. What does not is counted in full instead, where that is more.
        intercept = np.maximum(self._coefficients[0, : self._num_bytes], 0.0)
        if fixed is not None and self._hides_an_extent():
            intercept = np.minimum(intercept, fixed)
        self._intercept = intercept

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
        return self._features.follows(size) and all(
            x <= g + (slack if low < g else 0)
            for x, g, low in zip(size[1:], greatest[1:], least[1:])
        )

    def doubt(self, size: Size) -> int:
        """Return by how many bytes a prediction may be off because samples are.

        Some standard errors of the noisiest figure. What scatters the samples (memory that is freed
        a moment later than usual, experts that are chosen) does little within their range, and more
        with the square of the distance from it. 0 where samples are hardly more than the columns of
        the fit, so that nothing can be told of how they scatter.
        """
        freedom = len(self._design) - self._features.num_columns
        if freedom < _LEAST_FREEDOM:
            return 0
        inverse = np.linalg.pinv(self._design)
        left = self._measured - self._design @ (inverse @ self._measured)
        variance = (left * left).sum(axis=0).max() / freedom
        share = np.array(self._features.row(size)) @ inverse
        return int(_ERRORS * np.sqrt(variance * float(share @ share)))

    def _hides_an_extent(self) -> bool:
        least, greatest = self.fitted_range
        constant = [low == high for low, high in zip(least[1:], greatest[1:])]
        return any(constant) and not all(constant)

    def clip(self, size: Size) -> Size:
        """Return ``size`` with lengths below the fitted range raised to its lower end."""
        least = self.fitted_range[0]
        return (size[0], *(max(x, low) for x, low in zip(size[1:], least[1:])))

    def packing(self, size: Size) -> Packing | None:
        """Return what is lost between tensors at ``size``; None if that is unknown or nothing."""
        if self._storages is None:
            return None
        return self._storages.predict(np.array(self._features.row(size)))

    def predict(self, size: Size) -> Profile:
        """Return the predicted costs of a step at ``size``."""
        row = np.array(self._features.row(size))
        values = row @ self._coefficients
        count, split = self._num_blocks, self._num_bytes
        share = self._features.batch_share(size)
        if share < 1.0 and not self._features.constant:
            values[:split] += self._intercept * (1.0 - share)
        if self._is_clamped:
            self._clamp(size, values[:split])
        np.maximum(values, 0.0, out=values)
        numbers = np.rint(values[:split]).astype(np.int64).tolist()
        seconds = values[split:].tolist()
        columns: dict[str, Any] = {
            name: tuple(numbers[i * count : (i + 1) * count]) for i, name in enumerate(PER_BLOCK)
        }
        columns.update(zip(OUTSIDE, numbers[len(PER_BLOCK) * count :]))
        for name in ("shared", "passed", "measuring"):
            if not any(columns[name]):
                columns[name] = ()
        if not any(columns["freed"]):
            columns["freed"] = ()
            if columns["forward_activation"] == columns["activation"]:
                columns["forward_activation"] = ()
        optimizer_peak, optimizer_state = self._optimizer
        return Profile(
            forward_seconds=tuple(seconds),
            optimizer_peak=optimizer_peak,
            optimizer_state=optimizer_state,
            **columns,
        )

    def _clamp(self, size: Size, values: Row) -> None:
        """Keep ``values`` between what samples of no larger and of no smaller sizes showed."""
        smaller = (self._extents <= size).all(axis=1)
        if smaller.any():
            np.maximum(values, self._measured[smaller].max(axis=0), out=values)
        if self.is_within(size):
            larger = (self._extents >= size).all(axis=1)
            np.minimum(values, self._measured[larger].min(axis=0), out=values)

    def is_within(self, size: Size) -> bool:
        """Return whether a sample is as large as ``size`` in every extent."""
        return bool((self._extents >= size).all(axis=1).any())


def _fit_times(features: Features, design: Matrix, seconds: Matrix) -> Matrix:
    """Fit forward times; steps that another process disturbed do not count.

    Times that are unknown (NaN: the first iteration's are warm-up) are left out, and so are steps
    whose total is more than three deviations (by the median) off a first fit.
    """
    known = ~np.isnan(seconds).any(axis=1)
    fit = np.zeros((design.shape[1], seconds.shape[1]))
    if not known.any():
        return fit
    design, seconds = design[known], seconds[known]
    columns = features.for_times(design)
    first = np.linalg.lstsq(design[:, columns], seconds, rcond=None)[0]
    off = np.abs((seconds - design[:, columns] @ first).sum(axis=1))
    bound = 3 * 1.4826 * np.median(off)
    good = off <= bound
    if bound > 0 and len(columns) < good.sum() < len(off):
        design, seconds = design[good], seconds[good]
    columns = features.for_times(design, seconds)
    fit[columns] = np.linalg.lstsq(design[:, columns], seconds, rcond=None)[0]
    return fit
