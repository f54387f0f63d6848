"""One file a system; :data:`PLANNERS` names them all.

A planner from outside runs the same way: ``make_planner("package.module:Class")``.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
from typing import Any, cast

from mimose.planners.auto import Auto
from mimose.planners.base import Planner
from mimose.planners.baseline import Baseline
from mimose.planners.checkmate import Checkmate
from mimose.planners.checkmate_lp import CheckmateLP
from mimose.planners.delta import Delta
from mimose.planners.dtr import DTR
from mimose.planners.fixed import Fixed
from mimose.planners.full import Full
from mimose.planners.mimose import Mimose
from mimose.planners.periodic import Periodic
from mimose.planners.revolve import Revolve
from mimose.planners.rotor import Rotor
from mimose.planners.selective import Selective
from mimose.planners.sqrt_n import SqrtN
from mimose.planners.sublinear import Sublinear
from mimose.planners.sublinear_greedy import SublinearGreedy

__all__ = ["PLANNERS", "Planner", "make_planner", "planner_defaults", "planner_options"]

PLANNERS: dict[str, type[Planner]] = {
    "baseline": Baseline,
    "full": Full,
    "selective": Selective,
    "fixed": Fixed,
    "mimose": Mimose,
    "auto": Auto,
    "sublinear": Sublinear,
    "sublinear-greedy": SublinearGreedy,
    "sqrt-n": SqrtN,
    "periodic": Periodic,
    "revolve": Revolve,
    "rotor": Rotor,
    "checkmate": Checkmate,
    "checkmate-lp": CheckmateLP,
    "dtr": DTR,
    "delta": Delta,
}
"""Every planner by its name on the command line."""

_METHODS = ("bind", "plan", "observe", "state_dict", "load_state_dict")


def make_planner(name: str, **options: Any) -> Planner:
    """Return a new planner.

    Args:
        name: A key of :data:`PLANNERS`, or ``package.module:Class`` for a planner from outside.
        **options: Keyword arguments of the planner's class.

    Raises:
        ValueError: If there is no such planner, or it does not take these options.
    """
    chosen = _class_of(name)
    signature = inspect.signature(chosen)
    parameters = signature.parameters.values()
    unknown = options.keys() - signature.parameters.keys()
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in parameters):
        names = ", ".join(sorted(unknown))
        raise ValueError(f"planner {name!r} has no option {names}: {_takes(signature)}")
    try:
        signature.bind(**options)
    except TypeError as error:
        raise ValueError(f"planner {name!r}: {error}; {_takes(signature)}") from error
    return chosen(**options)


def planner_options(name: str) -> tuple[str, ...] | None:
    """Return the names of a planner's options; None if it takes any.

    Raises:
        ValueError: If there is no such planner.
    """
    parameters = inspect.signature(_class_of(name)).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def planner_defaults(name: str) -> dict[str, Any]:
    """Return a planner's options and what they are by default; none of one from outside."""
    if name not in PLANNERS:
        return {}
    parameters = inspect.signature(PLANNERS[name]).parameters.values()
    return {p.name: p.default for p in parameters if p.default is not p.empty}


def _class_of(name: str) -> type[Planner]:
    return _import(name) if ":" in name else _look_up(name)


def _look_up(name: str) -> type[Planner]:
    if name in PLANNERS:
        return PLANNERS[name]
    near = difflib.get_close_matches(name.lower(), PLANNERS, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"there is no planner {name!r}: {hint}There are {', '.join(PLANNERS)}, "
        "and package.module:Class for one from outside"
    )


def _import(name: str) -> type[Planner]:
    module_name, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"planner {name!r} cannot be loaded ({error}): "
            "give an importable module and a class in it, as package.module:Class"
        ) from error
    missing = [m for m in _METHODS if not callable(getattr(found, m, None))]
    missing += [m for m in ("name", "rescued") if not hasattr(found, m)]
    if not inspect.isclass(found) or missing:
        lacks = f" (it has no {', '.join(missing)})" if missing else ""
        raise ValueError(
            f"{name!r} is not a planner class{lacks}: see mimose.planners.base.Planner"
        )
    return cast("type[Planner]", found)


def _takes(signature: inspect.Signature) -> str:
    names = [p.name for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return f"its options are {', '.join(names)}" if names else "it has no options"
