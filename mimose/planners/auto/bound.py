"""What a step takes at most, before there are samples enough for a fit.

Memory grows with each extent of a batch, at most with the square of a length, and no slower the
longer it is. So a sample bounds all that is smaller; between two samples a straight line is above
the truth; and beyond the largest one its square is. That holds for each value within a block, and
so for what is left of it once some of them are gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from math import ceil, prod
from typing import Any

from mimose.costs import Profile
from mimose.planners.auto.choosing import InsideForecast
from mimose.planners.auto.fits import Inside, Insides
from mimose.planners.mimose.estimator import Estimator
from mimose.records import Size

_UNCHANGED = frozenset(("forward_seconds", "optimizer_peak", "optimizer_state"))


def bound_of(
    size: Size, estimator: Estimator, forecast_at: Callable[[Size], InsideForecast]
) -> InsideForecast:
    """Return what a step of a size takes at most, by what was seen.

    Args:
        size: The size.
        estimator: What was seen.
        forecast_at: Returns what the estimator predicts for a size within its samples.
    """
    greatest = estimator.fitted_range[1]
    known = forecast_at(estimator.clip(tuple(map(min, size, greatest))))
    beyond = [max(1.0, x / g) for x, g in zip(size, greatest)]
    factor = beyond[0] * prod(x * x for x in beyond[1:])
    # What may be gone by then is taken to be there.
    profile = replace(known.profile, freed=(), shared=(), passed=(), forward_activation=())
    if factor == 1.0:
        return InsideForecast(profile, inside=known.inside)
    scaled: dict[str, Any] = {
        field.name: _scaled(getattr(profile, field.name), factor)
        for field in fields(Profile)
        if field.name not in _UNCHANGED
    }
    inside = Insides(lambda: _enlarged(known.inside, factor))
    return InsideForecast(replace(profile, **scaled), inside=inside)


def _enlarged(inside: Mapping[int, Inside], factor: float) -> dict[int, Inside]:
    """Return the insides of blocks with bytes so many times as large; equal ones stay one."""
    found: dict[int, Inside] = {}
    for one in inside.values():
        if id(one) not in found:
            levels = None if one.levels is None else one.levels * factor
            found[id(one)] = replace(one, bytes=one.bytes * factor, levels=levels)
    return {block: found[id(one)] for block, one in inside.items()}


def _scaled(value: object, factor: float) -> object:
    if isinstance(value, tuple):
        return tuple(_scaled(v, factor) for v in value)
    return ceil(value * factor) if isinstance(value, int) else value
