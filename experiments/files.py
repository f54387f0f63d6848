"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TEMPORARY = ".tmp-"
"""Prefix of files still being written; readers pass over them."""


def write_json(path: Path, data: Any) -> None:
    """Write ``data`` in one step; NaN and infinities, which JSON lacks, become null."""
    text = json.dumps(jsonable(data), indent=2, allow_nan=False) + "\n"
    temporary = path.with_name(TEMPORARY + path.name)
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_table(path: Path, table: pa.Table) -> None:
    """Write ``table`` as parquet in one step."""
    temporary = path.with_name(TEMPORARY + path.name)
    with temporary.open("wb") as file:
        pq.write_table(table, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


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
