"""What a block's modules say that a trace of a call may have gone by: numbers, flags, adapters.

A trace holds the numbers that operators were called with. A dropout's rate on a schedule, say, or
an adapter that is switched off changes those and no shape, so each call looks whether all is as it
was.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any

import torch
from torch import nn

_SCALARS = (bool, int, float, str, type(None))
_MOST = 16
"""Containers with more in them are taken for data."""
_OWN = frozenset(nn.Module().__dict__) - {"training"}
_HOOKS = attrgetter("_forward_hooks", "_forward_pre_hooks")

Table = dict[str, Any]


class Settings:
    """Looks at what a block's modules say.

    Args:
        module: The block.

    Attributes:
        opaque: Whether it cannot be traced: ``fully_shard`` has taken its parameters over, which
            come and go, or something within it is compiled.
        restless: How many times in a row something was found that was never so before.
    """

    __slots__ = (
        "_children",
        "_containers",
        "_grown",
        "_known",
        "_last",
        "_module",
        "_number",
        "_objects",
        "_parameters",
        "_tables",
        "_values",
        "opaque",
        "restless",
    )

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._known: dict[Hashable, int] = {}
        self._last: Any = None
        self._number = -1
        self._grown = 0
        self.restless = 0
        self._read()

    def now(self) -> int:
        """Return a number that is the same whenever everything is as it was."""
        try:
            current = self._current()
        except KeyError:  # An attribute is gone.
            self._read()
            current = self._current()
        if not _alike(current[0], self._children):
            self._read()
            current = self._current()
        elif self._last is not None and _alike(current[1], self._last):
            self.restless = 0
            return self._number
        self._last = current[1]
        before = len(self._known)
        self._number = self._numbered((self._grown, *current[1]))
        self.restless = self.restless + 1 if len(self._known) > before else 0
        return self._number

    def _numbered(self, state: tuple[Any, ...]) -> int:
        try:
            return self._known.setdefault(_frozen(state), len(self._known))
        except TypeError:  # Cannot be looked up again.
            return self._known.setdefault(object(), len(self._known))

    def _current(self) -> tuple[Any, Any]:
        children, tables, hooks = self._tables
        objects = [id(table.get(name)) for table, name in self._objects]
        return (
            (children, list(map(len, tables)), objects),
            (
                [get(table) for get, table in self._values],
                [repr(table[name]) for table, name in self._containers],
                list(map(tuple, hooks)),
                [p is not None and p.requires_grad for d in self._parameters for p in d.values()],
            ),
        )

    def _read(self) -> None:
        """Look anew at which modules there are, and at what they have."""
        modules = list(self._module.modules())
        self.opaque = any(map(_is_opaque, modules))
        self._parameters = [m._parameters for m in modules]
        places: list[tuple[Table, str]] = []
        tables: list[Table] = []
        seen: set[int] = set()
        self._objects: list[tuple[Table, str]] = []
        for owner in modules:
            tables.append(vars(owner))
            for name, value in vars(owner).items():
                if name in _OWN:
                    continue
                places.append((vars(owner), name))
                if not _is_object(value):
                    continue
                self._objects.append((vars(owner), name))
                if id(value) not in seen:
                    seen.add(id(value))
                    tables.append(vars(value))
                    places += [(vars(value), n) for n in vars(value)]
        names: dict[int, tuple[Table, list[str]]] = {}
        for table, name in places:
            if isinstance(table[name], _SCALARS) or _acts(table[name]):
                names.setdefault(id(table), (table, []))[1].append(name)
        self._values = [(itemgetter(*found), table) for table, found in names.values()]
        self._containers = [(d, n) for d, n in places if _small(d[n])]
        children = [m._modules for m in modules]
        self._tables = children, tables, [hooks for m in modules for hooks in _HOOKS(m)]
        self._children = (
            [dict(c) for c in children],
            list(map(len, tables)),
            [id(table[name]) for table, name in self._objects],
        )
        # Other modules with the same settings are something else.
        self._grown += 1


def _is_opaque(module: nn.Module) -> bool:
    held = vars(module)
    config = held.get("config")
    return (
        any(base.__name__ in _OPAQUE for base in type(module).__mro__)
        or held.get("_compiled_call_impl") is not None
        or any(hasattr(value, "_torchdynamo_orig_callable") for value in held.values())
        # Compiles itself where nobody else has done so.
        or getattr(config, "_attn_implementation", None) == "flex_attention"
    )


_OPAQUE = frozenset(("FSDPModule", "OptimizedModule"))


def _alike(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # Arrays, for one, have no one answer.
        return False


def _frozen(value: Any) -> Hashable:
    """Return something that is equal for equal values of equal types."""
    if isinstance(value, (tuple, list)):
        return tuple(_frozen(part) for part in value)
    hash(value)
    return type(value), value


def _acts(value: Any) -> bool:
    """Whether an attribute is something that a forward may call or go by."""
    return isinstance(value, (FunctionType, type)) or (
        isinstance(value, Callable)  # type: ignore[arg-type]
        and not isinstance(value, (nn.Module, torch.Tensor))
        and type(value).__hash__ is not None
        and not hasattr(value, "__wrapped__")
    )


def _is_object(value: Any) -> bool:
    """Whether an attribute holds settings of its own, as a configuration does."""
    return (
        hasattr(value, "__dict__")
        and not isinstance(value, (nn.Module, torch.Tensor, type, Callable))  # type: ignore[arg-type]
        and len(vars(value)) <= _MOST_SETTINGS
    )


_MOST_SETTINGS = 256


def _small(value: Any) -> bool:
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    else:
        return False
    return len(parts) <= _MOST and all(isinstance(part, _SCALARS) for part in parts)
