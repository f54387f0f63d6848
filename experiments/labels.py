"""What tells runs of one planner apart: the options that were given to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mimose.units import format_bytes
from mimose_bench.experiments.config import PLANNER_OPTIONS

_LONGEST = 40
_SWITCHES = {True: "on", False: "off"}


def planner_label(planner: str, config: Mapping[str, Any]) -> str:
    """Return a planner's name and those of its options that are not what they are by default.

    Args:
        planner: The name.
        config: The run's configuration, as ``run.json`` has it.
    """
    return f"{planner} {options_label(planner, config)}".rstrip()


def options_label(planner: str, config: Mapping[str, Any], without: Collection[str] = ()) -> str:
    """Return the options by which a planner is not as it is by default; empty if there are none.

    Args:
        planner: The name.
        config: The run's configuration, as ``run.json`` has it.
        without: Options that are told elsewhere.
    """
    from mimose.planners import planner_defaults  # Whoever only reads runs needs no planner.

    given = {name: config.get(name) for name in (*PLANNER_OPTIONS, "plan_size")}
    given |= config.get("planner_options") or {}
    defaults = {name: _text(name, value) for name, value in planner_defaults(planner).items()}
    words = []
    for name, value in given.items():
        text = _text(name, value)
        if name not in without and value is not None and text != defaults.get(name):
            words.append(f"{name.replace('_', '-')}={text}")
    return " ".join(words)


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return _SWITCHES[value]
    if name == "margin" and isinstance(value, int):
        return format_bytes(value).replace(" ", "")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
