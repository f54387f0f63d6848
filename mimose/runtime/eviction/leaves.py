"""Which plain tensors the arguments of an operator are, or consist of."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from mimose.runtime.eviction.lineage import is_plain
from mimose.runtime.eviction.pointers import storage_of


def addresses(values: Any) -> set[int]:
    """Return the addresses of the storages of all tensors in ``values``."""
    leaves = pytree.tree_leaves(values)
    return {storage_of(part)._cdata for leaf in leaves for part in parts(leaf)}


def parts(leaf: Any) -> list[torch.Tensor]:
    """Return the plain tensors that an argument is or consists of."""
    if is_plain(type(leaf)):
        if leaf.layout is not torch.strided:
            return []
        try:
            storage_of(leaf)
        except NotImplementedError:  # It stands for another tensor, within torch.func.
            wraps = torch._C._functorch.is_functorch_wrapped_tensor(leaf)
            return parts(torch._C._functorch.get_unwrapped(leaf)) if wraps else []
        return [leaf]
    if isinstance(leaf, torch.UntypedStorage):
        with torch._C._DisableTorchDispatch():
            return [torch.empty(0, dtype=torch.uint8, device=leaf.device).set_(leaf)]
    if isinstance(leaf, torch.Tensor) and hasattr(leaf, "__tensor_flatten__"):
        names, _ = leaf.__tensor_flatten__()
        return [part for name in names for part in parts(getattr(leaf, name))]
    return []
