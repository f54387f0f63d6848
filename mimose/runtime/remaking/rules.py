"""Which operators can run again in backward with the same result, and as what.

An operator can if it draws no random numbers, changes nothing and waits for nothing. Three kinds
can although they seem not to: an operator in place, by its functional form; dropout, whose mask is
saved, by multiplying again; batch norm, whose running statistics are left out of the second run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch

_aten = torch.ops.aten

_TOLD_BY_DATA = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
_MASKS = (torch.bool, torch.uint8)
_UNFILLED = frozenset(
    ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided")
)
_ATTENTION = frozenset(
    (
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    )
)
_NORMS = frozenset(("native_batch_norm", "cudnn_batch_norm", "_native_batch_norm_legit"))
_NORM_ARGUMENTS = 8
_COPIES = frozenset(("_to_copy", "copy_"))
# Their sums come in another order each time, on some devices.
_DISORDERLY = frozenset(
    (
        "bincount",
        "cumsum",
        "histc",
        "index_add",
        "index_put",
        "index_reduce",
        "put",
        "scatter_add",
        "scatter_reduce",
        "segment_reduce",
    )
)
# What they write beside their output is not all filled, or depends on who calls.
_OPAQUE = frozenset(("mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_thnn_fused_lstm_cell"))
_NAMESPACES = frozenset(("aten", "prims"))


class Again(NamedTuple):
    """How an operator runs a second time.

    Attributes:
        function: What to call.
        args: Its arguments; tensors are those of the first run.
        kwargs: Its keyword arguments, likewise.
    """

    function: Any
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


@cache
def is_view(function: Any) -> bool:
    """Whether an operator shows what it is given first in another way, if it does not copy it."""
    schema = function._schema
    outputs = schema.returns
    return (
        function.namespace == "aten"
        and not schema.is_mutable
        and len(outputs) > 0
        and all(o.alias_info is not None and not o.alias_info.is_write for o in outputs)
    )


@cache
def name_of(function: Any) -> str:
    """Return an operator's name without its namespace and overload."""
    return str(function._schema.name).rpartition("::")[2]


def reads_data(function: Any, args: Sequence[Any], result: Any) -> bool:
    """Whether the operator hands values of tensors to the program, which may go by them."""
    if _goes_by_data(function, args):
        return True
    return (
        name_of(function) in _COPIES
        and isinstance(result, torch.Tensor)
        and result.device.type == "cpu"
        and any(isinstance(a, torch.Tensor) and a.device.type != "cpu" for a in args)
    )


def _goes_by_data(function: Any, args: Sequence[Any]) -> bool:
    """Whether an operator's output, or its shape, is told by what a tensor holds."""
    if not any(tag in function.tags for tag in _TOLD_BY_DATA):
        return False
    if name_of(function) != "index":
        return True
    # Numbers pick as many rows as there are numbers; a mask picks as many as it is true for.
    return any(isinstance(i, torch.Tensor) and i.dtype in _MASKS for i in args[1])


def is_norm(function: Any) -> bool:
    """Whether it is a batch norm that says that it changes its running statistics."""
    return name_of(function) == "_native_batch_norm_legit" and not function._overloadname


def changed(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator changes, by its schema."""
    schema = function._schema.arguments
    named = [*zip(schema, args)]
    named += [(a, kwargs[a.name]) for a in schema[len(args) :] if a.name in kwargs]
    return [a for s, a in named if s.alias_info is not None and s.alias_info.is_write]


def changed_unseen(function: Any, args: Sequence[Any]) -> list[torch.Tensor]:
    """Return the running statistics that a batch norm changes, whatever its schema says."""
    if name_of(function) not in _NORMS or len(args) < _NORM_ARGUMENTS or not args[5]:
        return []
    return [a for a in args[3:5] if isinstance(a, torch.Tensor)]


def again(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Again | None:
    """Return how to run an operator again that returned new tensors; None if it cannot be.

    Args:
        function: The operator.
        args: Its arguments.
        kwargs: Its keyword arguments.
    """
    if function.namespace not in _NAMESPACES:
        return None
    name = name_of(function)
    norm = _batch_norm(function, name, args, kwargs)
    if norm is not None:
        return norm
    if function._schema.is_mutable or name in _UNFILLED or name in _OPAQUE:
        return None
    if _goes_by_data(function, args):
        return None
    if torch.Tag.nondeterministic_seeded in function.tags and not (
        name in _ATTENTION and _argument(function, args, kwargs, "dropout_p") == 0.0
    ):
        return None
    if any("Generator" in str(a.type) for a in function._schema.arguments):
        return None
    if name in _DISORDERLY and args[0].is_floating_point() and args[0].device.type != "cpu":
        return None
    return Again(function, args, kwargs)


def in_place(function: Any) -> Any | None:
    """Return the functional form of an operator in place, or None.

    Only where the operator's own name says so, and its first argument is all that it changes.
    """
    arguments = function._schema.arguments
    changed = [a.alias_info is not None and a.alias_info.is_write for a in arguments]
    name = name_of(function)
    if (
        function.namespace != "aten"
        or not name.endswith("_")
        or not changed
        or changed != [True] + [False] * (len(changed) - 1)
        or torch.Tag.nondeterministic_seeded in function.tags
    ):
        return None
    packet = getattr(_aten, name[:-1], None)
    return None if packet is None else getattr(packet, function._overloadname, None)


def dropout(function: Any, args: Sequence[Any], result: Any) -> Again | None:
    """Return how to make dropout's output again from its input and its mask.

    Args:
        function: The operator.
        args: Its arguments.
        result: What it returned: the output and the mask.
    """
    if name_of(function) != "native_dropout":
        return None
    tensor, p, train = args[0], args[1], args[2] if len(args) > 2 else True
    if train is False or not 0.0 < p < 1.0:
        return None
    scale = 1.0 / (1.0 - p)
    if tensor.device.type == "cuda" and tensor.dtype != torch.float64:
        # The fused kernel divides by the rate as a float32.
        scale = float(1.0 / torch.tensor(1.0 - p, dtype=torch.float32).double())
    return Again(_aten.native_dropout_backward.default, (tensor, result[1], scale), {})


def _batch_norm(
    function: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Again | None:
    """Return a batch norm that leaves its running statistics as they are."""
    if kwargs or name not in _NORMS or len(args) != _NORM_ARGUMENTS:
        return None
    tensor, weight, bias, _, _, training, momentum, epsilon = args
    if not training:
        return None if name == "_native_batch_norm_legit" else Again(function, args, kwargs)
    if name == "cudnn_batch_norm":
        function = _aten.cudnn_batch_norm.default
    else:
        function = _aten.native_batch_norm.default
    return Again(function, (tensor, weight, bias, None, None, True, momentum, epsilon), {})


def _argument(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Any:
    for place, argument in enumerate(function._schema.arguments):
        if argument.name == name:
            if place < len(args):
                return args[place]
            return kwargs.get(name, argument.default_value)
    return None
