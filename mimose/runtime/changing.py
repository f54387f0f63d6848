"""Which operators change a tensor in place, and a watch for those that change a block's input."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

# End like an operator that writes data, and write none.
_NO_DATA = frozenset(("requires_grad_", "rename_", "share_memory_"))
_IN_PLACE = frozenset(
    (
        "__iadd__",
        "__iand__",
        "__idiv__",
        "__ifloordiv__",
        "__ilshift__",
        "__imatmul__",
        "__imod__",
        "__imul__",
        "__ior__",
        "__ipow__",
        "__irshift__",
        "__isub__",
        "__itruediv__",
        "__ixor__",
        "__setitem__",
    )
)


def changes(func: Any, kwargs: Mapping[str, Any] | None = None) -> bool:
    """Whether a function, as overrides see it, changes its first argument."""
    name = getattr(func, "__name__", "")
    if name in _IN_PLACE or (kwargs is not None and kwargs.get("inplace") is True):
        return True
    return name.endswith("_") and not name.endswith("__") and name not in _NO_DATA


class InputChange(Exception):  # noqa: N818 - nothing has gone wrong
    """A block is about to change its input."""


class InputWatch(TorchFunctionMode):
    """Raises before a block changes one of its arguments, while it has not yet.

    Args:
        given: The arguments' tensors.
    """

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self._storages = {s for tensor in given if (s := _storage(tensor))}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``func`` unless it would change an argument.

        Raises:
            InputChange: If it would.
        """
        kwargs = kwargs or {}
        written = [args[0]] if args and changes(func, kwargs) else []
        out = kwargs.get("out")
        written += list(out) if isinstance(out, tuple) else [out]
        for tensor in written:
            if isinstance(tensor, torch.Tensor) and _storage(tensor) in self._storages:
                raise InputChange
        return func(*args, **kwargs)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0
