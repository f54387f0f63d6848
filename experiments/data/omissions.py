"""Records that a file holds but training cannot use: counted and named, never lost silently."""

from __future__ import annotations

_NAMED = 3
_LONGEST_NAME = 60


class Omissions:
    """Which records were left out, and why."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._names.values()))

    def add(self, reason: str, name: str) -> None:
        """Leave out the record called ``name``, for example because it ``has no answer``."""
        self._names.setdefault(reason, []).append(printable(name))

    def extend(self, other: Omissions) -> None:
        """Leave out also what ``other`` does."""
        for reason, names in other._names.items():
            self._names.setdefault(reason, []).extend(names)

    def describe(self) -> str:
        """Return the reasons with their counts and the first names, as part of a sentence."""
        return "; ".join(
            f"{len(names)} {reason} ({', '.join(names[:_NAMED])}"
            + (f" and {len(names) - _NAMED} more)" if len(names) > _NAMED else ")")
            for reason, names in self._names.items()
        )


def printable(name: str) -> str:
    """Return a name, which a file may have made anything, as a short part of one line."""
    name = "".join(c if c.isprintable() else " " for c in name[: 2 * _LONGEST_NAME]).strip()
    return name if len(name) <= _LONGEST_NAME else f"{name[:_LONGEST_NAME]}..."
