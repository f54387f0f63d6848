"""Hold what a recomputed call saves for as long as a kept one would.

A checkpoint lets go of a tensor as it hands it to backward. What takes it mostly holds it until it
has run. Not so a checkpoint within the block: its own second run starts from tensors that a kept
block has until that checkpoint's backward is over, and a recomputed one until something has read
them. What is measured while a block is recomputed would be too low for keeping it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

KNOWS_HOOKS = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
"""Whether this PyTorch tells which hooks a checkpoint has, so that others can be put before them;
2.8 and later do."""


class Held:
    """Stands for a saved tensor, and holds it from when backward has come to it.

    PyTorch lets go of this once what saved the tensor has run.
    """

    __slots__ = ("__weakref__", "packed", "tensor")

    def __init__(self, packed: Any) -> None:
        self.packed = packed
        self.tensor: torch.Tensor | None = None


class Holding:
    """Holds the tensors that one block's backward has come to."""

    def __init__(self) -> None:
        self._all: weakref.WeakSet[Held] = weakref.WeakSet()

    def take(self, held: Held, tensor: torch.Tensor) -> torch.Tensor:
        """Hold a tensor, and return it."""
        held.tensor = tensor
        self._all.add(held)
        return tensor

    def end(self) -> None:
        """Hold nothing any more, in case that the graph is retained."""
        for held in self._all:
            held.tensor = None
        self._all.clear()

    def hooks(
        self, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor]
    ) -> torch.autograd.graph.saved_tensors_hooks:
        """Return hooks to put before ``pack`` and ``unpack``, a checkpoint's."""

        def wrapped(tensor: torch.Tensor) -> Held:
            return Held(pack(tensor))

        def taken(held: Held) -> torch.Tensor:
            return self.take(held, unpack(held.packed))

        return torch.autograd.graph.saved_tensors_hooks(wrapped, taken)
