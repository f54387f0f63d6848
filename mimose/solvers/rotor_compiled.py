"""Rotor's table in C++, compiled at first use: the same numbers, several times faster."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mimose import compiled

Columns = Callable[[int, int], None]
"""Fills the table's rows that end at so many stages from one on, all earlier ones being there."""

COLUMNS = 8
"""How many to fill at once."""

_LIBRARY = compiled.Library(
    name="rotor",
    purpose="the solver of Rotor's table",
    files=(Path(__file__).with_name("rotor.cpp"),),
    no_compiler=(
        "no C++ compiler was found: install g++ (Debian, Ubuntu: apt install g++; Fedora: "
        "dnf install gcc-c++) or name one in $CXX"
    ),
    # One rounding an operation, as in numpy.
    flags=("-O3", "-ffp-contract=off", "-std=c++17", "-shared", "-fPIC"),
)

_WHOLE = ("x", "saved", "leaf", "reach", "keep_only")
_BYTES = ("ends_bytes", "own_bytes", "offsets", "distance", "widest_bytes")
_TIMES = ("forward", "backward", "again", "before")


class _Facts(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64) for name in ("loss", "unit", "top", "exact", "store_all")),
        *((name, ctypes.c_void_p) for name in (*_WHOLE, *_BYTES, *_TIMES)),
    ]


@functools.cache
def _load() -> ctypes.CDLL | str:
    """Return the library, or why there is none."""
    try:
        library = compiled.load(_LIBRARY)
    except ValueError as error:
        return str(error)
    pointer = ctypes.c_void_p
    library.mimose_rotor_columns.argtypes = [
        pointer,
        *[ctypes.c_int64] * 2,
        *[pointer] * 5,
    ]
    library.mimose_rotor_columns.restype = None
    return library


def problem() -> str | None:
    """Return why the solver cannot be compiled here, None if it can."""
    found = _load()
    return found if isinstance(found, str) else None


def column_solver(sizes: Any, before: Sequence[float], best: list[Any], store_all: bool) -> Columns:
    """Return what fills a table column by column; :func:`problem` must be None.

    Args:
        sizes: The chain's sizes, see :mod:`mimose.solvers.rotor`.
        before: Time of all forwards before each stage.
        best: The table, one array for each first stage, all of them contiguous.
        store_all: Whether blocks may be kept.
    """
    library = _load()
    assert not isinstance(library, str), library
    chain, loss, top = sizes.chain, sizes.loss, best[0].shape[1]
    pairs = [pair for found in sizes.widest for pair in found]
    own = [0] * loss
    if sizes.exact:
        own = [s + k for s, k in zip(chain.saved, chain.keep_temporary)]
    offsets = np.cumsum([0, *map(len, sizes.widest)])
    values = {
        "x": sizes.x,
        "saved": sizes.saved,
        "leaf": sizes.leaf,
        "reach": sizes.reach,
        "keep_only": [stage in chain.keep_only for stage in range(loss + 1)],
        "ends_bytes": sizes.ends,
        "own_bytes": own,
        "offsets": offsets,
        "distance": [distance for distance, _ in pairs],
        "widest_bytes": [size for _, size in pairs],
        "forward": chain.forward,
        "backward": chain.backward,
        "again": chain.again,
        "before": before,
    }
    arrays = {
        name: np.array(list(found), np.float64 if name in _TIMES else np.int64)
        for name, found in values.items()
    }
    facts = _Facts(loss, sizes.unit, top, sizes.exact, store_all)
    for name, array in arrays.items():
        setattr(facts, name, array.ctypes.data)
    rows = np.array([row.ctypes.data for row in best], np.uintp)
    after = np.empty((COLUMNS, loss + 1, top))
    scratch = np.empty((3, COLUMNS, loss + 1), np.int64)

    def solve(last: int, count: int) -> None:
        assert arrays, "what the facts point to must live"
        assert count <= COLUMNS
        library.mimose_rotor_columns(
            ctypes.byref(facts),
            last,
            count,
            rows.ctypes.data,
            after.ctypes.data,
            *(part.ctypes.data for part in scratch),
        )

    return solve
