"""Planner options may come as text from a command line."""

from __future__ import annotations

import math

from mimose.units import BYTES_HELP, parse_bytes


def whole_number(name: str, value: int | str, least: int, most: int | None = None) -> int:
    """Return ``value`` as an ``int``.

    Raises:
        ValueError: If it is not a whole number from ``least`` to ``most``.
    """
    bounds = f"{least} or more" if most is None else f"from {least} to {most}"
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a whole number, {bounds}, not {value!r}") from None
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} must be a whole number, {bounds}, not {value!r}")
    return number


def byte_count(name: str, value: int | str) -> int:
    """Return ``value`` as bytes; unlike a budget it may be zero.

    Raises:
        ValueError: If it is not a number of bytes.
    """
    if value in (0, "0"):
        return 0
    try:
        return parse_bytes(value)
    except ValueError:
        raise ValueError(f"{name} must be 0 or {BYTES_HELP}, not {value!r}") from None


def number(name: str, value: float | str, least: float, *, above: bool = False) -> float:
    """Return ``value`` as a ``float``.

    Raises:
        ValueError: If it is not a finite number of at least ``least``, or not ``above`` it.
    """
    bound = f"above {least:g}" if above else f"of at least {least:g}"
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = float("nan")
    if not math.isfinite(found) or found < least or (above and found == least):
        raise ValueError(f"{name} must be a number {bound}, not {value!r}")
    return found
