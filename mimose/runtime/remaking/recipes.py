"""Run operators of a traced block again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from mimose.menu import releases
from mimose.runtime.remaking.trace import Given, Ref, Shape, Step, Trace, shape_of

Values = Mapping[int, torch.Tensor]
"""Values of a block that are there, by number."""


class Program(NamedTuple):
    """What makes a value again.

    Attributes:
        steps: In order.
        releases: For each step the values that nothing after it reads.
    """

    steps: tuple[Step, ...]
    releases: tuple[tuple[int, ...], ...]


class Choice:
    """What dropping and offloading certain values of a traced block means, worked out once.

    Attributes:
        trace: The block.
        able: Whether all of them can go together.
        dropped: The values that are dropped.
        offloaded: The values that are sent to the host's memory.
        away: The places at which those are saved, and the value at each.
        packs: The places at which dropped values are saved, and the value at each.
        first: For each saved value the first place at which it is saved.
        leaves: For each dropped value the kept ones that it is made from, through whatever is made
            on the way, and the first place at which each is saved.
        given: What making them reads of what was there before the call.
        packed: What it reads that is saved, but no value of the block's.
        uses: How often backward needs each dropped value.
    """

    def __init__(self, trace: Trace, dropped: Sequence[int], offloaded: Sequence[int] = ()) -> None:
        graph = trace.graph
        self.trace = trace
        self.able = graph.can_let_go(dropped, offloaded)
        self.dropped = frozenset(dropped)
        self.offloaded = frozenset(offloaded)
        self.away = [(i, p.value) for i, p in enumerate(trace.packs) if p.value in self.offloaded]
        self.packs = [(i, p.value) for i, p in enumerate(trace.packs) if p.value in self.dropped]
        self.uses = Counter(value for _, value in self.packs)
        self._kept = graph.saved - self.dropped
        self._programs: dict[tuple[int, frozenset[int]], Program] = {}
        self.leaves: dict[int, tuple[tuple[int, int], ...]] = {}
        self.first: dict[int, int] = {}
        for place, pack in enumerate(trace.packs):
            if pack.value >= 0:
                self.first.setdefault(pack.value, place)
        self.given: tuple[Given, ...] = ()
        self.packed: tuple[Given, ...] = ()
        if self.able:
            self._look_up()

    def _look_up(self) -> None:
        given: dict[Given, None] = {}
        for value in self.dropped:
            steps = self.program(value, frozenset()).steps
            made = {v for step in steps for _, v, _ in step.outputs}
            read = {s for step in steps for s in _sources(step) if isinstance(s, int)}
            self.leaves[value] = tuple((leaf, self.first[leaf]) for leaf in sorted(read - made))
            given.update((g, None) for step in steps for g in step.given)
        self.given = tuple(g for g in given if g.pack < 0)
        self.packed = tuple(g for g in given if g.pack >= 0)

    def program(self, value: int, held: frozenset[int]) -> Program:
        """Return what makes ``value`` while the dropped values ``held`` are there."""
        found = self._programs.get((value, held))
        if found is None:
            graph = self.trace.graph
            places = tuple(graph.remaking(value, self._kept | held))
            steps = tuple(self.trace.steps[place] for place in places)
            assert all(step is not None for step in steps), "only droppable values are dropped"
            found = Program(steps, releases(graph, places, self.dropped))  # type: ignore[arg-type]
            self._programs[value, held] = found
        return found


def run(program: Program, there: Sequence[Values], given: Mapping[Given, Any]) -> Values:
    """Run a program, and return what it made and did not let go on the way.

    Args:
        program: The program.
        there: Where to find values that the program does not make, in this order.
        given: What was there before the call.
    """
    made: dict[int, torch.Tensor] = {}

    def get(ref: Ref) -> torch.Tensor:
        source = ref.source
        if isinstance(source, Given):
            return as_shape(given[source], ref.shape)
        for values in (made, *there):
            tensor = values.get(source)
            if tensor is not None:
                return as_shape(tensor, ref.shape)
        raise KeyError(source)

    with torch.no_grad(), without_autocast():
        for step, released in zip(program.steps, program.releases):
            args = [_filled(a, get) for a in step.args]
            kwargs = {name: _filled(a, get) for name, a in step.kwargs.items()}
            result = step.function(*args, **kwargs)
            del args, kwargs
            leaves = (result,) if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
            for place, value, shape in step.outputs:
                made[value] = _laid_out(leaves[place], shape)
            del result, leaves
            for value in released:
                made.pop(value, None)
    return made


@contextmanager
def without_autocast() -> Iterator[None]:
    """Have operators run in the types of what they are given."""
    on = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in on:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in on:
            torch.set_autocast_enabled(kind, True)


def as_shape(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return a view of a tensor's storage that lies there as ``shape`` says."""
    if (
        tensor.shape == shape.size
        and tensor.stride() == shape.stride
        and tensor.storage_offset() == shape.offset
    ):
        return tensor
    return tensor.as_strided(shape.size, shape.stride, shape.offset)


def _laid_out(tensor: torch.Tensor, shape: Shape) -> torch.Tensor:
    """Return what an operator made, laid out as it was the first time."""
    if shape_of(tensor) == shape:
        return tensor
    # A functional form may lay its output out in another way than an operator in place found it.
    extent = shape.offset + 1 + sum((n - 1) * s for n, s in zip(shape.size, shape.stride))
    room = torch.empty(extent, dtype=shape.dtype, device=tensor.device)
    return room.as_strided(shape.size, shape.stride, shape.offset).copy_(tensor)


def _filled(argument: Any, get: Callable[[Ref], torch.Tensor]) -> Any:
    if isinstance(argument, Ref):
        return get(argument)
    if isinstance(argument, list):
        return [_filled(a, get) for a in argument]
    return argument


def _sources(step: Step) -> list[int | Given]:
    """Return what a step reads."""
    found: list[int | Given] = []
    pending: list[Any] = [*step.args, *step.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, Ref):
            found.append(argument.source)
        elif isinstance(argument, list):
            pending.extend(argument)
    return found
