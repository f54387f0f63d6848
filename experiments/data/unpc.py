"""Reading sentences in English and French as UN_PC and the translation script of HF have them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from mimose_bench.experiments.data.fields import MAX_CHARACTERS, MalformedError, text_of
from mimose_bench.experiments.data.local import is_folder, line_text, lines_of, read_data
from mimose_bench.experiments.data.omissions import Omissions

WHAT = "pair of files NAME.en and NAME.fr, or file of JSON lines,"
_LANGUAGES = {"en": "an English sentence", "fr": "a French sentence"}


class SentencePair(NamedTuple):
    """A sentence in English and in French."""

    name: str
    english: str
    french: str


class Files(NamedTuple):
    """Where pairs are read from: two files of sentences, or one of JSON lines.

    Attributes:
        paths: Both files, or the one.
        contents: Their bytes.
        is_whole: Whether there are no more lines than were read.
    """

    paths: tuple[Path, ...]
    contents: tuple[bytes, ...]
    is_whole: bool = True


def read_files(path: Path, max_samples: int | None = None) -> Files:
    """Return the content of the files that ``path`` means.

    Args:
        path: ``NAME.en`` or ``NAME.fr`` of OPUS's Moses format, a folder with one such pair, or
            a file of JSON lines ``{"translation": {"en": ..., "fr": ...}}``.
        max_samples: How many lines to read; None for all.

    Raises:
        ValueError: If files are missing, unreadable or empty.
    """
    if is_folder(path):
        found = _pairs_in(path)
        if len(found) != 1:
            count = "several pairs" if found else "no pair"
            raise ValueError(f"{path} holds {count} of files NAME.en and NAME.fr: name a file")
        path = found[0]
    paths: tuple[Path, ...] = (path,)
    if path.suffix in (".en", ".fr"):
        paths = path.with_suffix(".en"), path.with_suffix(".fr")
    contents = tuple(read_data(each, WHAT, max_samples) for each in paths)
    sizes = [each.stat().st_size for each in paths]
    return Files(paths, contents, sizes == [len(content) for content in contents])


def _pairs_in(folder: Path) -> list[Path]:
    """Return the files ``NAME.en`` that have a ``NAME.fr`` beside them."""
    try:
        return sorted(
            each
            for each in folder.iterdir()
            if each.suffix == ".en" and each.is_file() and each.with_suffix(".fr").is_file()
        )
    except OSError as error:
        raise ValueError(f"data folder {folder} cannot be read: {error.strerror}") from error


def parse_unpc(files: Files) -> tuple[list[SentencePair], Omissions]:
    """Return the usable sentence pairs, and what was left out.

    Raises:
        ValueError: If two files have not equally many lines, or if one is not of JSON lines.
    """
    omitted = Omissions()
    lines = [lines_of(content) for content in files.contents]
    if len(lines) == 1:
        first = next(line for line in lines[0] if line.strip())
        if not first.lstrip().startswith(b"{"):
            raise ValueError(
                f"{files.paths[0]} is neither NAME.en with NAME.fr nor JSON lines "
                '{"translation": {"en": ..., "fr": ...}}'
            )
        return _usable(_from_json(lines[0], omitted), omitted), omitted
    if len(lines[0]) != len(lines[1]):
        raise ValueError(
            f"{files.paths[0]} has {len(lines[0])} lines and {files.paths[1].name} has "
            f"{len(lines[1])}: they are no pair, download both again"
        )
    return _usable(_side_by_side(lines[0], lines[1], omitted), omitted), omitted


def from_rows(rows: Iterable[Any]) -> tuple[list[SentencePair], Omissions]:
    """Return the usable rows of the hub's ``un_pc``, and what was left out.

    Args:
        rows: Mappings with ``translation``, itself a mapping with ``en`` and ``fr``.
    """
    omitted = Omissions()
    named = ((f"row {number}", row) for number, row in enumerate(rows))
    return _usable(named, omitted), omitted


def _from_json(lines: list[bytes], omitted: Omissions) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(lines, 1):
        name = f"line {number}"
        try:
            if not line.strip():
                raise MalformedError("blank")
            yield name, json.loads(line_text(line))
        except MalformedError as error:
            omitted.add(str(error), name)
        except (ValueError, RecursionError):
            omitted.add("not in JSON", name)


def _side_by_side(
    english: list[bytes], french: list[bytes], omitted: Omissions
) -> Iterator[tuple[str, Any]]:
    for number, pair in enumerate(zip(english, french), 1):
        name = f"line {number}"
        try:
            yield name, {"translation": dict(zip(_LANGUAGES, map(line_text, pair)))}
        except MalformedError as error:
            omitted.add(str(error), name)


def _usable(rows: Iterable[tuple[str, Any]], omitted: Omissions) -> list[SentencePair]:
    pairs = []
    for name, row in rows:
        try:
            both = row.get("translation") if isinstance(row, dict) else None
            if not isinstance(both, dict):
                raise MalformedError("without a translation")
            texts = [
                text_of(both.get(language), what, MAX_CHARACTERS)
                for language, what in _LANGUAGES.items()
            ]
        except MalformedError as error:
            omitted.add(str(error), name)
            continue
        pairs.append(SentencePair(name, *texts))
    return pairs
