"""A region of several blocks: run whole by its first block, handed through by the others."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mimose.devices.base import Device
from mimose.plan import Region
from mimose.runtime.checkpointing import checkpointed
from mimose.runtime.conditions import CallMemory
from mimose.runtime.dataflow import DataFlow, call_context, same, versions_of
from mimose.runtime.standing import Astray, FlowChanged, Origin, StandIn
from mimose.runtime.wrappers import BlockForward


def run_block(
    wrapper: BlockForward,
    block: int,
    again: bool,
    memory: CallMemory,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run one block's plain forward, for the first time or again, model state kept right."""
    state, snapshots = wrapper.state, memory.snapshots
    if again:
        with wrapper.conditions.restored(memory.seen[block]):
            return state.run(wrapper.inner, snapshots, block, True, args, kwargs)
    seen = memory.seen[block] = wrapper.conditions.now()
    result = state.run(wrapper.inner, snapshots, block, False, args, kwargs)
    memory.seen[block] = wrapper.conditions.after_run(seen)
    return result


class OpenRegion:
    """A region whose first block has been called and whose last one has not yet.

    What the first block and those in between return is their own output's structure, with a
    :class:`StandIn` where it would lead to the next block.

    Attributes:
        region: The region.
        next: Number of the block that the model must call next.
        result: What the last block returned.
    """

    __slots__ = (
        "_arguments",
        "_astray",
        "_context",
        "_device",
        "_flow",
        "_inner_outputs",
        "_link",
        "_memory",
        "_origin",
        "_random",
        "_spec",
        "_stand_in",
        "_versions",
        "_wrappers",
        "next",
        "region",
        "result",
    )

    def __init__(
        self,
        region: Region,
        flow: DataFlow,
        wrappers: Mapping[int, BlockForward],
        device: Device,
        astray: Astray,
    ) -> None:
        self.region = region
        self.next = region.first
        self.result: Any = None
        link = flow.links[region.last]
        assert link is not None, "a region of several blocks is cut where there is no link"
        self._flow = flow
        self._link = link
        self._wrappers = wrappers
        self._device = device
        self._astray = astray
        self._memory = CallMemory()
        self._inner_outputs: dict[int, tuple[list[Any], Any]] = {}
        self._origin: Origin | None = None
        self._stand_in: StandIn | None = None

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the whole region with the first block's arguments; return what the first returns."""
        self._arguments, self._spec = pytree.tree_flatten((args, kwargs))
        self._context = call_context(self._arguments)
        # The varying argument is the region's input: nothing here may keep it alive.
        self._arguments[self._link.target] = None
        region, device = self.region, self._device
        self._origin = Origin(
            region.first,
            region.last,
            args,
            kwargs,
            self._context,
            self._again,
            device,
            self._astray,
        )
        try:
            self.result = self._run(region, False, args, kwargs)
        except BaseException:
            self.close()
            raise
        leaves = pytree.tree_leaves(self.result)
        last = leaves[self._link.source] if self._link.source < len(leaves) else None
        if not isinstance(last, torch.Tensor):
            raise self.changed(region.last)
        self._origin.result = weakref.ref(last)
        # After the run: blocks may change what they are given, nothing in between may.
        self._versions = versions_of(self._arguments)
        self._random = random_mark(device)
        return self._hand()

    def hand(self, block: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the model is to get from ``block``, which it has just called.

        Raises:
            FlowChanged: If the call is not the one that the region has run already, or if random
                numbers were drawn since, which in the region came after its blocks' own.
        """
        if block != self.next:
            raise self.changed(block)
        given, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._spec or call_context(given) != self._context:
            raise self.changed(block)
        target, stand_in, origin = self._link.target, self._stand_in, self._origin
        if stand_in is None or given[target] is not stand_in or origin is None or origin.changed:
            raise self.changed(block)
        given[target] = None
        if not all(map(same, given, self._arguments)) or versions_of(given) != self._versions:
            raise self.changed(block)
        if block == self.region.last and random_mark(self._device) != self._random:
            raise self.changed(block)
        return self._hand()

    @property
    def finished(self) -> bool:
        """Whether the model has called the region's last block."""
        return self.next > self.region.last

    def close(self) -> None:
        """Let go of every tensor: what recomputes the region refers to it until backward."""
        self.result = self._stand_in = self._origin = None
        self._arguments = []
        self._inner_outputs.clear()

    def _hand(self) -> Any:
        block = self.next
        self.next += 1
        if block == self.region.last:
            return self.result
        leaves, spec = self._inner_outputs.pop(block)
        self._stand_in = leaves[self._link.source]
        return pytree.tree_unflatten(leaves, spec)

    def changed(self, block: int) -> FlowChanged:
        """Return the error to raise when ``block`` is not called as it was recorded."""
        region = self.region
        return FlowChanged(
            f"block {block} was not called as part of the recomputed blocks {region.first}-"
            f"{region.last} as it was when the model's data flow was recorded: run the step again "
            "(the flow is recorded anew), or plan for single blocks"
        )

    def _run(
        self, region: Region, again: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        def function(rerun: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            return self._chain(region, again or rerun, args, kwargs)

        return checkpointed(function, args, kwargs)

    def _chain(
        self, region: Region, again: bool, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        inner = {r.first: r for r in region.inner}
        block = region.first
        while True:
            part = inner.get(block)
            if part is None:
                output = run_block(self._wrappers[block], block, again, self._memory, args, kwargs)
            else:
                output = self._run(part, again, args, kwargs)
                block = part.last
            if block == region.last:
                return output
            args, kwargs = self._following(block, again, output, args, kwargs)
            del output
            block += 1

    def _following(
        self, block: int, again: bool, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Return the arguments of the block after ``block``, whose output is given."""
        leaves, spec = pytree.tree_flatten(output)
        del output
        link = self._flow.links[block + 1]
        assert link is not None, "a region of several blocks is cut where there is no link"
        arguments, given = pytree.tree_flatten((args, kwargs))
        made = arguments[link.target] = leaves[link.source]
        if not again:
            if type(made) is not torch.Tensor or made.layout != torch.strided:
                raise self.changed(block)
            assert self._origin is not None, "only a region that is open runs for the first time"
            leaves[link.source] = StandIn(made, block, self._origin)
            self._inner_outputs[block] = (leaves, spec)
        return pytree.tree_unflatten(arguments, given)

    def _again(self, block: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output of ``block`` that the next one takes, computed once more."""
        for number in range(self.region.first, block):
            wrapper = self._wrappers[number]
            output = run_block(wrapper, number, True, self._memory, args, kwargs)
            args, kwargs = self._following(number, True, output, args, kwargs)
        output = run_block(self._wrappers[block], block, True, self._memory, args, kwargs)
        link = self._flow.links[block + 1]
        assert link is not None, "a region of several blocks is cut where there is no link"
        return pytree.tree_leaves(output)[link.source]


def random_mark(device: Device) -> tuple[bytes, ...]:
    """Return the random state as something to compare; nothing where no number is ever drawn."""
    state = device.rng_state()
    parts = state if isinstance(state, tuple) else (state,)
    return tuple(part.numpy().tobytes() for part in parts if part is not None)
