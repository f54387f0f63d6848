"""Plain data of a JSON document as the dataclasses that it was, each type checked."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, Literal

_NAMES: Mapping[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
}


def parse(value: Any, kind: Any, where: str = "", *, defaults: bool = False) -> Any:
    """Return ``value`` as a value of the type ``kind``.

    What a dataclass has no field for is left out: that was derived from its fields.

    Args:
        value: Plain data as JSON knows it.
        kind: A dataclass, or a type that fields of one have.
        where: What ``value`` is, for messages.
        defaults: Whether ``value`` itself may lack what its dataclass has defaults for; deeper
            ones may anyway.

    Raises:
        ValueError: If something is missing or of another type; the message says what.
    """
    if is_dataclass(kind):
        return _dataclass(value, kind, where, defaults)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        (other,) = (argument for argument in arguments if argument is not type(None))
        return None if value is None else parse(value, other, where)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{where} is none of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        return _tuple(value, arguments, where)
    if kind is float and value is None:  # JSON has neither NaN nor infinities.
        return math.nan
    if not (type(value) is kind or (kind is float and type(value) is int)):
        raise ValueError(f"{where} is not {_NAMES[kind]}")
    return value


def check_types(value: Any, kinds: Mapping[str, Any], where: str = "") -> None:
    """Check those values of a mapping that have a type; each may be missing or null.

    Args:
        value: The mapping.
        kinds: Types by key; a mapping stands for a mapping of such.
        where: What ``value`` is, for messages.

    Raises:
        ValueError: If something is of another type; the message says what.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} is not an object")
    for key, kind in kinds.items():
        name = f"{where}.{key}" if where else key
        if value.get(key) is None:
            continue
        if isinstance(kind, Mapping):
            check_types(value[key], kind, name)
        else:
            parse(value[key], kind, name)


def _dataclass(value: Any, kind: Any, where: str, defaults: bool) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where or 'it'} is not an object")
    hints, found = typing.get_type_hints(kind), {}
    for field in fields(kind):
        name = f"{where}.{field.name}" if where else field.name
        if field.name in value:
            found[field.name] = parse(value[field.name], hints[field.name], name)
        elif field.default is MISSING or not (defaults or where):
            raise ValueError(f"{name} is missing")
    return kind(**found)


def _tuple(value: Any, kinds: tuple[Any, ...], where: str) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError(f"{where} is not a list")
    if kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(value) != len(kinds):
        raise ValueError(f"{where} has {len(value)} values, not {len(kinds)}")
    return tuple(
        parse(item, kind, f"{where}[{place}]")
        for place, (item, kind) in enumerate(zip(value, kinds, strict=True))
    )
