"""Which source of data a run uses, and the rule behind ``--data auto``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Where the data of a run comes from, as written to run.json and said on screen.

    Attributes:
        kind: ``hub``, ``path`` or ``synthetic``.
        detail: Which data: the hub's name of it, the file, or what the generator imitates.
        reason: Why this source was taken.
        notes: What else a reader of the results must know, such as records left out.
    """

    kind: Literal["hub", "path", "synthetic"]
    detail: str
    reason: str
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail} ({self.reason})"

    def to_json(self) -> dict[str, Any]:
        """Return the source as a plain dictionary."""
        return {
            "kind": self.kind,
            "detail": self.detail,
            "reason": self.reason,
            "notes": list(self.notes),
        }


class HubUnavailableError(ValueError):
    """Something of the hub's can be had neither from it nor from the local cache."""


def open_source(
    data: str,
    *,
    hub: Callable[[str], T],
    path: Callable[[str, str], T],
    synthetic: Callable[[str], T],
) -> T:
    """Open the source that ``--data`` names.

    Args:
        data: ``auto``, ``hub``, ``synthetic`` or the path of a file.
        hub: Opens the hub's data, given the reason for it; raises :class:`HubUnavailableError`.
        path: Opens a local file, given its path and the reason.
        synthetic: Opens the generator, given the reason.

    Raises:
        ValueError: If the chosen source cannot be had; ``auto`` does without the hub.
    """
    if data == "synthetic":
        return synthetic("asked for")
    if data == "hub":
        try:
            return hub("asked for")
        except HubUnavailableError as error:
            raise ValueError(f"{error}: use --data synthetic or --data PATH") from error
    if data != "auto":
        return path(data, "asked for")
    try:
        return hub("auto: the hub answers or its copy is cached")
    except HubUnavailableError as error:
        return synthetic(f"auto: {error}")
