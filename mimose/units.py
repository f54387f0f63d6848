"""Bytes and seconds, to and from text.

"GB" and "GiB" both mean 2**30 bytes, as in the paper, in ``nvidia-smi`` and in PyTorch's own
messages; likewise for kilo, mega and tera. Inside the project bytes are ``int`` and times are
``float`` seconds: text appears only when reading a user's input and when printing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_FACTORS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_BYTES = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?P<prefix>[KMGT]?)(?:I?B)?", re.I)
# From here on nobody means MB: as such it is more memory than a GPU has.
_NOT_MB = 300_000

BYTES_HELP = (
    "a number of bytes, or a number with KB, MB, GB or TB "
    "(GB and GiB both mean 2^30 bytes), for example 6GB"
)


SHARE_HELP = "a share of the device's memory, for example 80%"


def parse_budget(budget: str | int | float, memory: Callable[[], int]) -> int:
    """Return the number of bytes that ``budget`` names.

    Args:
        budget: As for :func:`parse_bytes`, or a share of the device's memory: text such as
            ``"80%"``, or a ``float`` up to 1, such as ``0.8``.
        memory: Returns the bytes of memory that the device has; asked only for a share.

    Raises:
        ValueError: If ``budget`` is neither, or is text of which the unit was forgotten; the
            message says what is.
    """
    share = _share(budget)
    if share is not None:
        return int(share * memory())
    also = f", or {SHARE_HELP}"
    # A number may have been worked out by a program, a small one as well.
    return (parse_budget_bytes if isinstance(budget, str) else parse_bytes)(budget, also=also)


def parse_budget_bytes(budget: str | int | float, *, also: str = "") -> int:
    """Return the number of bytes that ``budget`` names, if they can be meant as a budget.

    Args:
        budget: As for :func:`parse_bytes`.
        also: Likewise.

    Raises:
        ValueError: If ``budget`` is not a number of bytes, or is one below 1 MiB without a unit.
    """
    number = _without_unit(budget)
    if number is not None and 0 < number < 1:
        raise ValueError(
            f"{budget!r} is not a positive number of bytes: give {BYTES_HELP}{also}; "
            + unit_hint(number)
        )
    value = parse_bytes(budget, also=also)
    if number is None or value >= MIB:
        return value
    if number < _NOT_MB:
        raise ValueError(f"a budget of {number:f} bytes cannot be meant: {unit_hint(number)}")
    raise ValueError(
        f"the budget {budget!r} has no unit: write {value}B if bytes are meant, or another unit, "
        "for example 1GB"
    )


def unit_hint(value: int | Decimal) -> str:
    """Return what to write where a number without a unit was not meant as one of bytes."""
    said = "a number without a unit is one of bytes, so write"
    if value >= _NOT_MB:
        return f"{said} the unit that is meant, for example 1GB"
    return f"{said} {Decimal(value):f}{'GB' if value < 1000 else 'MB'} if that is meant"


def _without_unit(budget: str | int | float) -> Decimal | None:
    """Return the number that ``budget`` is, or None if it has a unit or is no number."""
    match = _BYTES.fullmatch(str(budget).strip())
    if match is None or match[0][-1].isalpha():
        return None
    return Decimal(match["number"].rstrip("."))


def _share(budget: str | int | float) -> float | None:
    if isinstance(budget, str) and budget.strip().endswith("%"):
        try:
            share = float(budget.strip()[:-1]) / 100
        except ValueError:
            share = -1.0
    elif isinstance(budget, float) and not (budget > 1 and budget.is_integer()):
        share = budget
    else:
        return None
    if not 0 < share <= 1:
        raise ValueError(
            f"{budget!r} is no share of the device's memory and no whole number of bytes: give a "
            "share above 0% and up to 100%, for example 80%, or bytes, for example 6GB"
        )
    return share


def parse_bytes(text: str | int | float, *, also: str = "") -> int:
    """Return the number of bytes that ``text`` names.

    Args:
        text: A whole number (bytes) or text such as ``"6GB"``, ``"512 MiB"`` or ``"1073741824"``.
        also: What the message adds to what may be given, where there is more than bytes.

    Raises:
        ValueError: If ``text`` is not a positive number of bytes; the message says what is.
    """
    given = f"give {BYTES_HELP}{also}"
    if isinstance(text, str):
        match = _BYTES.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a number of bytes: {given}")
        value = int(Decimal(match["number"]) * _FACTORS[match["prefix"].upper()])
    elif isinstance(text, bool) or not isinstance(text, int | float):
        raise ValueError(f"{text!r} is not a number of bytes: {given}")
    elif text != (value := int(text) if math.isfinite(text) else 0):
        raise ValueError(f"{text!r} is not a whole number of bytes: {given}")
    if value >= 1 << 63:
        raise ValueError(f"{text!r} is more bytes than any machine has: {given}")
    if value <= 0:
        raise ValueError(f"{text!r} is not a positive number of bytes: {given}")
    return value


def format_bytes(value: float, *, up: bool = False) -> str:
    """Return ``value`` bytes as short text, for example ``"5.86 GiB"``.

    Args:
        value: Bytes.
        up: Round up, so that the text names enough when given back as a budget.
    """
    sign = "-" if value < 0 else ""
    size = abs(value)
    for factor, unit in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        # What would print as 1024.00 of the next smaller unit is 1.00 of this one.
        if size >= factor * (1 - 0.005 / 1024):
            shown = math.ceil(100 * size / factor) / 100 if up else size / factor
            return f"{sign}{shown:.2f} {unit}"
    return f"{sign}{size:.0f} B"


def format_seconds(value: float) -> str:
    """Return ``value`` seconds as short text, for example ``"12.3 ms"`` or ``"1 h 02 min"``."""
    if not math.isfinite(value):
        return "n/a"
    if value < 0:
        return "-" + format_seconds(-value)
    # Bounds are where rounding would carry into the next unit.
    if value < 999.95e-6:
        return f"{value * 1e6:.1f} us"
    if value < 999.95e-3:
        return f"{value * 1e3:.1f} ms"
    if value < 59.995:
        return f"{value:.2f} s"
    minutes, seconds = divmod(round(value), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"
