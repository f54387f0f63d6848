"""What a sweep runs: one typed file in TOML, or the same on the command line.

tasks = ["qa-bert", "tc-bert"]
planners = ["baseline", "full", "mimose", "mimose-authors"]
budgets = ["4GB", "50%"]        # a share lies between the measured bounds of task and device
seeds = [1, 2, 3]
devices = ["sim:v100"]

[options]                       # of every cell: the options of mimose-bench run
steps = 100

[planner.mimose-authors]        # a planner's own options and budgets, or a name of one's own
planner = "mimose"
variant = "authors"

[task.tc-bert]
budgets = ["paper"]
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import sys
import types
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mimose.units import parse_budget_bytes
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.names import nearest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

AXES = ("tasks", "planners", "budgets", "seeds", "devices")
_OF_THE_CELL = ("task", "planner", "budget", "seed", "device", "out")
OPTIONS = tuple(f.name for f in dataclasses.fields(RunConfig) if f.name not in _OF_THE_CELL)
"""Options of a run that a grid may set."""

PAPER = "paper"
NONE = "none"
_SHARE = re.compile(r"(?P<percent>[0-9]+(?:\.[0-9]+)?)\s*%")
_TYPES = typing.get_type_hints(RunConfig)


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget as a grid names it.

    Attributes:
        text: As it was written.
        num_bytes: Bytes; None for none at all, for a share and for the paper's budgets.
        share: Where it lies between the lower and the upper bound, from 0 to 1.
    """

    text: str
    num_bytes: int | None = None
    share: float | None = None

    @property
    def is_paper(self) -> bool:
        """Whether it stands for the budgets that the paper ran the task under."""
        return self.text == PAPER


@dataclass(frozen=True, slots=True)
class Part:
    """What a grid says of one planner or one task.

    Attributes:
        name: The name in the grid.
        of: The planner or task that is run.
        budgets: Budgets of its own, instead of those further up.
        options: Options of its own, by their names in :class:`RunConfig`.
    """

    name: str
    of: str
    budgets: tuple[Budget, ...] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Everything that a sweep runs.

    Attributes:
        tasks: The tasks.
        planners: The planners; two of them may be one planner with other options.
        budgets: Budgets of every task and planner that has none of its own.
        seeds: Seeds.
        devices: Devices as ``--device`` takes them.
        options: Options of every cell.
    """

    tasks: tuple[Part, ...]
    planners: tuple[Part, ...]
    budgets: tuple[Budget, ...]
    seeds: tuple[int, ...]
    devices: tuple[str, ...]
    options: Mapping[str, Any]

    def budgets_of(self, task: Part, planner: Part) -> tuple[Budget, ...]:
        """Return a task's budgets under a planner: none for the baseline unless it has its own."""
        if planner.budgets is not None:
            return planner.budgets
        if planner.of == "baseline":
            return (Budget(NONE),)
        return self.budgets if task.budgets is None else task.budgets

    def options_of(self, task: Part, planner: Part) -> dict[str, Any]:
        """Return a cell's options: the planner's own before the task's before everybody's."""
        return {**self.options, **task.options, **planner.options}


def read_grid(path: Path | None, given: Mapping[str, Any]) -> Grid:
    """Return the grid in a file, what the command line gives taking its place.

    Args:
        path: A TOML file; None for none.
        given: Axes and ``options`` from the command line, as in a file.

    Raises:
        ValueError: If the file cannot be read or something in it is wrong; the message names the
            place and what would be right.
    """
    where = "the command line" if path is None else str(path)
    document: dict[str, Any] = {} if path is None else _load(path)
    options = {**_table(where, "options", document.get("options", {})), **given.get("options", {})}
    # Tables of what the command line leaves out stay right.
    return _grid(where, {**document, **given, "options": options}, document)


def option_of(text: str) -> tuple[str, Any]:
    """Return the name and the value of an option given as ``KEY=VALUE``.

    Raises:
        ValueError: If there is no such option, or the value is not of its kind.
    """
    typed, sign, value = text.partition("=")
    typed = typed.strip().removeprefix("--")
    name = typed.replace("-", "_")
    if not sign or not name:
        raise ValueError(f"--option takes KEY=VALUE, not {text!r}")
    if name not in OPTIONS:
        raise ValueError(f"--option: there is no {typed!r}" + _hint(name, OPTIONS))
    kind = _kind(name)
    parsed: Any = value.strip()
    if kind is dict:
        raise ValueError(f"--option {typed} is a table: give it in a grid file")
    if kind is bool:
        words = {"true": True, "on": True, "false": False, "off": False}
        parsed = words.get(parsed.lower(), parsed)
    elif kind in (int, float) and not (name == "margin" and not parsed.isdigit()):
        with contextlib.suppress(ValueError):  # _value says what is wrong with it.
            parsed = kind(parsed)
    return name, _value(f"--option {typed}", name, parsed)


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"the grid {path} cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"the grid {path} is not text in UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"the grid {path} is not TOML: {error}") from error


def _grid(where: str, document: Mapping[str, Any], file: Mapping[str, Any]) -> Grid:
    for key in document:
        _known(where, key, (*AXES, "options", "planner", "task"))
    tasks = _names(where, "tasks", document.get("tasks"))
    planners = _names(where, "planners", document.get("planners"))
    budgets = _budgets(where, document.get("budgets", [NONE]))
    seeds = _list(where, "seeds", document.get("seeds", [RunConfig().seed]))
    for seed in seeds:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ValueError(f"{where}: seeds are whole numbers, not {seed!r}")
    return Grid(
        tasks=tuple(_parts(where, "task", tasks, document.get("task", {}), file.get("tasks"))),
        planners=tuple(
            _parts(where, "planner", planners, document.get("planner", {}), file.get("planners"))
        ),
        budgets=budgets,
        seeds=tuple(seeds),
        devices=_names(where, "devices", document.get("devices", ["auto"])),
        options=_options(where, "options", document["options"]),
    )


def _parts(where: str, kind: str, names: Sequence[str], tables: Any, known: Any) -> list[Part]:
    tables = _table(where, kind, tables)
    for name in tables:
        if name not in names and not (isinstance(known, list) and name in known):
            raise ValueError(
                f"{where}: there is a table [{kind}.{name}], but {name} is not among {kind}s"
                + _hint(name, names)
            )
    parts = []
    for name in names:
        place = f"{kind}.{name}"
        table = dict(_table(where, place, tables.get(name, {})))
        # A task's name is always its own: nothing would tell two of them apart in a run's record.
        of = table.pop("planner", name) if kind == "planner" else name
        if not isinstance(of, str):
            raise ValueError(f"{where}: {place}.planner is a planner's name, not {of!r}")
        own = table.pop("budgets", None)
        budgets = None if own is None else _budgets(where, own)
        extra = ("budgets", "planner") if kind == "planner" else ("budgets",)
        parts.append(Part(name, of, budgets, _options(where, place, table, extra)))
    return parts


def _options(
    where: str, place: str, table: Mapping[str, Any], extra: Sequence[str] = ()
) -> dict[str, Any]:
    found = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        _known(f"{where}: {place}", name, (*OPTIONS, *extra))
        found[name] = _value(f"{where}: {place}.{key}", name, value)
    return found


def _budgets(where: str, given: Any) -> tuple[Budget, ...]:
    found = [_budget(where, value) for value in _list(where, "budgets", given)]
    if len({b.text for b in found}) < len(found):
        raise ValueError(f"{where}: a budget is named twice in {given}")
    return tuple(found)


def _budget(where: str, value: Any) -> Budget:
    if isinstance(value, str):
        text = value.strip().lower()
        if text in (NONE, PAPER):
            return Budget(text)
        share = _SHARE.fullmatch(text)
        if share is not None:
            percent = float(share["percent"])
            if percent > 100:
                raise ValueError(f"{where}: a budget's share is from 0% to 100%, not {value!r}")
            return Budget(f"{percent:g}%", share=percent / 100)
    try:
        return Budget(str(value).strip(), num_bytes=parse_budget_bytes(value))
    except ValueError as error:
        raise ValueError(
            f"{where}: {error}; 'none', 'paper' and a share such as '50%' of the way between the "
            "task's bounds are budgets as well"
        ) from error


def _value(typed: str, name: str, value: Any) -> Any:
    """Return an option's value in its own type; errors call it as it was typed."""
    kind = _kind(name)
    if kind is dict:
        if not isinstance(value, Mapping):
            raise ValueError(f"{typed} must be a table, not {value!r}")
        return {
            key.replace("-", "_"): str(item).lower() if isinstance(item, bool) else str(item)
            for key, item in value.items()
        }
    if name == "margin" and isinstance(value, str):
        from mimose.planners.options import byte_count

        return byte_count(typed, value)
    is_bool = isinstance(value, bool)
    if kind is bool and is_bool:
        return value
    if kind is int and isinstance(value, int) and not is_bool:
        return value
    if kind is float and isinstance(value, int | float) and not is_bool:
        return float(value)
    if kind is str and isinstance(value, str):
        return value
    wanted = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}[kind]
    raise ValueError(f"{typed} must be {wanted}, not {value!r}")


def _kind(name: str) -> type:
    """Return the type of an option: bool, int, float, str or dict."""
    hint = _TYPES[name]
    if isinstance(hint, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    return typing.get_origin(hint) or hint


def _list(where: str, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list) or not value:
        raise ValueError(f"{where}: {key} must be a list with something in it, not {value!r}")
    return value


def _names(where: str, key: str, value: Any) -> tuple[str, ...]:
    if value is None:
        raise ValueError(f"{where} names no {key}: give {key} = [...] in a grid file, or --{key}")
    names = _list(where, key, value)
    for name in names:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{where}: {key} are names, not {name!r}")
        if names.count(name) > 1:
            raise ValueError(f"{where}: {name} is named twice in {key}")
    return tuple(names)


def _table(where: str, key: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{where}: {key} must be a table, not {value!r}")
    return value


def _known(where: str, key: str, known: Collection[str]) -> None:
    if key not in known:
        raise ValueError(f"{where}: there is no {key!r}" + _hint(key, known))


def _hint(name: str, known: Collection[str]) -> str:
    near = nearest(name, known)
    return f": choose one of {', '.join(known)}" if near is None else f": did you mean {near!r}?"
