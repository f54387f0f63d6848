"""Which numbers a block's forward can reach: on its modules, in what they hold, in globals.

A survey goes down from the modules to a bounded depth and notes places: a name in a table (an
object's attributes, a dictionary, a class, a module's globals), an attribute in slots, the contents
of a closure's cell, a short container.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from operator import attrgetter, itemgetter
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from mimose.runtime.remaking.kinds import (
    Table,
    acts,
    content_of,
    contents_at,
    has_parts,
    is_array,
    is_flat,
    is_foreign,
    is_library,
    is_own,
    is_own_module,
    is_scalar,
    names_in,
    slots_of,
)

DEPTH = 4
"""How far down what modules hold is looked at."""
MOST_PLACES = 4000
OWN = frozenset(nn.Module().__dict__) - {"training"}

Get = Callable[[Any], tuple[Any, ...]]


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
            if is_scalar(value) or acts(value):
                if self._count():
                    self._values.setdefault(id(table), (table, {}))[1][name] = None
            elif is_flat(value):
                # By what is in it: another one may be put there at each call.
                if self._count():
                    self.copies.append((contents_at(name), table))
                continue
            elif has_parts(value) or isinstance(value, nn.Module):
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
        elif has_parts(value) or acts(value):
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
            self.copies.append((content_of, value))
            if is_flat(value):
                return
            self.lists.append(value)
            for part in value:
                self._walk(part, depth - 1)
        elif is_array(value):
            self._count()
            self.copies.append((type(value).tobytes, value))
        else:
            self._instance(value, depth)

    def _instance(self, value: Any, depth: int) -> None:
        table = getattr(value, "__dict__", None)
        if isinstance(table, dict):
            self.tables.append(table)
            self._table(table, table, depth)
        for name in slots_of(type(value)):
            self._attribute(value, name, depth)
        if is_own_module(type(value).__module__):
            self._class(type(value), depth)

    def _attribute(self, owner: Any, name: str, depth: int) -> None:
        """Note a slot, or what is in a cell."""
        try:
            value = getattr(owner, name)
        except (AttributeError, ValueError):  # It is empty.
            return
        if (is_scalar(value) or acts(value)) and self._count():
            self._attributes.append((attrgetter(name, name), owner))
        elif (has_parts(value) or isinstance(value, nn.Module)) and self._count():
            self._held.append((attrgetter(name, name), owner))
        self._walk(value, depth - 1)

    def _class(self, kind: type, depth: int) -> None:
        """Note the numbers that classes hold, and go into their functions."""
        for base in kind.__mro__:
            if base in (nn.Module, object):
                break
            home = base.__module__
            if id(base) in self._seen or is_foreign(home) or is_library(home):
                continue
            self._seen[id(base)] = base
            table = vars(base)
            names = []
            for name, value in table.items():
                function = getattr(value, "fget", None) or getattr(value, "__func__", value)
                if isinstance(function, FunctionType):
                    if not is_own(function.__code__.co_filename):
                        if name != "forward":
                            continue
                        # Another may take its place; what it reads itself stays as it is.
                        self._seen[id(function)] = function
                    if function is value:
                        names.append(name)
                    else:
                        self._function(function, depth)
                elif not name.startswith("__") and (is_scalar(value) or has_parts(value)):
                    names.append(name)
            self._table(table, names, depth)

    def _function(self, function: FunctionType, depth: int) -> None:
        """Note what a function reads from elsewhere: its closure, its defaults, its globals."""
        if id(function) in self._seen or is_foreign(function.__module__ or ""):
            return
        self._seen[id(function)] = function
        for cell in function.__closure__ or ():
            self._attribute(cell, "cell_contents", depth)
        for default in function.__defaults__ or ():
            self._walk(default, depth - 1)
        if function.__kwdefaults__:
            self._table(function.__kwdefaults__, function.__kwdefaults__, depth)
        code = function.__code__
        if not is_own(code.co_filename):
            return
        named, around = names_in(code), function.__globals__
        found = [name for name in named if name in around]
        self._table(around, found, depth)
        for name in found:
            module = around[name]
            if isinstance(module, ModuleType) and is_own(getattr(module, "__file__", "") or ""):
                self._table(vars(module), [n for n in named if n in vars(module)], depth)


def _getters(found: dict[int, tuple[Table, dict[Any, None]]]) -> list[tuple[Get, Any]]:
    # With one name a getter returns no tuple.
    return [
        (itemgetter(*names) if len(names) > 1 else itemgetter(*names, *names), table)
        for table, names in found.values()
    ]
