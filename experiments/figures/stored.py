"""A check's outcome as it lies in ``NAME.json``, read back for drawings and reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimose_bench.experiments.figures.claims import Version
from mimose_bench.experiments.figures.plain import check_types, parse
from mimose_bench.experiments.figures.result import SCHEMA_VERSION, Reproduction

_ABOUT: Mapping[str, Any] = {
    "error": str,
    "num_rows": int,
    "quick": bool,
    "thinned": bool,
    "run": {
        "command": tuple[str, ...],
        "device": str,
        "quick": bool,
        "source": str,
        "seconds": float,
        "date": str,
        "version": Version,
        "recorded": bool,
        "environment": {
            "git_commit": str,
            "memory_bytes": float,
            "versions": {},
            "allocator": {},
            "gpu": {},
        },
    },
}
"""What a document may say beside its result: of which type, if it says so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A check that has ended.

    Attributes:
        name: Its name on the command line.
        result: What it found; None where it failed.
        error: Why it failed; None where it did not.
        run: How it was made: see :func:`mimose_bench.experiments.figures.provenance.facts`; nothing
            in files of versions that did not keep it.
        num_rows: How many values were compared; ``result`` may have fewer of them.
        document: What the file holds.
    """

    name: str
    result: Reproduction | None
    error: str | None
    run: Mapping[str, Any]
    num_rows: int
    document: Mapping[str, Any]

    @property
    def is_quick(self) -> bool:
        """Whether a few points of each curve were measured only."""
        return bool(self.run.get("quick", self.document.get("quick", False)))

    @property
    def is_thinned(self) -> bool:
        """Whether values and curves were left out that a figure is drawn from."""
        return bool(self.document.get("thinned"))


def read(path: Path) -> Stored:
    """Return the outcome in a file.

    Raises:
        ValueError: If it is none, or one that this version cannot read; the message says why.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error})") from error
    except ValueError:
        raise ValueError(f"{path} is damaged: it is not a JSON document") from None
    if not isinstance(document, dict) or not isinstance(document.get("name"), str):
        raise ValueError(f"{path} is not the outcome of a check: it names none")
    version = document.get("schema_version")
    if type(version) is not int or version < 1:
        raise ValueError(
            f"{path} has schema version {version}, which no version of mimose-bench writes: repeat "
            "the check"
        )
    if version > SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, newer than the {SCHEMA_VERSION} known here: "
            "update mimose-bench to read it, or repeat the check"
        )
    return from_json(document, path)


def from_json(document: Mapping[str, Any], path: Path) -> Stored:
    """Return the outcome that a document of this version holds.

    Args:
        document: What the file holds.
        path: The file, for messages.

    Raises:
        ValueError: If something in it is missing or of another type; the message says what.
    """
    error, found = document.get("error"), None
    try:
        check_types(document, _ABOUT)
        if error is None:
            # Files of older schemas lack what came later; one of this schema that lacks it was cut.
            is_whole = document.get("schema_version") == SCHEMA_VERSION
            found = parse(document, Reproduction, defaults=not is_whole)
            _check_shapes(found)
    except ValueError as problem:
        raise ValueError(
            f"{path} is not the outcome of a check as this version writes it ({problem}): repeat "
            "the check"
        ) from None
    return Stored(
        name=document["name"],
        result=found,
        error=error,
        run=document.get("run") or {},
        num_rows=document.get("num_rows") or len(document.get("rows") or ()),
        document=document,
    )


def is_folder(folder: Path) -> bool:
    """Return whether outcomes of checks lie in a folder."""
    return any(_looks_like_one(path) for path in folder.glob("*.json"))


def read_all(folder: Path) -> tuple[list[Stored], list[str]]:
    """Return the outcomes in a folder, by name, and what was passed over, a sentence each."""
    found, problems = [], []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(read(path))
        except ValueError as error:
            problems.append(str(error))
    return found, problems


def _looks_like_one(path: Path) -> bool:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return (
        isinstance(document, dict)
        and "name" in document
        and bool({"criteria", "error"} & {*document})
    )


def _check_shapes(found: Reproduction) -> None:
    """Raise ValueError where values do not fit each other."""
    for row in found.rows:
        if row.expected == 0:
            raise ValueError(f"the paper's value of {row.series}, {row.what} is 0")
    for table in found.tables:
        if any(len(row) != len(table.headers) for row in table.rows):
            raise ValueError(f"a row of {table.title!r} is not as long as its headers")
    for curve in found.curves:
        if len(curve.x) != len(curve.y):
            raise ValueError(f"the curve {curve.name!r} has not as many x as y")
