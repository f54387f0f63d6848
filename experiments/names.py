"""Names that a user types, and the nearest right one when it is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, most: int | None = 12
) -> ValueError:
    """Return the error for a ``name`` that is not one of ``known``, naming the nearest.

    Args:
        kind: What it should have been, for example ``task``.
        name: What was given.
        known: The names that would be right.
        most: How many of them are listed where none is near; None lists all.
    """
    names = list(known)
    if not names:
        return ValueError(f"there is no {kind} called {name!r}")
    near = nearest(name, names)
    if near is not None:
        return ValueError(f"there is no {kind} called {name!r}: did you mean {near!r}?")
    shown = ", ".join(names[:most]) + (", ..." if names[:most] != names else "")
    return ValueError(f"there is no {kind} called {name!r}: choose one of {shown}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that is most like ``name``; None if none is."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return near[0] if near else None
