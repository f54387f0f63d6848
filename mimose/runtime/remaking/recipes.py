"""Run operators of a traced block again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mimose.runtime.remaking.tracing import Given, Ref, Shape, Step, Trace, shape_of

Values = Mapping[int, torch.Tensor]
"""Values of a block that are there, by number."""


class Choice:
    """What dropping and offloading certain values of a traced block means, worked out once.

    Attributes:
        trace: The block.
        dropped: The values that are dropped.
        offloaded: The values that are sent to the host's memory.
        away: The places at which those are saved, and the value at each.
        packs: The places at which dropped values are saved, and the value at each.
        leaves: For each dropped value the kept ones that it is made from, through whatever is made
            on the way.
        given: What making them reads of what was there before the call.
        first: For each saved value the first place at which it is saved.
        uses: How often backward needs each dropped value.
    """

    def __init__(
        self, trace: Trace, dropped: Sequence[int], offloaded: Sequence[int] = ()
    ) -> None:
        graph = trace.graph
        self.offloaded = frozenset(offloaded)
        self.away = [(i, p.value) for i, p in enumerate(trace.packs) if p.value in self.offloaded]
        self.trace = trace
        self.dropped = frozenset(dropped)
        self.packs = [(i, p.value) for i, p in enumerate(trace.packs) if p.value in self.dropped]
        self.uses = Counter(value for _, value in self.packs)
        self.first: dict[int, int] = {}
        for place, pack in enumerate(trace.packs):
            if pack.value >= 0:
                self.first.setdefault(pack.value, place)
        self._kept = graph.saved - self.dropped
        self._programs: dict[tuple[int, frozenset[int]], tuple[Step, ...]] = {}
        self.leaves: dict[int, tuple[int, ...]] = {}
        given: dict[Given, None] = {}
        for value in self.dropped:
            steps = self.program(value, frozenset())
            made = {v for step in steps for _, v, _ in step.outputs}
            read = {s for step in steps for s in _sources(step) if isinstance(s, int)}
            self.leaves[value] = tuple(sorted(read - made))
            given.update((g, None) for step in steps for g in step.given)
        self.given = tuple(given)

    def program(self, value: int, held: frozenset[int]) -> tuple[Step, ...]:
        """Return the steps that make ``value`` while the dropped values ``held`` are there."""
        steps = self._programs.get((value, held))
        if steps is None:
            trace = self.trace
            places = trace.graph.remaking(value, self._kept | held)
            found = [trace.steps[place] for place in places]
            assert all(step is not None for step in found), "only droppable values are dropped"
            steps = tuple(step for step in found if step is not None)
            self._programs[value, held] = steps
        return steps


def run(steps: Sequence[Step], there: Sequence[Values], given: Mapping[Given, Any]) -> Values:
    """Run steps in order, and return all that they made.

    Args:
        steps: The steps.
        there: Where to find values that the steps do not make, in this order.
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

    with torch.no_grad():
        for step in steps:
            args = [_filled(a, get) for a in step.args]
            kwargs = {name: _filled(a, get) for name, a in step.kwargs.items()}
            result = step.function(*args, **kwargs)
            leaves = (result,) if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
            for place, value, shape in step.outputs:
                made[value] = _laid_out(leaves[place], shape)
    return made


def without_autocast(kind: str) -> AbstractContextManager[Any]:
    """Return a context in which operators run in the types of what they are given."""
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


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
    laid = torch.empty_strided(shape.size, shape.stride, dtype=shape.dtype, device=tensor.device)
    return laid.copy_(tensor)


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
