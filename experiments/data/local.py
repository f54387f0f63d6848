"""Local data files: their bytes, their lines and tables of one row a line."""

from __future__ import annotations

import codecs
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from mimose_bench.experiments.data.fields import MalformedError
from mimose_bench.experiments.data.omissions import Omissions

# Four characters of English in UTF-16 without a byte order mark.
_UTF_16 = re.compile(rb"(?:[^\0]\0){4}|(?:\0[^\0]){4}")


def mode_of(path: Path, what: str) -> int:
    """Return a file's or folder's mode (``st_mode``).

    Args:
        path: The file or folder.
        what: What it is, for messages: ``data file``.

    Raises:
        ValueError: If there is none or if that cannot be told.
    """
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        raise ValueError(f"there is no {what} {path}") from None
    except OSError as error:
        raise ValueError(f"{what} {path} cannot be read: {error.strerror}") from error
    except ValueError:  # a NUL, or what no file name can be encoded from
        raise ValueError(f"{str(path)!r} cannot be the name of a {what}: correct it") from None


def read_data(path: Path, what: str, lines: int | None = None) -> bytes:
    """Return the content of a data file.

    Args:
        path: The file.
        what: What it should be, for messages: ``SQuAD JSON file``.
        lines: How many of its lines to read; None for all.

    Raises:
        ValueError: If it is missing, a folder, unreadable, empty or in UTF-16.
    """
    mode = mode_of(path, "data file")
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder: give the {what} in it")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is not a file: give a {what}")
    try:
        with path.open("rb") as file:
            content = file.read() if lines is None else b"".join(islice(file, lines))
    except OSError as error:
        raise ValueError(f"data file {path} cannot be read: {error.strerror}") from error
    if not content.removeprefix(codecs.BOM_UTF8).strip():
        raise ValueError(f"data file {path} is empty: download it again")
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or _UTF_16.match(content):
        raise ValueError(f"{path} is in UTF-16, not text in UTF-8: convert it")
    return content


def is_folder(path: Path) -> bool:
    """Return whether ``path`` is a folder; False also where that cannot be told."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def lines_of(content: bytes) -> list[bytes]:
    """Return the lines without their ends, be these LF or CRLF, and without a byte order mark.

    Only these end a line: text may hold the separators that Unicode has besides.
    """
    lines = content.removeprefix(codecs.BOM_UTF8).split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def line_text(line: bytes) -> str:
    """Return a line as text.

    Raises:
        MalformedError: If it is not UTF-8 or holds a NUL character.
    """
    if b"\0" in line:
        raise MalformedError("with a NUL character")
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise MalformedError("not in UTF-8") from None


def read_table(
    path: Path,
    content: bytes,
    split: Callable[[str], list[str]],
    columns: Mapping[str, tuple[str, ...]],
    what: str,
    omitted: Omissions,
) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the rows below a header, as the name of the line and the fields wanted of it.

    Args:
        path: The file, for messages.
        content: Its content, one row a line.
        split: Splits a line into fields; may raise :class:`MalformedError`.
        columns: The columns wanted, each with the names that a header may give it.
        what: What the file should be, for messages.
        omitted: Told of the lines that are no row.

    Raises:
        ValueError: If the header has not these columns.
    """
    lines = lines_of(content)
    try:
        header = [name.strip() for name in split(line_text(lines[0]))]
    except MalformedError as error:
        raise ValueError(f"{path} is not a {what}: its first line is {error}") from None
    places = {}
    for column, names in columns.items():
        place = next((header.index(name) for name in names if name in header), None)
        if place is None:
            raise ValueError(
                f"{path} is not a {what}: its first line names no column {' or '.join(names)}"
            )
        places[column] = place
    for number, line in enumerate(lines[1:], 2):
        name = f"line {number}"
        try:
            if not line.strip():
                raise MalformedError("blank")
            fields = split(line_text(line))
            if len(fields) != len(header):
                few = len(fields) < len(header)
                raise MalformedError("with too few fields" if few else "with too many fields")
        except MalformedError as error:
            omitted.add(str(error), name)
            continue
        yield name, {column: fields[place] for column, place in places.items()}
