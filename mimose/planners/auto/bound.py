"""What a step takes at most, before there are samples enough for a fit.

Memory grows with each extent of a batch, at most with the square of a length, and no slower the
longer it is. So a sample bounds all that is smaller; between two samples a straight line is above
the truth; and beyond the largest one its square is.
"""

from __future__ import annotations

from dataclasses import fields, replace
from math import ceil, prod
from typing import Any

from mimose.costs import Profile
from mimose.planners.mimose.estimator import Estimator
from mimose.records import Size

_UNCHANGED = frozenset(("forward_seconds", "optimizer_peak", "optimizer_state"))


def bound_of(size: Size, estimator: Estimator) -> Profile:
    """Return what a step of a size takes at most, by what the estimator has seen."""
    greatest = estimator.fitted_range[1]
    within: Size = tuple(map(min, size, greatest))
    known = estimator.predict(estimator.clip(within))
    beyond = [max(1.0, x / g) for x, g in zip(size, greatest)]
    factor = beyond[0] * prod(x * x for x in beyond[1:])
    # What may be gone by then is taken to be there.
    known = replace(known, freed=(), shared=(), forward_activation=())
    if factor == 1.0:
        return known
    scaled: dict[str, Any] = {
        field.name: _scaled(getattr(known, field.name), factor)
        for field in fields(Profile)
        if field.name not in _UNCHANGED
    }
    return replace(known, **scaled)


def _scaled(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(_scaled(v, factor) for v in value)
    return ceil(value * factor) if isinstance(value, int) else value
