"""Which numbers a block's forward can reach: on its modules, in what they hold, in globals.

A survey goes down from the modules to a bounded depth and notes places: a name in a table (an
object's attributes, a dictionary, a class, a module's globals), an attribute in slots, the contents
of a closure's cell, a short container.
"""

from __future__ import annotations

import sys
import sysconfig
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from enum import Enum
from functools import cache, partial
from operator import attrgetter, itemgetter
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

DEPTH = 4
"""How far down what modules hold is looked at."""
MOST_PLACES = 4000
_MOST = 256
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
OWN = frozenset(nn.Module().__dict__) - {"training"}
_NOT_OURS = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), "<frozen")
_PLAIN_LIBRARY = frozenset(("types", "argparse", "collections", "functools", "builtins"))

Get = Callable[[Any], tuple[Any, ...]]
Table = Mapping[Any, Any]


class Survey:
    """Looks at what modules, and what they hold, say.

    Args:
        modules: All modules of a block.

    Attributes:
        values: What reads the numbers and functions of one owner, and the owner.
        objects: What reads the objects that were gone into, which count by identity.
        copies: What copies a container of numbers, and the container.
        lists: Containers of objects.
        tables: Tables in which a new name matters.
        full: Whether there is more than is looked at.
    """

    def __init__(self, modules: list[nn.Module]) -> None:
        self.copies: list[tuple[Callable[[Any], Any], Any]] = []
        self.lists: list[Any] = []
        self.tables: list[Table] = []
        self.full = False
        self._places = 0
        self._values: dict[int, tuple[Table, dict[Any, None]]] = {}
        self._objects: dict[int, tuple[Table, dict[Any, None]]] = {}
        self._attributes: list[tuple[Get, Any]] = []
        self._held: list[tuple[Get, Any]] = []
        # Holds what was seen: the identity of something that is gone may be another one's.
        self._seen: dict[int, Any] = {id(module): module for module in modules}
        for module in modules:
            self.tables.append(vars(module))
            self._table(vars(module), [n for n in vars(module) if n not in OWN], DEPTH)
            self._class(type(module), DEPTH)
            for hooks in (module._forward_hooks, module._forward_pre_hooks):
                for hook in hooks.values():
                    self._walk(hook, DEPTH)
        self.values = _getters(self._values) + self._attributes
        self.objects = _getters(self._objects) + self._held

    def _count(self) -> bool:
        self._places += 1
        self.full = self.full or self._places > MOST_PLACES
        return not self.full

    def _table(self, table: Table, names: Iterable[Any], depth: int) -> None:
        """Note names of a table, and go into what they stand for."""
        for name in names:
            value = table[name]
            if is_scalar(value) or _acts(value):
                if self._count():
                    self._values.setdefault(id(table), (table, {}))[1][name] = None
            elif _is_flat(value):
                # By what is in it: another one may be put there at each call.
                if self._count():
                    self.copies.append((_contents_at(name), table))
                continue
            elif _has_parts(value) or isinstance(value, nn.Module):
                if self._count():
                    self._objects.setdefault(id(table), (table, {}))[1][name] = None
            else:
                continue
            self._walk(value, depth - 1)

    def _walk(self, value: Any, depth: int) -> None:
        if depth < 0 or self.full or is_scalar(value) or id(value) in self._seen:
            return
        if isinstance(value, nn.Module):
            self._seen[id(value)] = value
            names = [n for n, v in vars(value).items() if n not in OWN and is_scalar(v)]
            self._table(vars(value), names, depth)
        elif isinstance(value, FunctionType):
            self._function(value, depth)
        elif isinstance(value, MethodType):
            self._walk(value.__func__, depth)
            self._walk(value.__self__, depth)
        elif isinstance(value, type):
            self._class(value, depth)
        elif _has_parts(value) or _acts(value):
            self._seen[id(value)] = value
            self._parts(value, depth)

    def _parts(self, value: Any, depth: int) -> None:
        if isinstance(value, partial):
            for part in (value.func, *value.args):
                self._walk(part, depth)
            self._table(value.keywords, value.keywords, depth)
        elif isinstance(value, Mapping):
            self.tables.append(value)
            self._table(value, value, depth)
        elif isinstance(value, (list, deque, tuple, set, frozenset)):
            self._count()
            self.copies.append((_content, value))
            if _is_flat(value):
                return
            self.lists.append(value)
            for part in value:
                self._walk(part, depth - 1)
        elif _is_array(value):
            self._count()
            self.copies.append((type(value).tobytes, value))
        else:
            self._instance(value, depth)

    def _instance(self, value: Any, depth: int) -> None:
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            self.tables.append(table)
            self._table(table, table, depth)
        for name in _slots(type(value)):
            self._attribute(value, name, depth)
        if _is_own_module(type(value).__module__):
            self._class(type(value), depth)

    def _attribute(self, owner: Any, name: str, depth: int) -> None:
        """Note a slot, or what is in a cell."""
        try:
            value = getattr(owner, name)
        except (AttributeError, ValueError):  # It is empty.
            return
        if (is_scalar(value) or _acts(value)) and self._count():
            self._attributes.append((attrgetter(name, name), owner))
        elif (_has_parts(value) or isinstance(value, nn.Module)) and self._count():
            self._held.append((attrgetter(name, name), owner))
        self._walk(value, depth - 1)

    def _class(self, kind: type, depth: int) -> None:
        """Note the numbers that classes hold, and go into their functions."""
        for base in kind.__mro__:
            if base in (nn.Module, object):
                break
            home = base.__module__
            if id(base) in self._seen or _is_foreign(home) or _is_library(home):
                continue
            self._seen[id(base)] = base
            table = vars(base)
            names = []
            for name, value in table.items():
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(function, FunctionType):
                    if not _is_own(function.__code__.co_filename):
                        if name != "forward":
                            continue
                        # Another may take its place; what it reads itself stays as it is.
                        self._seen[id(function)] = function
                    if function is value:
                        names.append(name)
                    else:
                        self._function(function, depth)
                elif not name.startswith("__") and (is_scalar(value) or _has_parts(value)):
                    names.append(name)
            self._table(table, names, depth)

    def _function(self, function: FunctionType, depth: int) -> None:
        """Note what a function reads from elsewhere: its closure, its defaults, its globals."""
        if id(function) in self._seen or _is_foreign(function.__module__ or ""):
            return
        self._seen[id(function)] = function
        for cell in function.__closure__ or ():
            self._attribute(cell, "cell_contents", depth)
        for default in function.__defaults__ or ():
            self._walk(default, depth - 1)
        if function.__kwdefaults__:
            self._table(function.__kwdefaults__, function.__kwdefaults__, depth)
        code = function.__code__
        if not _is_own(code.co_filename):
            return
        named, around = _names(code), function.__globals__
        found = [name for name in named if name in around]
        self._table(around, found, depth)
        for name in found:
            module = around[name]
            if isinstance(module, ModuleType) and _is_own(getattr(module, "__file__", "") or ""):
                self._table(vars(module), [n for n in named if n in vars(module)], depth)


def is_scalar(value: Any) -> bool:
    """Whether a value says all there is to it: a number, a flag, a name; NumPy's numbers too."""
    if isinstance(value, _SCALARS):
        return True
    if isinstance(value, (tuple, frozenset)):
        return len(value) <= _MOST and all(map(is_scalar, value))
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ != "ndarray" and hasattr(kind, "itemsize")


def identities(parts: Collection[Any]) -> list[int]:
    """Return the identities of what was gone into."""
    if len(parts) > _MOST:
        return []
    return [id(part) for part in parts if not is_scalar(part) and _is_entered(part)]


def _is_entered(part: Any) -> bool:
    return isinstance(part, nn.Module) or _acts(part) or _has_parts(part)


def _contents_at(name: Any) -> Callable[[Table], tuple[Any, ...]]:
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
        content = _content(value)
        known = copy(value) if _is_flat(value) else None
        return content

    return read


def _is_flat(value: Any) -> bool:
    """Whether a value is a container of numbers alone."""
    if not isinstance(value, (*_FLAT, Mapping)) or len(value) > _MOST:
        return False
    return all(map(is_scalar, value.values() if isinstance(value, Mapping) else value))


def _content(value: Any) -> tuple[Any, ...]:
    """Return the numbers in what was a flat container, and what else there is to go into by now."""
    if isinstance(value, (*_FLAT, Mapping)):
        if len(value) > _MOST:  # A log may have been short when it was found.
            return ()
        if isinstance(value, Mapping):
            found = [pair for pair in value.items() if is_scalar(pair[1]) or _is_entered(pair[1])]
            return tuple(part for pair in found for part in pair)
        return tuple([part for part in value if is_scalar(part) or _is_entered(part)])
    return (value,) if is_scalar(value) or _is_entered(value) else ()


_FLAT = (list, deque, set)


def _getters(found: dict[int, tuple[Table, dict[Any, None]]]) -> list[tuple[Get, Any]]:
    # With one name a getter returns no tuple.
    return [
        (itemgetter(*names) if len(names) > 1 else itemgetter(*names, *names), table)
        for table, names in found.values()
    ]


def _acts(value: Any) -> bool:
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


def _has_parts(value: Any) -> bool:
    """Whether a value holds settings of its own, as a configuration does."""
    if isinstance(value, (list, deque, tuple, set, frozenset, Mapping)):
        parts = value.values() if isinstance(value, Mapping) else value
        return len(value) <= _MOST and not any(isinstance(part, torch.Tensor) for part in parts)
    if _is_array(value):
        return bool(value.size <= _MOST) and not value.dtype.hasobject
    kind = type(value)
    if (
        isinstance(value, (torch.Tensor, nn.Module, type, ModuleType, FunctionType))
        or hasattr(value, "__wrapped__")
        or _is_foreign(kind.__module__)
        or _is_library(kind.__module__)
    ):
        return False
    table = getattr(value, "__dict__", None)
    return bool(_slots(kind)) or (isinstance(table, dict) and len(table) <= _MOST)


def _is_array(value: Any) -> bool:
    kind = type(value)
    return kind.__module__ == "numpy" and kind.__name__ == "ndarray"


@cache
def _is_foreign(name: str) -> bool:
    """Whether a module holds nothing that a user sets."""
    return name.partition(".")[0] in ("torch", "mimose")


@cache
def _is_library(name: str) -> bool:
    top = name.partition(".")[0]
    return top in sys.stdlib_module_names and top not in _PLAIN_LIBRARY and top != "__main__"


@cache
def _is_own(file: str) -> bool:
    """Whether code is the user's own."""
    return bool(file) and not any(part in file for part in _NOT_OURS) and _LIBRARY not in file


def _is_own_module(name: str) -> bool:
    # In a notebook it has no file.
    file = getattr(sys.modules.get(name), "__file__", None)
    return _is_own(file or ("<main>" if name == "__main__" else ""))


_LIBRARY = __file__.rpartition("runtime")[0]


def _slots(kind: type) -> tuple[str, ...]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        found += [slots] if isinstance(slots, str) else slots
    return tuple(name for name in found if not name.startswith("__"))


def _names(code: CodeType) -> dict[str, None]:
    """Return the names that a function's code looks up, those of functions within it too."""
    names = dict.fromkeys(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names.update(_names(constant))
    return names
