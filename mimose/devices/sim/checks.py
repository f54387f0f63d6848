"""Checks of a specification's fields; each raises ``ValueError`` with the field's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


def check_text(name: str, value: Any) -> None:
    """Refuse what is not text, or empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{name} must be text")


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")


def check_number(name: str, value: Any, least: float | None = None) -> None:
    """Refuse what is not a finite number of at least ``least``; above zero where that is None."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and math.isfinite(value) and (value > 0 if least is None else value >= least):
        return
    bound = "more than 0" if least is None else f"at least {least:g}"
    raise ValueError(f"{name} must be a number of {bound}, not {value!r}")


def check_keys(name: str, value: Any, keys: tuple[str, ...]) -> Mapping[str, Any]:
    """Return ``value``; refuse what does not map some of ``keys``."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must map names to numbers")
    for key in value:
        if key not in keys:
            raise ValueError(f"{name} has {key!r}, which is not one of {', '.join(keys)}")
    return value
