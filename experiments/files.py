"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

TEMPORARY = ".tmp-"
"""Prefix of files still being written; readers pass over them."""


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` in one step; NaN and infinities, which JSON lacks, become null."""
    write_text(path, json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write ``text`` in one step."""
    write_bytes(path, text.encode("utf-8"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` in one step."""
    with _in_one_step(path) as file:
        file.write(data)


def write_table(path: Path, table: pa.Table) -> None:
    """Write ``table`` as parquet in one step."""
    with _in_one_step(path) as file:
        pq.write_table(table, file)


@contextlib.contextmanager
def _in_one_step(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` at the end of the block, or leaves no trace.

    Raises:
        OSError: If it cannot be written; the file that was meant is named, as it is not where a
            disk is full.
    """
    temporary = path.with_name(TEMPORARY + path.name)
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror or str(error), str(path)) from error
        raise


def jsonable(value: Any) -> Any:
    """Return ``value`` in JSON's types: paths as text, tuples and sets as lists, NaN as None."""
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): jsonable(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        return [jsonable(item) for item in sorted(value)]
    if isinstance(value, list | tuple):
        return [jsonable(item) for item in value]
    if hasattr(value, "item"):  # a numpy scalar
        return jsonable(value.item())
    return str(value)
