"""Text and labels of one record, checked."""

from __future__ import annotations

from typing import Any

MAX_CHARACTERS = 100_000


class MalformedError(Exception):
    """Why a record cannot be used, as the end of ``3 records ...``."""


def text_of(value: Any, what: str, most: int | None = None) -> str:
    """Return ``value`` if it is text that can be tokenised.

    Args:
        value: Anything.
        what: What the text is, for the reason: ``a question``.
        most: Greatest number of characters; None for no limit.

    Raises:
        MalformedError: If it is not text, is blank, too long or not well formed.
    """
    if not isinstance(value, str) or not value.strip():
        raise MalformedError(f"without {what}")
    if most is not None and len(value) > most:
        raise MalformedError(f"with more than {most:,} characters in {what}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MalformedError(f"with half a character in {what}") from None
    return value


def label_of(value: Any, num_classes: int) -> int:
    """Return a class number, given as a whole number or as its digit.

    Raises:
        MalformedError: If it is not one of ``num_classes`` from zero.
    """
    names = [str(number) for number in range(num_classes)]
    written = value.strip() if isinstance(value, str) else str(value)
    if isinstance(value, bool) or written not in names:
        raise MalformedError(f"whose label is not {', '.join(names[:-1])} or {names[-1]}")
    return int(written)
