"""What a tracer writes down while a block runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from mimose.runtime.remaking.trace import Given, Shape


@dataclass(slots=True)
class Value:
    """A value: where it lies, of how many bytes and of which type."""

    storage: int
    bytes: int
    dtype: torch.dtype


@dataclass(slots=True)
class Record:
    """An operator.

    Attributes:
        name: Its name.
        inputs: Values that it reads when it runs again, or that it read if it cannot.
        outputs: Values that it makes.
        stamps: The device's time before and after it.
        function: What runs again; None if it cannot.
        given: What else it reads.
        wanted: Its outputs, as a step's ``outputs`` has them.
        args: Its arguments, tensors replaced by what tells them again.
        kwargs: Its keyword arguments, likewise.
    """

    name: str
    inputs: set[int]
    outputs: list[int]
    stamps: tuple[Any, Any] | None
    function: Any
    given: list[Given] = field(default_factory=list)
    wanted: list[tuple[int, int, Shape]] = field(default_factory=list)
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Draft:
    """All of it.

    Attributes:
        records: The operators, in order.
        values: What they made.
        packs: What was saved: the value (-1 if none of the block's own), the storage and how it
            lies; None for what has no storage of its own.
        marks: For each of them how many nodes autograd's graph had got when it was saved, which is
            the same for all that one node saves.
        changed: What was there before the call and is changed by it.
        fixed: Values that others hold, too.
        firm: How many tensors were saved before the block first went by what tensors hold; -1 if
            it never did.
        taken: For each given storage the tensor that was there when the call began.
        nodes: How many nodes autograd's graph has got.
        copied: How many copies of parameters that autocast holds were made.
        found: And how many had been made before.
    """

    records: list[Record] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    packs: list[tuple[int, int, Shape] | None] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    changed: set[Given] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)
    firm: int = -1
    taken: dict[Given, torch.Tensor] = field(default_factory=dict)
    nodes: int = 0
    copied: int = 0
    found: int = 0
