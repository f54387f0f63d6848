"""Planner options may come as text from a command line."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mimose.units import BYTES_HELP, format_bytes, parse_bytes


def whole_number(name: str, value: int | str, least: int, most: int | None = None) -> int:
    """Return ``value`` as an ``int``.

    Raises:
        ValueError: If it is not a whole number from ``least`` to ``most``.
    """
    bounds = f"{least} or more" if most is None else f"from {least} to {most}"
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be a whole number, {bounds}, not {value!r}") from None
    part = not isinstance(value, str) and number != value
    if isinstance(value, bool) or part or number < least or (most is not None and number > most):
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


def check_margin(margin: int | None, budget: int | None) -> None:
    """Refuse a margin that leaves nothing of the budget.

    Args:
        margin: Bytes, or None for one that is not given.
        budget: Bytes, or None for no budget.

    Raises:
        ValueError: If it does.
    """
    if margin is not None and budget is not None and margin >= budget:
        raise ValueError(
            f"a margin of {format_bytes(margin)} leaves nothing of a budget of "
            f"{format_bytes(budget)}: give a smaller margin or a larger budget"
        )


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


def one_of(name: str, value: str, allowed: Sequence[str]) -> str:
    """Return ``value``.

    Raises:
        ValueError: If it is none of ``allowed``.
    """
    if value not in allowed:
        raise ValueError(
            f"{name} must be {', '.join(allowed[:-1])} or {allowed[-1]}, not {value!r}"
        )
    return value


def switch(name: str, value: bool | str) -> bool:
    """Return ``value``, which as text is ``on`` or ``off``.

    Raises:
        ValueError: If it is neither.
    """
    if isinstance(value, bool):
        return value
    return one_of(name, value, ("on", "off")) == "on"


def share_or_bytes(name: str, value: int | float | str) -> Callable[[int], int]:
    """Return a function that makes of a budget the bytes that ``value`` stands for.

    Args:
        name: The option's name.
        value: A share below 1 as a ``float``, or as text such as ``"25%"``; otherwise bytes.

    Raises:
        ValueError: If it is none of them.
    """
    share: float | None = value if isinstance(value, float) else None
    if isinstance(value, str) and value.strip().endswith("%"):
        try:
            share = float(value.strip()[:-1]) / 100
        except ValueError:
            share = -1.0
    if share is None:
        try:
            count = byte_count(name, value)  # type: ignore[arg-type]  # no float is left
        except ValueError:
            raise ValueError(
                f"{name} must be 0, {BYTES_HELP}, or a share of the budget such as 25%, not "
                f"{value!r}"
            ) from None
        return lambda budget: count
    if not 0 <= share < 1:
        raise ValueError(f"{name} must be a share from 0% to below 100%, not {value!r}")
    part = share
    return lambda budget: int(part * budget)
