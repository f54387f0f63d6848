"""Copying batches and models into a device's memory."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

import torch

# Offsets into a storage stay multiples of every element size if they move by multiples of this.
_ALIGNMENT = 64


def copy_batch(batch: Any, device: torch.device) -> Any:
    """Return ``batch`` with every tensor in it copied to ``device``.

    Lists, tuples (named ones, too) and mappings keep their type; anything else is passed on.
    """
    if isinstance(batch, torch.Tensor):
        tensor = batch.detach().to(device, non_blocking=batch.is_pinned(), copy=True)
        return tensor.requires_grad_(batch.requires_grad)
    if isinstance(batch, MutableMapping):
        # Not type(batch)(...): a tokenizer's BatchEncoding carries more than its items.
        copied = copy.copy(batch)
        for key, value in batch.items():
            copied[key] = copy_batch(value, device)
        return copied
    if isinstance(batch, Mapping):
        return {key: copy_batch(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(copy_batch(value, device) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(copy_batch(value, device) for value in batch)
    return batch


def model_tensors(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Yield the parameters, their gradients and the buffers of ``model``."""
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of ``tensor`` that is in this process; all of it unless it is sharded."""
    return getattr(tensor, "_local_tensor", tensor)


def storage_bytes(tensors: Iterable[torch.Tensor]) -> int:
    """Return the bytes of the storages of ``tensors``, each counted once."""
    # Not by data pointer: meta tensors have none.
    storages = (local(t).untyped_storage() for t in tensors)
    seen = {storage._cdata: storage.nbytes() for storage in storages}
    return sum(seen.values())


def copy_model(model: torch.nn.Module, device: torch.device) -> None:
    """Copy parameters, gradients and buffers of ``model`` into memory of ``device``, in place.

    The tensor objects stay, so that an optimizer made before goes on working; tensors that share
    a storage share the new one. Of a storage only the part that the model's tensors span is
    copied: weights read from a file may all be views of one mapping.

    Raises:
        ValueError: If the model has tensors without data (``meta``).
    """
    tensors = list({id(t): t for t in model_tensors(model)}.values())
    if any(t.is_meta for t in tensors):
        raise ValueError("the model has parameters without data (device meta): load weights first")
    dense = [t for t in tensors if t.layout is torch.strided and not t.is_quantized]
    with torch.no_grad():
        for tensor in tensors:
            if tensor.layout is not torch.strided or tensor.is_quantized:
                tensor.data = tensor.data.to(device, copy=True)
        # In the model's own order, not in that of addresses: what is reserved depends on it.
        sharing: dict[int, list[torch.Tensor]] = {}
        for tensor in dense:
            sharing.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        for group in sharing.values():
            _copy_storage(group, device)


def _copy_storage(tensors: list[torch.Tensor], device: torch.device) -> None:
    spans = [_span(t) for t in tensors if t.numel()]
    if not spans:
        return
    storage = tensors[0].untyped_storage()
    start = min(first for first, _ in spans) // _ALIGNMENT * _ALIGNMENT
    source = torch.empty(0, dtype=torch.uint8, device=storage.device)
    source.set_(storage, start, (max(last for _, last in spans) - start,), (1,))
    target = source.to(device, copy=True).untyped_storage()
    for tensor in tensors:
        offset = tensor.storage_offset() - start // tensor.element_size() if tensor.numel() else 0
        moved = torch.empty(0, dtype=tensor.dtype, device=device)
        tensor.data = moved.set_(target, offset, tensor.size(), tensor.stride())


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """Return the first byte of ``tensor`` in its storage, and the one after its last."""
    first = int(tensor.storage_offset())
    last = first + sum((n - 1) * step for n, step in zip(tensor.size(), tensor.stride()))
    return first * tensor.element_size(), (last + 1) * tensor.element_size()


def move_model(model: torch.nn.Module, device: torch.device) -> None:
    """Give parameters, gradients and buffers of ``model`` new memory on ``device``, without data.

    Tensors that share a storage share the new one. Parameters that were on another device are
    replaced by new ones, since a parameter's device cannot change.
    """
    moved: dict[int, torch.Tensor] = {}
    storages: dict[int, torch.UntypedStorage] = {}

    def empty(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        new = storages.get(storage._cdata)
        if new is None:
            new = torch.empty(storage.nbytes(), dtype=torch.uint8, device=device).untyped_storage()
            storages[storage._cdata] = new
        target = torch.empty(0, dtype=tensor.dtype, device=device)
        return target.set_(new, tensor.storage_offset(), tensor.size(), tensor.stride())

    def renewed(tensor: torch.Tensor) -> torch.Tensor:
        known = moved.get(id(tensor))
        if known is None:
            known = empty(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                known = torch.nn.Parameter(known, requires_grad=tensor.requires_grad)
                known.grad = None if tensor.grad is None else empty(tensor.grad)
            moved[id(tensor)] = known
        return known

    with torch.no_grad():
        for module in model.modules():
            for owned in (module._parameters, module._buffers):
                for name, tensor in owned.items():
                    if tensor is not None:
                        owned[name] = renewed(tensor)
