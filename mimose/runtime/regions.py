"""A region of several blocks: run whole by its first block, handed through by the others."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mimose.plan import Region
from mimose.runtime.checkpointing import checkpointed
from mimose.runtime.dataflow import DataFlow, call_context, same
from mimose.runtime.rerun import Snapshot
from mimose.runtime.wrappers import BlockForward


class FlowChanged(RuntimeError):  # noqa: N818 - a RuntimeError to users, told apart inside only
    """The model no longer passes its data as recorded, so that a region's result is not its own."""


def run_block(
    wrapper: BlockForward,
    block: int,
    again: bool,
    snapshots: dict[int, Snapshot],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run one block's plain forward, for the first time or again, model state kept right."""
    return wrapper.state.run(wrapper.inner, snapshots, block, again, args, kwargs)


class OpenRegion:
    """A region whose first block has been called and whose last one has not yet.

    What the first block and those in between return is a stand-in: their own output's structure,
    with the region's output where theirs would lead to the next block.

    Attributes:
        region: The region.
        next: Number of the block that the model must call next.
        result: What the last block returned.
    """

    __slots__ = (
        "_arguments",
        "_context",
        "_flow",
        "_inner_outputs",
        "_link",
        "_snapshots",
        "_spec",
        "_stand_in",
        "_version",
        "_wrappers",
        "next",
        "region",
        "result",
    )

    def __init__(
        self, region: Region, flow: DataFlow, wrappers: Mapping[int, BlockForward]
    ) -> None:
        self.region = region
        self.next = region.first
        self.result: Any = None
        self._stand_in: torch.Tensor | None = None
        link = flow.links[region.last]
        assert link is not None, "a region of several blocks is cut where there is no link"
        self._flow = flow
        self._link = link
        self._wrappers = wrappers
        self._snapshots: dict[int, Snapshot] = {}
        self._inner_outputs: dict[int, tuple[list[Any], Any]] = {}

    def start(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run the whole region with the first block's arguments; return the first stand-in."""
        self._arguments, self._spec = pytree.tree_flatten((args, kwargs))
        self._context = call_context(self._arguments)
        # The varying argument is the region's input: nothing here may keep it alive.
        self._arguments[self._link.target] = None
        self.result = self._run(self.region, False, args, kwargs)
        leaves = pytree.tree_leaves(self.result)
        stand_in = leaves[self._link.source] if self._link.source < len(leaves) else None
        if not isinstance(stand_in, torch.Tensor):
            raise self.changed(self.region.last)
        self._stand_in = stand_in
        self._version = stand_in._version
        return self._hand()

    def hand(self, block: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what the model is to get from ``block``, which it has just called.

        Raises:
            FlowChanged: If the call is not the one that the region has run already.
        """
        if block != self.next:
            raise self.changed(block)
        given, spec = pytree.tree_flatten((args, kwargs))
        if spec != self._spec or call_context(given) != self._context:
            raise self.changed(block)
        target, stand_in = self._link.target, self._stand_in
        if stand_in is None or given[target] is not stand_in or stand_in._version != self._version:
            raise self.changed(block)
        given[target] = None
        if not all(map(same, given, self._arguments)):
            raise self.changed(block)
        return self._hand()

    @property
    def finished(self) -> bool:
        """Whether the model has called the region's last block."""
        return self.next > self.region.last

    def stand_in(self) -> weakref.ref[torch.Tensor]:
        """Return a weak reference to the tensor that all of the region's blocks handed out."""
        assert self._stand_in is not None, "only of a region that has run"
        return weakref.ref(self._stand_in)

    def close(self) -> None:
        """Let go of every tensor: what recomputes the region refers to it until backward."""
        self.result = self._stand_in = None
        self._arguments = []
        self._inner_outputs.clear()

    def _hand(self) -> Any:
        block = self.next
        self.next += 1
        if block == self.region.last:
            return self.result
        leaves, spec = self._inner_outputs.pop(block)
        leaves[self._link.source] = self._stand_in
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
                output = run_block(
                    self._wrappers[block], block, again, self._snapshots, args, kwargs
                )
            else:
                output = self._run(part, again, args, kwargs)
                block = part.last
            if block == region.last:
                return output
            leaves, spec = pytree.tree_flatten(output)
            del output
            link = self._flow.links[block + 1]
            assert link is not None, "a region of several blocks is cut where there is no link"
            arguments, given = pytree.tree_flatten((args, kwargs))
            arguments[link.target] = leaves[link.source]
            leaves[link.source] = None
            if not again:
                self._inner_outputs[block] = (leaves, spec)
            args, kwargs = pytree.tree_unflatten(arguments, given)
            block += 1
            del arguments, leaves
