"""What a handle has learned, as plain data, so that a resumed run does not measure again.

What a planner learned holds for one model in one configuration. Beside it lies what tells another
one: the model's class, its blocks, the shapes and types of its parameters, and which are trained.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from mimose.distributed.processes import num_processes, rank

if TYPE_CHECKING:
    from mimose.handle import Handle

_VERSION = 2
_OTHERS = "others"
"""Beside what the first process has learned, what the others have, in a state for all of them."""


def state_of(handle: Handle) -> dict[str, Any]:
    """Return what was learned; see :meth:`Handle.state_dict`."""
    return {
        "version": _VERSION,
        "planner": handle.planner.name,
        "model": _identity(handle.model, handle._executor.module_names),
        "executor": handle._executor.state_dict(),
        "autocast": handle._cast,
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


def learned_by_all(own: dict[str, Any], handle: Handle | None) -> dict[str, Any]:
    """Return what all processes have learned, for a checkpoint that the first of them writes.

    Collective, but for a process that saves because of an exception, of which the others know
    nothing: it has its own to save.

    Args:
        own: What this process has learned.
        handle: Its handle, if the model is still attached.
    """
    if num_processes() == 1 or _OTHERS in own or sys.exc_info()[0] is not None:
        return own
    states: list[Any] = [None] * num_processes()
    with nullcontext() if handle is None else handle.device.host_memory():
        dist.all_gather_object(states, own)
    return {**states[0], _OTHERS: states[1:]}


def learned_by_this(learned: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this process takes of what :func:`learned_by_all` returned.

    That is its own; one that was not there then takes what the first one had learned.
    """
    others = learned.get(_OTHERS, [])
    if 0 < rank() <= len(others):
        return dict(others[rank() - 1])
    return {name: value for name, value in learned.items() if name != _OTHERS}


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
