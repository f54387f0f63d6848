"""Reading contexts with their endings in the published format of SWAG."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mimose_bench.experiments.data.fields import MAX_CHARACTERS, MalformedError, label_of, text_of
from mimose_bench.experiments.data.local import read_table
from mimose_bench.experiments.data.omissions import Omissions

WHAT = "SWAG CSV file"
NUM_ENDINGS = 4
_ENDINGS = tuple(f"ending{number}" for number in range(NUM_ENDINGS))
_COLUMNS = {name: (name,) for name in ("sent1", "sent2", *_ENDINGS, "label")}


class Scene(NamedTuple):
    """A sentence, four ways in which the next may read, and the number of the right one."""

    name: str
    context: str
    endings: tuple[str, ...]
    label: int


def parse_swag(path: Path, data: bytes) -> tuple[list[Scene], Omissions]:
    """Return the usable rows of a SWAG file, and what was left out.

    A row is a line, as published: a quote that does not close costs its own line only.

    Args:
        path: The file, for messages.
        data: Its content.

    Raises:
        ValueError: If the header lacks ``sent1``, ``sent2``, ``ending0`` to ``ending3`` or
            ``label``.
    """
    omitted = Omissions()
    return _usable(read_table(path, data, _split, _COLUMNS, WHAT, omitted), omitted), omitted


def from_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[list[Scene], Omissions]:
    """Return the usable rows of the hub's ``swag``, and what was left out.

    Args:
        rows: Mappings with the columns of the published file.
    """
    omitted = Omissions()
    named = ((f"row {number}", row) for number, row in enumerate(rows))
    return _usable(named, omitted), omitted


def _split(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        why = str(error)
        if "field larger" in why:
            why = "a field is too long"
        elif "unexpected end" in why:
            why = "a quote does not close"
        raise MalformedError(f"not in CSV: {why}") from None


def _usable(rows: Iterable[tuple[str, Mapping[str, Any]]], omitted: Omissions) -> list[Scene]:
    scenes = []
    for name, row in rows:
        try:
            context = text_of(row.get("sent1"), "a first sentence (sent1)", MAX_CHARACTERS)
            start = text_of(row.get("sent2"), "a start of the second (sent2)", MAX_CHARACTERS)
            endings = [text_of(row.get(each), f"an {each}", MAX_CHARACTERS) for each in _ENDINGS]
            label = label_of(row.get("label"), NUM_ENDINGS)
        except MalformedError as error:
            omitted.add(str(error), name)
            continue
        scenes.append(Scene(name, context, tuple(f"{start} {end}" for end in endings), label))
    return scenes
