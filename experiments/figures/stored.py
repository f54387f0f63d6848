"""A check's outcome as it lies in ``NAME.json``, read back for drawings and reports."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mimose_bench.experiments.figures import result as results
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import SCHEMA_VERSION, Reproduction

_PARTS: dict[str, type] = {
    "rows": results.Row,
    "criteria": results.Criterion,
    "claims": Claim,
    "left_out": results.LeftOut,
    "tables": results.ResultTable,
    "curves": results.Curve,
}


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
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise ValueError(
            f"{path} has schema version {version}, not the {SCHEMA_VERSION} known here: update "
            "mimose-bench to read it, or repeat the check"
        )
    return from_json(document, path)


def from_json(document: Mapping[str, Any], path: Path) -> Stored:
    """Return the outcome that a document of this version holds.

    Args:
        document: What the file holds.
        path: The file, for messages.

    Raises:
        ValueError: If something is missing in it.
    """
    error, found = document.get("error"), None
    try:
        if error is None:
            parts = {
                key: tuple(_filled(kind, item) for item in document.get(key) or ())
                for key, kind in _PARTS.items()
            }
            facts = {key: document[key] for key in ("name", "title", "source", "device_label")}
            found = Reproduction(**facts, **parts, notes=tuple(document.get("notes") or ()))
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"{path} is not the outcome of a check as this version writes it ({problem}): repeat "
            "the check"
        ) from problem
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


def _filled(kind: type, item: Mapping[str, Any]) -> Any:
    """Return ``item`` as the dataclass it was; what that derives is left out."""
    known = {field.name: field.type for field in fields(kind)}
    return kind(**{key: _value(v, known[key]) for key, v in item.items() if key in known})


def _value(value: Any, kind: Any) -> Any:
    if isinstance(value, list):
        return tuple(_value(item, "") for item in value)
    if value is None and kind == "float":  # JSON has neither NaN nor infinities.
        return math.nan
    return value
