"""Bytes and seconds, to and from text.

"GB" and "GiB" both mean 2**30 bytes, as in the paper, in ``nvidia-smi`` and in PyTorch's own
messages; likewise for kilo, mega and tera. Inside the project bytes are ``int`` and times are
``float`` seconds: text appears only when reading a user's input and when printing.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
TIB = 1 << 40

_FACTORS = {"": 1, "B": 1, "K": KIB, "M": MIB, "G": GIB, "T": TIB}
_BYTES = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?P<prefix>[KMGT]?)(?:I?B)?", re.I)

BYTES_HELP = (
    "a number of bytes, or a number with KB, MB, GB or TB "
    "(GB and GiB both mean 2^30 bytes), for example 6GB"
)


def parse_bytes(text: str | int) -> int:
    """Return the number of bytes that ``text`` names.

    Args:
        text: An ``int`` (bytes) or text such as ``"6GB"``, ``"512 MiB"`` or ``"1073741824"``.

    Raises:
        ValueError: If ``text`` is not a positive number of bytes; the message says what is.
    """
    if isinstance(text, bool) or not isinstance(text, int | str):
        raise ValueError(f"{text!r} is not a number of bytes: give {BYTES_HELP}")
    if isinstance(text, int):
        value = text
    else:
        match = _BYTES.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is not a number of bytes: give {BYTES_HELP}")
        value = int(Decimal(match["number"]) * _FACTORS[match["prefix"].upper()])
    if value >= 1 << 63:
        raise ValueError(f"{text!r} is more bytes than any machine has: give {BYTES_HELP}")
    if value <= 0:
        raise ValueError(f"{text!r} is not a positive number of bytes: give {BYTES_HELP}")
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
