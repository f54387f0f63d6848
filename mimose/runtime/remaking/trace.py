"""What one traced forward of a block has shown, in a form that can run again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from mimose.menu import BlockGraph, Traced


class Shape(NamedTuple):
    """How a tensor lies in its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Given(NamedTuple):
    """A storage that was there before the block's call.

    Attributes:
        place: The place of an argument among the leaves of all arguments, or -1.
        owner: The module that holds the parameter or buffer, if it is one.
        name: Its name there.
        pack: If it is neither, but saved by the block: the place at which it is saved first.
        storage: While tracing, the identity of a storage of which no more is known.
    """

    place: int
    owner: torch.nn.Module | None = None
    name: str = ""
    pack: int = -1
    storage: int = 0

    @property
    def known(self) -> bool:
        """Whether it can be found again in another call."""
        return self.place >= 0 or self.owner is not None or self.pack >= 0


class Ref(NamedTuple):
    """A tensor argument of an operator: whose storage, and how it lies there."""

    source: int | Given
    shape: Shape


@dataclass(frozen=True, slots=True)
class Step:
    """How an operator runs again.

    Attributes:
        function: What to call.
        args: Its arguments, with a :class:`Ref` for each tensor.
        kwargs: Its keyword arguments, likewise.
        outputs: For each tensor that it returns and that is wanted, its place among the leaves of
            what it returns, the value that it is and how it lay the first time.
        given: What it reads of what was there before the call.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[tuple[int, int, Shape], ...]
    given: tuple[Given, ...]


class Pack(NamedTuple):
    """A tensor that was saved for backward.

    Attributes:
        value: The value that it shows; -1 if that is none of the block's own, or not to be dropped.
        shape: How it lies.
    """

    value: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Trace:
    """What one forward of a block has shown.

    Attributes:
        graph: For planners.
        steps: For each operator of the graph how it runs again, None if it cannot.
        packs: What was saved, in that order; without what came after ``partial``.
        bytes: Of each value, as the allocator rounds.
        seconds: Of each operator.
        nodes: How many nodes the forward adds to autograd's graph at least, and at most: copies of
            parameters that autocast has already are not made again.
        layouts: How what was there before the call lay in its storage.
        partial: Whether the block went by what tensors hold, so that another call may save
            something else from there on.
        order: The places of ``packs`` in the order in which backward comes to them.
    """

    graph: BlockGraph
    steps: tuple[Step | None, ...]
    packs: tuple[Pack, ...]
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    nodes: tuple[int, int] = (0, 0)
    partial: bool = False
    layouts: Mapping[Given, Shape] = field(default_factory=dict)
    order: tuple[int, ...] = ()

    def traced(self, block: int) -> Traced:
        """Return what planners are told, for the block of this number."""
        return Traced(block, self.graph, self.bytes, self.seconds)


def shape_of(tensor: torch.Tensor) -> Shape:
    """Return how a tensor lies in its storage."""
    return Shape(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage of its own kind, and is of no subclass that hides another."""
    return type(tensor) in _PLAIN and tensor.layout == torch.strided


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def storage_of(tensor: torch.Tensor) -> int:
    """Return the identity of a tensor's storage."""
    return tensor.untyped_storage()._cdata


def tensors_among(tree: Any) -> list[torch.Tensor]:
    """Return the tensors among an operator's arguments, which nest in lists at most."""
    if isinstance(tree, torch.Tensor):
        return [tree]
    if isinstance(tree, dict):
        tree = tree.values()
    elif not isinstance(tree, (tuple, list)):
        return []
    found: list[torch.Tensor] = []
    for item in tree:
        if isinstance(item, torch.Tensor):
            found.append(item)
        elif isinstance(item, (tuple, list, dict)):
            found += tensors_among(item)
    return found


def same_storage(one: Any, other: Any) -> bool:
    """Whether both are tensors that lie in one storage."""
    return (
        isinstance(other, torch.Tensor)
        and is_plain(other)
        and is_plain(one)
        and storage_of(one) == storage_of(other)
    )


def covers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all there is in its storage, each element once."""
    expected = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != expected:
            return False
        expected *= extent
    return tensor.nbytes == tensor.untyped_storage().nbytes()
