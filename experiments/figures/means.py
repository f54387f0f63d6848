"""Means with what is certain of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

CONFIDENCE = 0.95


def mean_interval(values: Sequence[float]) -> tuple[float, tuple[float, float] | None]:
    """Return the mean and its 95 % interval by Student's t; no interval for a single value.

    Raises:
        ValueError: If there are no values.
    """
    if not values:
        raise ValueError("there is no value to take the mean of")
    mean = fmean(values)
    if len(values) == 1:
        return mean, None
    from scipy.stats import t  # Slow to import, and most checks need no interval.

    half = float(t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)) * stdev(values)
    half /= math.sqrt(len(values))
    return mean, (mean - half, mean + half)
