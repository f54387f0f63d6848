"""Which storages a block's call saves for backward, which it returns, and which outlive it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mimose.runtime.dataflow import tensors_in

Saved = dict[int, tuple[StorageWeakRef, int]]
"""Storages saved for backward: of each, by its identity, a weak reference and its bytes."""


class Returned(NamedTuple):
    """A storage that a recomputed block returned and that a kept one saves for backward, too.

    Attributes:
        reference: The storage.
        size: Its bytes.
        place: Its place among the new ones that the block returned.
    """

    reference: StorageWeakRef
    size: int
    place: int


@contextmanager
def listing(saved: Saved) -> Iterator[None]:
    """List the storages that are saved for backward."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        list_storage(saved, tensor)
        # Detached: a node that saves its own output would keep itself alive otherwise.
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, _same):
        yield


def list_storage(saved: Saved, tensor: torch.Tensor) -> None:
    """List the storage of one tensor that is saved for backward."""
    if tensor.layout == torch.strided:
        storage = tensor.untyped_storage()
        if storage._cdata not in saved:
            # The reference also keeps its identity from being another storage's later.
            saved[storage._cdata] = StorageWeakRef(storage), storage.nbytes()


def alive(saved: Saved, but: set[int]) -> list[int]:
    """Return the bytes of each listed storage that still exists, those of ``but`` left out."""
    return [size for _, size in remaining(saved, but)]


def remaining(saved: Saved, but: set[int]) -> list[tuple[StorageWeakRef, int]]:
    """Return the listed storages that still exist, those of ``but`` left out, and their bytes."""
    return [
        (ref, size) for key, (ref, size) in saved.items() if key not in but and not ref.expired()
    ]


def storages_of(module: torch.nn.Module, inputs: Iterable[torch.Tensor]) -> set[int]:
    """Return the identities of the storages of a module and of what it is given."""
    return {_identity(t) for t in (*module.parameters(), *module.buffers(), *inputs)}


def cast_sizes(module: torch.nn.Module, kind: str) -> list[int]:
    """Return the bytes of autocast's copies of a module's parameters.

    Autocast keeps them until it ends. On device kinds that it is off for there are none.
    """
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return []
    size = torch.get_autocast_dtype(kind).itemsize
    return [parameter.numel() * size for parameter in module.parameters()]


def new_storages(result: Any, inputs: Iterable[torch.Tensor]) -> dict[int, int]:
    """Return the bytes of each storage of the result that is not one of the inputs'."""
    return {key: t.untyped_storage().nbytes() for key, t in _new(result, inputs).items()}


def new_tensors(
    result: Any, inputs: Iterable[torch.Tensor], places: Container[int]
) -> list[torch.Tensor]:
    """Return a tensor for each of those storages whose place among them is one of ``places``."""
    new = _new(result, inputs).values()
    return [tensor for place, tensor in enumerate(new) if place in places]


def also_saved(
    result: Any,
    inputs: Iterable[torch.Tensor],
    outputs: Mapping[int, int],
    saved: Saved,
) -> list[Returned]:
    """Return those of a checkpointed call's outputs that its plain call saves for backward, too.

    Args:
        result: What the checkpointed call returned.
        inputs: What both were given.
        outputs: New storages of the plain call's result, as :func:`new_storages` returns them.
        saved: Storages that the plain call saved.
    """
    again = _new(result, inputs)
    if len(again) != len(outputs):
        return []
    return [
        Returned(StorageWeakRef(tensor.untyped_storage()), size, place)
        for place, (tensor, (key, size)) in enumerate(zip(again.values(), outputs.items()))
        if key in saved
    ]


def _new(result: Any, inputs: Iterable[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Return one tensor of the result for each of its storages that no input has."""
    given = {_identity(tensor) for tensor in inputs}
    new: dict[int, torch.Tensor] = {}
    for tensor in tensors_in(result):
        if tensor.layout == torch.strided and _identity(tensor) not in given:
            new.setdefault(_identity(tensor), tensor)
    return new


def _identity(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage; 0 where it has none."""
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
