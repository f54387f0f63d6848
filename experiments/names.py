"""Names that a user types, and the nearest right one when it is wrong."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LEAST = 0.5
"""How alike two names have to be, from 0 to 1, for one to be meant by the other."""


def unknown_name(
    kind: str, name: str, known: Iterable[str], *, most: int | None = 12, always: bool = False
) -> ValueError:
    """Return the error for a ``name`` that is not one of ``known``, naming the nearest.

    Args:
        kind: What it should have been, for example ``task``.
        name: What was given.
        known: The names that would be right.
        most: How many of them are listed where none is near; None lists all.
        always: Whether they are listed as well where one is near.
    """
    names = list(known)
    if not names:
        return ValueError(f"there is no {kind} called {name!r}")
    near = nearest(name, names)
    shown = ", ".join(names[:most]) + (", ..." if names[:most] != names else "")
    if near is not None:
        there = f" There are {shown}" if always else ""
        return ValueError(f"there is no {kind} called {name!r}: did you mean {near!r}?{there}")
    return ValueError(f"there is no {kind} called {name!r}: choose one of {shown}")


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of ``known`` that is most like ``name``; None if none is.

    Names of several parts are compared with their parts sorted, too: ``bert-qa`` is ``qa-bert``.
    """
    scored = [
        (max(_likeness(name, each), _likeness(*map(_sorted, (name, each)))), each) for each in known
    ]
    score, best = max(scored, key=lambda pair: pair[0], default=(0.0, None))
    return best if score >= _LEAST else None


def _likeness(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, other, name).ratio()


def _sorted(name: str) -> str:
    return "-".join(sorted(name.split("-")))
