"""One checkpointed call: save its input, drop what it computes, run it again in backward."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import _StopRecomputationError, checkpoint

from mimose.devices.base import Device

Function = Callable[[bool, tuple[Any, ...], dict[str, Any]], Any]
"""Called as ``function(rerun, args, kwargs)``; ``rerun`` is False the first time."""

_IMPORTED = "torch._dynamo"


def prepare(device: Device) -> None:
    """Import what PyTorch's ``checkpoint`` imports in its first call in a process.

    One of those modules leaves the frames of its import in a reference cycle, with all frames below
    them: within a step that would keep what the step has computed, until Python collects garbage.
    """
    if _IMPORTED not in sys.modules:
        with device.host_memory():
            importlib.import_module(_IMPORTED)
        gc.collect()


def checkpointed(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return ``function(False, args, kwargs)`` and keep nothing of it but its input.

    Every tensor in the arguments, wherever it is nested, is handed to
    :func:`torch.utils.checkpoint.checkpoint` as a positional one: only those are checked for having
    been changed in place before the rerun; a change to any other would go unnoticed.
    The first run gets the caller's own containers, so that one which appends to a list of the
    caller's does so once.
    """
    leaves, spec = pytree.tree_flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    tensors = [leaves[i] for i in places]
    for i in places:
        leaves[i] = None
    own = [(args, kwargs)]
    failed: list[Exception] = []
    del args, kwargs

    def body(*given: torch.Tensor) -> Any:
        if own:
            first_args, first_kwargs = own.pop()
            try:
                return function(False, first_args, first_kwargs)
            except _StopRecomputationError:  # That of a checkpoint around this one.
                raise
            except Exception as error:
                failed.append(error)
                return None
        filled = list(leaves)
        for i, tensor in zip(places, given):
            filled[i] = tensor
        again_args, again_kwargs = pytree.tree_unflatten(filled, spec)
        return function(True, again_args, again_kwargs)

    # The random state is always preserved: models call dropout as a function, too, so that no
    # search for modules can tell that there is none.
    result = checkpoint(body, *tensors, use_reentrant=False, preserve_rng_state=True)
    if failed:
        # Not before: PyTorch up to 2.12 leaves its hooks in force for as long as somebody holds the
        # error that ended a checkpoint.
        raise failed.pop()
    return result


def keeps_state(leaf: Any) -> bool:
    """Whether an argument is a key-value cache, which a second run would extend a second time."""
    return hasattr(leaf, "get_seq_length")


def active_checkpoint() -> Any:
    """Return what tells apart the non-reentrant checkpoint that this code runs in, or None."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = None if top is None else top(False)
    if hooks is None or getattr(hooks[0], "__module__", "") != "torch.utils.checkpoint":
        return None
    return hooks[0]
