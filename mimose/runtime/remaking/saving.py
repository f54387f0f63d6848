"""What one call of a block saves for backward, and how backward gets it back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from mimose.runtime.remaking.offloading import Away, Batch, Offloads
from mimose.runtime.remaking.recipes import Choice, as_shape, run, without_autocast
from mimose.runtime.remaking.tracing import Given, Trace

_CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: what block {} saved for backward is at version {}, expected version {} instead"
)

Held = dict[int, "tuple[torch.Tensor, int] | Away"]
"""By value what is kept of it: a tensor with its version counter when it was taken, or a copy in
the host's memory."""


class Slot:
    """One saved tensor: the tensor itself, or what makes it again.

    Attributes:
        tensor: The tensor, detached; None once it was dropped.
        version: Its version counter when it was saved.
        call: The call that it was dropped by.
        place: Its place among what the call saved.
        leaves: The kept values that it is made from.
        away: The value in the host's memory, if it was sent there.
        batch: What its call sent there.
    """

    __slots__ = ("away", "batch", "call", "leaves", "name", "place", "tensor", "version")

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        # Detached: a node that saves its own output would keep itself alive otherwise.
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = tensor._version
        self.name = name
        self.call: Call | None = None
        self.place = -1
        self.leaves: Held | None = None
        self.away: Away | None = None
        self.batch: Batch | None = None

    def get(self) -> torch.Tensor:
        """Return the tensor; called when backward needs it.

        Raises:
            RuntimeError: If it, or what it is made from, has been changed in place since.
        """
        if self.batch is not None:
            self.batch.begin_backward()
        tensor = self.tensor
        if tensor is None:
            assert self.call is not None, "what is gone can be had again"
            return self.call.make(self)
        check_version(tensor, self.version, self.name)
        return tensor


def check_version(tensor: torch.Tensor, version: int, name: str) -> None:
    """Refuse a tensor that has been changed since it was saved.

    Raises:
        RuntimeError: If it has been, as PyTorch does.
    """
    if tensor._version != version:
        raise RuntimeError(_CHANGED.format(name, tensor._version, version))


class Saving:
    """Collects what a call saves while it runs.

    Args:
        name: The block's name.
        also: Called with each tensor that is saved.

    Attributes:
        slots: What was saved, in order.
    """

    def __init__(self, name: str, also: Callable[[torch.Tensor], None] | None = None) -> None:
        self.slots: list[Slot] = []
        self._name = name
        self._also = also

    def hooks(self) -> AbstractContextManager[Any]:
        """Return the context to run the block in."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, Slot.get)

    def _pack(self, tensor: torch.Tensor) -> Slot:
        slot = Slot(tensor, self._name)
        self.slots.append(slot)
        if self._also is not None:
            self._also(tensor)
        return slot

    def matches(self, trace: Trace) -> bool:
        """Whether what was saved is what the trace says."""
        packs = trace.packs
        if len(packs) != len(self.slots):
            return False
        storages: dict[int, int] = {}
        for slot, (value, shape) in zip(self.slots, packs):
            tensor = slot.tensor
            assert tensor is not None, "nothing is dropped before it is known to match"
            if value < 0:
                continue
            if (
                tensor.shape != shape.size
                or tensor.dtype != shape.dtype
                or tensor.layout != torch.strided
                or tensor.stride() != shape.stride
                or tensor.storage_offset() != shape.offset
            ):
                return False
            storage = tensor.untyped_storage()._cdata
            if storages.setdefault(value, storage) != storage:
                return False
        return True

    def drop(self, choice: Choice, arguments: Sequence[Any], offloads: Offloads) -> None:
        """Let the chosen values go.

        Args:
            choice: The values, and what they are made from.
            arguments: The leaves of the call's arguments.
            offloads: Sends away what is to be in the host's memory.
        """
        slots = self.slots
        call = Call(choice, self._name, arguments)
        if choice.offloaded:
            self._send_away(choice, call, offloads)
        leaves = {
            value: {leaf: _taken(slots[choice.first[leaf]]) for leaf in choice.leaves[value]}
            for value in choice.dropped
        }
        for place, value in choice.packs:
            slot = slots[place]
            slot.call, slot.place, slot.leaves = call, place, leaves[value]
        for place, _ in choice.packs:
            slots[place].tensor = None
        self.slots = []

    def _send_away(self, choice: Choice, call: Call, offloads: Offloads) -> None:
        slots = self.slots
        tensors: dict[int, torch.Tensor] = {}
        for value in choice.offloaded:
            tensor = slots[choice.first[value]].tensor
            assert tensor is not None, "nothing is gone yet"
            tensors[value] = tensor
        batch = offloads.send(tensors)
        for slot in slots:
            slot.batch = batch
        for place, value in choice.away:
            slot = slots[place]
            slot.call, slot.place, slot.away = call, place, batch.values[value]
            slot.tensor = None


def _taken(slot: Slot) -> tuple[torch.Tensor, int] | Away:
    if slot.away is not None:
        return slot.away
    assert slot.tensor is not None, "a leaf is kept"
    return slot.tensor, slot.version


class Call:
    """One call of a block, some values of which were dropped.

    Args:
        choice: The values.
        name: The block's name.
        arguments: The leaves of the call's arguments.
    """

    __slots__ = ("_choice", "_given", "_held", "_left", "_name")

    def __init__(self, choice: Choice, name: str, arguments: Sequence[Any]) -> None:
        self._choice = choice
        self._name = name
        self._given = {source: _versioned(source, arguments) for source in choice.given}
        self._held: dict[int, torch.Tensor] = {}
        self._left = Counter(choice.uses)

    def make(self, slot: Slot) -> torch.Tensor:
        """Return the tensor that was saved in ``slot``, made again or back from the host."""
        value, shape = self._choice.trace.packs[slot.place]
        if slot.away is not None:
            return as_shape(slot.away.get(), shape)
        tensor = self._held.get(value)
        if tensor is None:
            assert slot.leaves is not None, "a dropped slot knows its leaves"
            tensor = self._make(value, slot.leaves)
        self._left[value] -= 1
        if self._left[value] <= 0:
            self._held.pop(value, None)
        return as_shape(tensor, shape)

    def _make(self, value: int, leaves: Held) -> torch.Tensor:
        choice, name = self._choice, self._name
        there: dict[int, torch.Tensor] = {}
        for leaf, held in leaves.items():
            if isinstance(held, Away):
                there[leaf] = held.get()
            else:
                check_version(*held, name)
                there[leaf] = held[0]
        given: dict[Given, torch.Tensor] = {}
        for source, (tensor, version) in self._given.items():
            check_version(tensor, version, name)
            given[source] = tensor
        steps = choice.program(value, frozenset(self._held))
        kind = next(iter((*there.values(), *given.values()))).device.type
        with without_autocast(kind):
            made = run(steps, (self._held, there), given)
        for other in choice.dropped.intersection(made):
            if self._left[other] > 0:
                self._held[other] = made[other]
        return made[value]


def _versioned(source: Given, arguments: Sequence[Any]) -> tuple[torch.Tensor, int]:
    if source.owner is None:
        tensor = arguments[source.place]
    else:
        found = source.owner._parameters.get(source.name)
        tensor = source.owner._buffers[source.name] if found is None else found
    return tensor.detach(), tensor._version
