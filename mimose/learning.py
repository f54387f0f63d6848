"""What a handle has learned, as plain data, so that a resumed run does not measure again.

What a planner learned holds for one model in one configuration. Beside it lies what tells another
one: the model's class, its blocks, the shapes and types of its parameters, and which are trained.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from mimose.handle import Handle

_VERSION = 2


def state_of(handle: Handle) -> dict[str, Any]:
    """Return what was learned; see :meth:`Handle.state_dict`."""
    return {
        "version": _VERSION,
        "planner": handle.planner.name,
        "model": _identity(handle.model, handle._executor.module_names),
        "executor": handle._executor.state_dict(),
        "learned": handle.planner.state_dict(),
    }


def check_state(handle: Handle, state: Mapping[str, Any]) -> None:
    """Refuse what was learned of something else.

    Raises:
        ValueError: If ``state`` is no state of a handle, or was learned by another planner or of
            another model.
    """
    if not isinstance(state, Mapping) or not {"planner", "model", "learned"} <= state.keys():
        raise ValueError("this is not what a handle's state_dict() returned")
    if state.get("version") != _VERSION:
        raise ValueError(f"this state was saved by another version ({state.get('version')!r})")
    name = handle.planner.name
    if state["planner"] != name:
        raise ValueError(
            f"this state was learned by the planner {state['planner']!r}, not by {name!r}: attach "
            "with that planner"
        )
    then = state["model"]
    now = _identity(handle.model, handle._executor.module_names)
    for what, described in _DIFFERENCES.items():
        if then.get(what) != now[what]:
            raise ValueError(
                f"this state belongs to a model with {described}"
                f"{_told(_short(then.get(what)), _short(now[what]))}; load the state that was "
                "saved with this model, or give strict=False to learn anew"
            )


_DIFFERENCES = {
    "class": "another class",
    "blocks": "other blocks",
    "dtypes": "another dtype",
    "shapes": "parameters of other shapes",
    "trainable": "other trainable parameters",
}
"""What of a model's identity is compared, in this order, and how a difference is called."""


def _identity(model: torch.nn.Module, blocks: Iterable[str]) -> dict[str, Any]:
    parameters = list(model.parameters())
    return {
        "class": type(model).__name__,
        "blocks": list(blocks),
        "dtypes": sorted({str(p.dtype) for p in parameters}),
        "shapes": _digest(f"{tuple(p.shape)}" for p in parameters),
        "trainable": f"{sum(p.requires_grad for p in parameters)} of {len(parameters)}, "
        + _digest(str(int(p.requires_grad)) for p in parameters),
    }


_DIGEST = re.compile(r"(, )?[0-9a-f]{16}$")


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256(",".join(parts).encode()).hexdigest()[:16]


def _told(then: str, now: str) -> str:
    """Return what differs, if that can be read: digests cannot."""
    return "" if then == now else f": it was {then} and is {now}"


def _short(value: Any) -> str:
    if isinstance(value, list):
        return _listed([str(v) for v in value])
    # What is in front of a digest.
    return _DIGEST.sub("", str(value))


def _listed(names: list[str]) -> str:
    def parts() -> Iterator[str]:
        yield f"{len(names)} ({', '.join(names[:2])}"
        yield ", ...)" if len(names) > 2 else ")"

    return "".join(parts())
