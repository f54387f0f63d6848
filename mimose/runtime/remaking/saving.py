"""What one call of a block saves for backward, and how backward gets it back."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from mimose.runtime.remaking.offloading import Away, Batch, Offloads
from mimose.runtime.remaking.recipes import Choice, as_shape, run
from mimose.runtime.remaking.trace import Given, Shape, Trace, is_plain, shape_of

_CHANGED = (
    "one of the variables needed for gradient computation has been modified by an inplace "
    "operation: what block {} saved for backward is at version {}, expected version {} instead"
)

Held = dict[int, "tuple[torch.Tensor, int] | Away"]
"""By value what is kept of it: a tensor with its version counter when it was taken, or a copy in
the host's memory."""
Taken = dict[Given, tuple[torch.Tensor, int]]
"""What was there before a call, with its version counters."""


class Slot:
    """One saved tensor: the tensor itself, or what makes it again.

    Attributes:
        tensor: The tensor, detached; None once it was dropped.
        version: Its version counter when it was saved.
        name: The block's name.
        call: The call that it was dropped by.
        place: Its place among what the call saved.
        leaves: The kept values that it is made from.
        away: The value in the host's memory, if it was sent there.
        batch: What its call sent there.
    """

    __slots__ = ("away", "batch", "call", "leaves", "name", "place", "tensor", "version")

    call: Call
    leaves: Held
    place: int

    def __init__(self, tensor: torch.Tensor, name: str) -> None:
        # Detached: a node that saves its own output would keep itself alive otherwise.
        self.tensor: torch.Tensor | None = tensor.detach()
        self.version = tensor._version
        self.name = name
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
            return self.call.make(self)
        if tensor._version != self.version:
            raise RuntimeError(_CHANGED.format(self.name, tensor._version, self.version))
        return tensor


def check_version(tensor: torch.Tensor, version: int, name: str) -> None:
    """Refuse a tensor that has been changed since it was saved.

    Raises:
        RuntimeError: If it has been, as PyTorch does.
    """
    if version_of(tensor) != version:
        raise RuntimeError(_CHANGED.format(name, tensor._version, version))


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter; inference tensors have none, and never change."""
    return 0 if tensor.is_inference() else tensor._version


class Saving:
    """Collects what a call saves while it runs.

    Args:
        name: The block's name.

    Attributes:
        name: The block's name.
        slots: What was saved, in order.
        nodes: How many nodes autograd's graph has got meanwhile.
    """

    __slots__ = ("__weakref__", "name", "nodes", "slots")

    def __init__(self, name: str) -> None:
        self.slots: list[Slot] = []
        self.nodes = -torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        self.name = name

    def hooks(
        self, also: Callable[[torch.Tensor], None] | None = None
    ) -> AbstractContextManager[Any]:
        """Return the context to run the block in; the method ``also`` gets each saved tensor."""
        name = self.name
        # PyTorch holds the hook as long as anything that it saved. Through it the slots' list would
        # hold each tensor longer than backward needs it.
        own = weakref.ref(self)
        told = None if also is None else weakref.WeakMethod(also)

        def pack(tensor: torch.Tensor) -> Slot:
            slot = Slot(tensor, name)
            saving = own()
            if saving is not None:
                saving.slots.append(slot)
            note = None if told is None else told()
            if note is not None:
                note(tensor)
            return slot

        return torch.autograd.graph.saved_tensors_hooks(pack, Slot.get)

    def matches(self, trace: Trace) -> bool:
        """Whether what was saved is what the trace says; called when the block has run."""
        packs, slots = trace.packs, self.slots
        if not trace.partial:
            nodes = self.nodes + torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
            least, most = trace.nodes
            if len(packs) != len(slots) or not least <= nodes <= most:
                return False
        elif len(packs) > len(slots):
            return False
        storages: dict[int, int] = {}
        for slot, (value, shape) in zip(slots, packs):
            if value < 0:
                continue
            tensor = slot.tensor
            assert tensor is not None, "nothing is dropped before it is known to match"
            if (
                tensor.layout != torch.strided
                or tensor.shape != shape.size
                or tensor.dtype != shape.dtype
                or tensor.stride() != shape.stride
                or tensor.storage_offset() != shape.offset
            ):
                return False
            storage = tensor.untyped_storage()._cdata
            if storages.setdefault(value, storage) != storage:
                return False
        return len(set(storages.values())) == len(storages)

    def drop(self, choice: Choice, taken: Taken, offloads: Offloads | None = None) -> None:
        """Let the chosen values go.

        Args:
            choice: The values, and what they are made from.
            taken: What was there before the call.
            offloads: Sends away what is to be in the host's memory.
        """
        slots = self.slots
        for source in choice.packed:
            slot = slots[source.pack]
            assert slot.tensor is not None, "what is no value is not dropped"
            taken[source] = slot.tensor, slot.version
        call = Call(choice, self.name, taken)
        if choice.offloaded:
            assert offloads is not None, "something sends away what is to go"
            self._send_away(choice, call, offloads)
        leaves = {
            value: {leaf: _taken(slots[place]) for leaf, place in choice.leaves[value]}
            for value in choice.dropped
        }
        for place, value in choice.packs:
            slot = slots[place]
            slot.call, slot.place, slot.leaves = call, place, leaves[value]
        for place, _ in choice.packs:
            slots[place].tensor = None

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


def take(
    sources: Iterable[Given], arguments: Sequence[Any], layouts: Mapping[Given, Shape]
) -> Taken | None:
    """Return what is there before a call; None if something is not what it should be.

    Args:
        sources: What.
        arguments: The leaves of the call's arguments.
        layouts: How each lay in its storage when the call was traced: another parameter, or a view
            of a flat vector, may have taken its place.
    """
    taken: Taken = {}
    for source in sources:
        if source.owner is None:
            tensor = arguments[source.place]
        else:
            tensor = source.owner._parameters.get(source.name)
            if tensor is None:
                tensor = source.owner._buffers.get(source.name)
        if tensor is None or tensor.is_neg() or tensor.is_conj():
            return None
        if not is_plain(tensor) or shape_of(tensor) != layouts.get(source):
            return None
        taken[source] = tensor.detach(), version_of(tensor)
    return taken


def unchanged(taken: Taken) -> bool:
    """Whether nothing of it has been changed since."""
    return all(version_of(tensor) == version for tensor, version in taken.values())


class Call:
    """One call of a block, some values of which were dropped.

    Args:
        choice: The values.
        name: The block's name.
        taken: What making them again reads of what was there before the call.
    """

    __slots__ = ("_choice", "_held", "_left", "_name", "_taken")

    def __init__(self, choice: Choice, name: str, taken: Taken) -> None:
        self._choice = choice
        self._name = name
        self._taken = taken
        self._held: dict[int, torch.Tensor] = {}
        self._left = dict(choice.uses)

    def make(self, slot: Slot) -> torch.Tensor:
        """Return the tensor that was saved in ``slot``, made again or back from the host."""
        value, shape = self._choice.trace.packs[slot.place]
        if slot.away is not None:
            return as_shape(slot.away.get(), shape)
        tensor = self._held.get(value)
        if tensor is None:
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
        program = choice.program(value, frozenset(self._held))
        given: dict[Given, torch.Tensor] = {}
        for step in program.steps:
            for source in step.given:
                tensor, version = self._taken[source]
                check_version(tensor, version, name)
                given[source] = tensor
        made = run(program, (self._held, there), given)
        for other in choice.dropped.intersection(made):
            if self._left[other] > 0:
                self._held[other] = made[other]
        return made[value]
