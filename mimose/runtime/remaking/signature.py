"""What a call's trace depends on: the kinds and places of its arguments, and what is in force."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from enum import Enum
from typing import Any

import torch
from torch.backends import cuda
from torch.utils import _pytree as pytree

Signature = tuple[Hashable, ...]
SETTINGS = 0
"""The place of the settings in it."""

_VALUES = (
    bool,
    int,
    float,
    complex,
    str,
    bytes,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    type(Ellipsis),
    Enum,
)
_CONTAINERS = frozenset((tuple, list, dict))


def leaves_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[list[Any], Hashable]:
    """Return all that a call's arguments hold, in order, and in what it is held."""
    leaves: list[Any] = []
    return leaves, (
        tuple([_walk(a, leaves) for a in args]),
        tuple([(name, _walk(a, leaves)) for name, a in kwargs.items()]),
    )


def _walk(value: Any, leaves: list[Any]) -> Hashable:
    kind = type(value)
    if kind is torch.Tensor or kind in _VALUES:
        leaves.append(value)
        return None
    if kind is tuple or kind is list:
        return kind, tuple([_walk(item, leaves) for item in value])
    if kind is dict:
        return kind, tuple([(key, _walk(item, leaves)) for key, item in value.items()])
    if kind in pytree.SUPPORTED_NODES:
        inner, context = pytree.SUPPORTED_NODES[kind].flatten_fn(value)
        return kind, repr(context), tuple([_walk(item, leaves) for item in inner])
    leaves.append(value)
    return None


class Itself:
    """Equal to itself alone; holds what it stands for, so that nothing else has its identity."""

    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and other.held is self.held

    def __hash__(self) -> int:
        return id(self.held)


def signature_of(leaves: list[Any], structure: Hashable, settings: int, kind: str) -> Signature:
    """Return what tells whether a call's trace holds for another.

    Args:
        leaves: The call's arguments.
        structure: In what they are held.
        settings: What :class:`Settings` says.
        kind: The kind of device.
    """
    told: list[Hashable] = []
    storages: dict[int, int] = {}
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            told.append((type(leaf), leaf if isinstance(leaf, _VALUES) else Itself(leaf)))
        elif leaf.layout != torch.strided or leaf.is_nested:
            told.append((type(leaf), leaf.layout))
        else:
            told.append(
                (
                    leaf.shape,
                    leaf.stride(),
                    leaf.storage_offset(),
                    leaf.dtype,
                    leaf.device,
                    leaf.requires_grad,
                    type(leaf),
                    # Which arguments lie in one storage.
                    storages.setdefault(leaf.untyped_storage()._cdata, len(storages))
                    if type(leaf) is torch.Tensor
                    else -1,
                )
            )
    return settings, structure, tuple(told), _in_force(kind)


def readable(leaves: list[Any]) -> bool:
    """Whether arguments are of kinds that tell themselves: tensors, numbers and the like.

    What another object holds may change from call to call.
    """
    return all(isinstance(leaf, (torch.Tensor, *_VALUES)) or callable(leaf) for leaf in leaves)


def _in_force(kind: str) -> Hashable:
    kernels = (
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        torch.get_default_dtype(),
    )
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return kernels
    return (*kernels, torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled())


def hooks_in_force() -> bool:
    """Whether others have hooks on what is saved for backward, or have forbidden them."""
    autograd = torch._C._autograd
    enabled = getattr(autograd, "_saved_tensors_hooks_is_enabled", None)
    if enabled is not None and not enabled():
        return True
    top = getattr(autograd, "_top_saved_tensors_default_hooks", None)
    return top is not None and top(False) is not None
