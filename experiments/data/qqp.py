"""Reading question pairs in the published format of GLUE's QQP."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from mimose_bench.experiments.data.fields import MAX_CHARACTERS, MalformedError, label_of, text_of
from mimose_bench.experiments.data.local import read_table
from mimose_bench.experiments.data.omissions import Omissions

WHAT = "GLUE-QQP TSV file"
_COLUMNS = {
    "question1": ("question1",),
    "question2": ("question2",),
    "label": ("is_duplicate", "label"),
}


class QuestionPair(NamedTuple):
    """Two questions; ``label`` is 1 if they ask the same."""

    name: str
    first: str
    second: str
    label: int


def parse_qqp(path: Path, data: bytes) -> tuple[list[QuestionPair], Omissions]:
    """Return the usable pairs of a QQP file, and what was left out.

    One pair a line, fields parted by tabs, quotes meaning nothing, below the published header
    (``id qid1 qid2 question1 question2 is_duplicate``) or ``question1 question2 label``.

    Args:
        path: The file, for messages.
        data: Its content.

    Raises:
        ValueError: If the header lacks one of these columns.
    """
    omitted = Omissions()
    rows = read_table(path, data, lambda line: line.split("\t"), _COLUMNS, WHAT, omitted)
    return _usable(rows, omitted), omitted


def from_rows(rows: Iterable[Mapping[str, Any]]) -> tuple[list[QuestionPair], Omissions]:
    """Return the usable pairs of rows as the hub's ``glue`` has them, and what was left out.

    Args:
        rows: Mappings with ``question1``, ``question2`` and ``label``.
    """
    omitted = Omissions()
    named = ((f"row {row.get('idx', number)}", row) for number, row in enumerate(rows))
    return _usable(named, omitted), omitted


def _usable(
    rows: Iterable[tuple[str, Mapping[str, Any]]], omitted: Omissions
) -> list[QuestionPair]:
    pairs = []
    for name, row in rows:
        try:
            first, second = (
                text_of(row.get(field), what, MAX_CHARACTERS)
                for field, what in (
                    ("question1", "a first question"),
                    ("question2", "a second question"),
                )
            )
            pairs.append(QuestionPair(name, first, second, label_of(row.get("label"), 2)))
        except MalformedError as error:
            omitted.add(str(error), name)
    return pairs
