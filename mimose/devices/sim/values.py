"""The values of small integer tensors, carried along with their shapes.

Meta tensors have no values, and models ask for a few: whether a mask hides anything, how long the
longest row is. What the batch brings in integers and booleans is kept, and small operators on it
are run for real as well, so that such a question has its true answer. Everything in floating point
stays unknown.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

MOST_ELEMENTS = 1 << 16
"""Largest tensor on which operators are run for its values."""
_ATTRIBUTE = "_mimose_value"

INTEGRAL = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types whose values are carried along."""


def set_value(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Remember the values of a meta tensor, if they are few integers."""
    # Elements that an expanded tensor repeats take no memory.
    if value.dtype in INTEGRAL and value.untyped_storage().nbytes() <= 8 * MOST_ELEMENTS:
        setattr(tensor, _ATTRIBUTE, value)


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor where they are known."""
    return tensor if not tensor.is_meta else getattr(tensor, _ATTRIBUTE, None)


def carry(func: Any, args: Any, kwargs: Any, outputs: Any) -> None:
    """Run an operator on its arguments' values, where all are known, for its outputs' values."""
    leaves, spec = pytree.tree_flatten((args, kwargs))
    numel = 0
    changed = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            value = value_of(leaf)
            if value is None:
                _forget(outputs)
                return
            numel = max(numel, leaf.numel())
            leaves[place] = value
            changed.append((leaf, value))
        elif isinstance(leaf, torch.device):
            leaves[place] = torch.device("cpu")
    results = [t for t in pytree.tree_leaves(outputs) if isinstance(t, torch.Tensor)]
    if not all(t.dtype in INTEGRAL for t in results):
        return
    is_view = getattr(func, "is_view", False)
    if not is_view and max([numel, *(t.numel() for t in results)]) > MOST_ELEMENTS:
        _forget(outputs)
        return
    value_args, value_kwargs = pytree.tree_unflatten(leaves, spec)
    values = pytree.tree_leaves(func(*value_args, **value_kwargs))
    for result, value in zip(results, (v for v in values if isinstance(v, torch.Tensor))):
        set_value(result, value)


def _forget(outputs: Any) -> None:
    for tensor in pytree.tree_leaves(outputs):
        if isinstance(tensor, torch.Tensor) and hasattr(tensor, _ATTRIBUTE):
            delattr(tensor, _ATTRIBUTE)
