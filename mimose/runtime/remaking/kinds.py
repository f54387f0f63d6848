"""What kinds of things modules hold: numbers, what has parts to go into, and whose it is."""

from __future__ import annotations

import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Collection, Mapping
from copy import copy
from enum import Enum
from functools import cache
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

MOST = 256
"""Containers with more in them, and objects with more attributes, are taken for data."""
_SCALARS = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    Enum,
    torch.dtype,
    torch.device,
)
_FLAT = (list, deque, set)
_LIBRARY = __file__.rpartition("runtime")[0]
_NOT_OURS = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), "<frozen")
_PLAIN_LIBRARY = frozenset(("types", "argparse", "collections", "functools", "builtins"))

Table = Mapping[Any, Any]


def is_scalar(value: Any) -> bool:
    """Whether a value says all there is to it: a number, a flag, a name; NumPy's numbers too."""
    if isinstance(value, _SCALARS):
        return True
    if isinstance(value, (tuple, frozenset)):
        return len(value) <= MOST and all(map(is_scalar, value))
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(kind, "itemsize")


def identities(parts: Collection[Any]) -> list[int]:
    """Return the identities of what was gone into."""
    if len(parts) > MOST:
        return []
    return [id(part) for part in parts if not is_scalar(part) and is_entered(part)]


def is_entered(part: Any) -> bool:
    """Whether a part counts by its identity, since there is more in it."""
    return isinstance(part, nn.Module) or acts(part) or has_parts(part)


def contents_at(name: Any) -> Callable[[Table], tuple[Any, ...]]:
    """Return what reads the container of that name in a table: the same tuple while it is equal."""
    known: Any = None
    content: tuple[Any, ...] = ()

    def read(table: Table) -> tuple[Any, ...]:
        nonlocal known, content
        value = table[name]
        try:
            if known is not None and type(value) is type(known) and value == known:
                return content
        except (RuntimeError, TypeError, ValueError):  # Tensors and arrays have no one answer.
            pass
        content = content_of(value)
        known = copy(value) if is_flat(value) else None
        return content

    return read


def is_flat(value: Any) -> bool:
    """Whether a value is a container of numbers alone."""
    if not isinstance(value, (*_FLAT, Mapping)) or len(value) > MOST:
        return False
    return all(map(is_scalar, value.values() if isinstance(value, Mapping) else value))


def content_of(value: Any) -> tuple[Any, ...]:
    """Return the numbers in what was a flat container, and what else there is to go into by now."""
    if isinstance(value, (*_FLAT, Mapping)):
        if len(value) > MOST:  # A log may have been short when it was found.
            return ()
        if isinstance(value, Mapping):
            found = [pair for pair in value.items() if is_scalar(pair[1]) or is_entered(pair[1])]
            return tuple(part for pair in found for part in pair)
        return tuple([part for part in value if is_scalar(part) or is_entered(part)])
    return (value,) if is_scalar(value) or is_entered(value) else ()


def acts(value: Any) -> bool:
    """Whether an attribute is something that a forward may call or go by."""
    if isinstance(value, (FunctionType, type)):
        return True
    return (
        callable(value)
        and not isinstance(value, (nn.Module, torch.Tensor))
        and type(value).__hash__ is not None
        and not hasattr(value, "__wrapped__")
        and not type(value).__module__.startswith("mimose.")
    )


def has_parts(value: Any) -> bool:
    """Whether a value holds settings of its own, as a configuration does."""
    if isinstance(value, (list, deque, tuple, set, frozenset, Mapping)):
        parts = value.values() if isinstance(value, Mapping) else value
        return len(value) <= MOST and not any(isinstance(part, torch.Tensor) for part in parts)
    if is_array(value):
        return bool(value.size <= MOST) and not value.dtype.hasobject
    kind = type(value)
    if (
        isinstance(value, (torch.Tensor, nn.Module, type, ModuleType, FunctionType))
        or hasattr(value, "__wrapped__")
        or is_foreign(kind.__module__)
        or is_library(kind.__module__)
    ):
        return False
    table = getattr(value, "__dict__", None)
    return bool(slots_of(kind)) or (isinstance(table, dict) and len(table) <= MOST)


def is_array(value: Any) -> bool:
    """Whether a value is an array of NumPy's."""
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray"


@cache
def is_foreign(name: str) -> bool:
    """Whether a module holds nothing that a user sets."""
    return name.partition(".")[0] in ("torch", "mimose")


@cache
def is_library(name: str) -> bool:
    """Whether a module is one of Python's own in which a user sets nothing."""
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names and top not in _PLAIN_LIBRARY and top != "__main__"


@cache
def is_own(file: str) -> bool:
    """Whether code is the user's own."""
    return bool(file) and not any(part in file for part in _NOT_OURS) and _LIBRARY not in file


def is_own_module(name: str) -> bool:
    """Whether a module is the user's own."""
    # In a notebook it has no file.
    file = getattr(sys.modules.get(name), "__file__", None)
    return is_own(file or ("<main>" if name == "__main__" else ""))


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the slots of a class and of those that it is derived from."""
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))


def names_in(code: CodeType) -> dict[str, None]:
    """Return the names that a function's code looks up, those of functions within it too."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(names_in(constant))
    return names
