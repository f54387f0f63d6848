"""The values of small integer tensors, carried along with their shapes.

Meta tensors have no values, and models ask for a few: whether a mask hides anything, how long the
longest row is. What the batch brings in integers and booleans is kept, constants that the model
makes likewise, and small operators on them are run for real as well, so that such a question has
its true answer. What is computed from anything else in floating point stays unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

aten = torch.ops.aten

MOST_ELEMENTS = 1 << 20
"""Largest tensor on which operators are run for its values."""
INTEGRAL = frozenset({torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64})
"""Types whose values are carried along."""

_ATTRIBUTE = "_mimose_value"

CONSTANTS = {
    aten.ones_like,
    aten.zeros_like,
    aten.full_like,
    aten.new_ones,
    aten.new_zeros,
    aten.new_full,
}
"""Operators of whose tensor argument only shape and type matter."""
_MOST_CONSTANT = 1 << 16  # elements


class _Known:
    """A tensor's values.

    Attributes:
        value: The values, on the CPU. Those of a view are a view of those of its base.
        valid: Shared by all views of one storage: becomes [False] when one of them is changed to
            something unknown.
        storage: The storage that they are the values of: a tensor can be given another one.
    """

    __slots__ = ("storage", "valid", "value")

    def __init__(self, value: torch.Tensor, valid: list[bool], storage: int) -> None:
        self.value = value
        self.valid = valid
        self.storage = storage


def set_value(tensor: torch.Tensor, value: torch.Tensor, base: torch.Tensor | None = None) -> None:
    """Remember the values of a meta tensor, if they are few.

    Args:
        tensor: The tensor.
        value: Its values.
        base: The tensor that it is a view of, if it is one.
    """
    # Elements that an expanded tensor repeats take no memory.
    if value.untyped_storage().nbytes() <= 8 * MOST_ELEMENTS:
        known = None if base is None else getattr(base, _ATTRIBUTE, None)
        valid = [True] if known is None else known.valid
        setattr(tensor, _ATTRIBUTE, _Known(value, valid, tensor.untyped_storage()._cdata))


def value_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a tensor where they are known."""
    if not tensor.is_meta:
        return tensor
    known: _Known | None = getattr(tensor, _ATTRIBUTE, None)
    if known is None or not known.valid[0]:
        return None
    if known.storage != tensor.untyped_storage()._cdata or known.value.shape != tensor.shape:
        return None
    return known.value


def carry(func: Any, args: Any, kwargs: Any, outputs: Any, *, view: bool = False) -> None:
    """Run an operator on its arguments' values, where all are known, for its outputs' values.

    Where they are not, what the operator changes in place is unknown from here on.

    Args:
        func: The operator.
        args: Its arguments.
        kwargs: Likewise, by name.
        outputs: What it returned.
        view: Whether the outputs are views of the first argument.
    """
    if func.overloadpacket in CONSTANTS:
        if _numel(outputs) > _MOST_CONSTANT:
            return
        first = args[0]
        args = (torch.empty((), dtype=first.dtype).expand(first.shape), *args[1:])
    changes = func._schema.is_mutable
    leaves, spec = pytree.tree_flatten((args, kwargs))
    results = list(_tensors(outputs))
    numel = max(_numel(results), _numel(leaves))
    # Floating point is carried only as far as constants and changes to them go.
    constant = func.overloadpacket in CONSTANTS or not _any_tensor(args)
    wanted = view or changes or constant or all(t.dtype in INTEGRAL for t in results)
    known = wanted and (view or numel <= MOST_ELEMENTS)
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            value = value_of(leaf) if known else None
            if value is None:
                known = False
                break
            leaves[place] = value
        elif isinstance(leaf, torch.device):
            leaves[place] = torch.device("cpu")
    if not known:
        if changes:
            forget((args, kwargs))
        return
    value_args, value_kwargs = pytree.tree_unflatten(leaves, spec)
    found = list(_tensors(func(*value_args, **value_kwargs)))
    if changes:
        return  # in the values themselves
    for result, value in zip(results, found):
        set_value(result, value, args[0] if view else None)


def forget(arguments: Any) -> None:
    """Take note that tensors were changed to something unknown, and so all that share memory."""
    for tensor in _tensors(arguments):
        known = getattr(tensor, _ATTRIBUTE, None)
        if known is not None:
            known.valid[0] = False


def has_values(tensors: list[torch.Tensor]) -> bool:
    """Return whether any of the tensors' values are carried along."""
    return any(hasattr(tensor, _ATTRIBUTE) for tensor in tensors)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, torch.Tensor))


def _numel(values: Any) -> int:
    return max((tensor.numel() for tensor in _tensors(values)), default=0)


def _any_tensor(args: Any) -> bool:
    return next(_tensors(args), None) is not None
