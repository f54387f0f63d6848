"""Collect a step beside its plan: no block runs once more for it.

The shuttling collector runs every block twice in the forward pass. Yet a block that is recomputed
shows what it saves in its first run already, since hooks see it although it is not kept, and what
having it kept takes when it runs again in backward; a block that is kept shows all that in its only
run; and so does one that lets values go, which are there until its forward is over. So a step under
any plan of single blocks can teach, at the price of looking.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from operator import add
from typing import Any, NamedTuple

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.checkpoint import set_checkpoint_early_stop

from mimose.devices.base import Device, Mark
from mimose.menu import Traced, course_of
from mimose.records import BlockSample, Collected
from mimose.runtime.calls import Key
from mimose.runtime.capturing import Captured
from mimose.runtime.checkpointing import active_checkpoint
from mimose.runtime.cores import Cores
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.holding import Held
from mimose.runtime.remaking.saving import Saving
from mimose.runtime.remaking.trace import Trace
from mimose.runtime.remaking.tracing import Tracer, recording
from mimose.runtime.shuttle import Collector, look_for_checkpoint, peak_of
from mimose.runtime.storages import (
    Saved,
    also_saved,
    cast_sizes,
    list_storage,
    new_storages,
    remaining,
    storages_of,
)
from mimose.runtime.wrappers import BlockForward
from mimose.solvers.packing import ROUND, round_up


class Passage(NamedTuple):
    """What was measured where backward came to a saved tensor.

    Attributes:
        start: The level as it came there, that tensor included.
        peak: The highest level until it came to the next one.
    """

    start: int
    peak: int


class RidingCollector(Collector):
    """Collects one step under its own plan. Levels are as the shuttling collector's.

    Args:
        device: What measures.
        largest_gradient: Bytes of the model's largest gradient.
        count: Whether FLOPs are counted, too.
    """

    def __init__(self, device: Device, largest_gradient: int = 0, *, count: bool = False) -> None:
        super().__init__(device, largest_gradient, count=count)
        self._running: tuple[Key, BlockForward, Saved, Tracer | None] | None = None
        # Peaks within a block's backward, from each tensor that it needs to the next.
        self._moments: dict[Key, dict[int, Passage]] = {}
        self._moment: tuple[Key, int] | None = None
        self._saving: Saving | None = None
        self._dropped: dict[Key, tuple[int, ...]] = {}
        # The storages of the tensors that each block has saved, in order.
        self._packs: dict[Key, list[int]] = {}
        # Peaks within a block's backward until it needs the first tensor.
        self._before: dict[Key, int] = {}

    def run(
        self,
        key: Key,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rerun: Callable[[], Any] | None,
        cores: Cores | None = None,
        tracer: Tracer | None = None,
        saving: Saving | None = None,
    ) -> Any:
        """Run a block call as the plan says, measure it, and return its result.

        Args:
            key: The call.
            wrapper: Its block.
            args: Its arguments.
            kwargs: Its keyword arguments.
            rerun: Runs the call checkpointed, if the plan says so.
            cores: None: no plan of single blocks has any.
            tracer: Traces the call, if it is to be traced.
            saving: Takes what a kept call saves, if some of it is to go; see :meth:`let_go`.
        """
        if rerun is None or self.gave_up:
            self._saving = saving
            return super().run(key, wrapper, args, kwargs, rerun, cores, tracer)
        levels, ledger = self._levels, self._ledger
        start = ledger.measure()
        begin = levels.mark()
        sample = self._begin(key, wrapper, begin)
        inputs = list(tensors_in((args, kwargs)))
        sample.inside_checkpoint = active_checkpoint() is not None
        sample.checkpointed = getattr(wrapper.module, "gradient_checkpointing", False) is True
        low = levels.mark().allocated
        saved: Saved = {}
        captured = Captured()
        self._running = key, wrapper, saved, tracer
        sample.began = start
        sample.measured = ledger.begin(("forward", key))
        try:
            # To its end, in backward, too: what it takes there is part of what keeping it takes.
            with set_checkpoint_early_stop(False):
                result = rerun()
        finally:
            ran, self._running = self._running is None, None
        high = levels.mark()
        ledger.measure()
        if not ran or key in self.keep_only:
            # It changed its input, and was run plainly instead.
            sample.checkpointed = True
        outputs = new_storages((result, captured.added()), inputs)
        others = storages_of(wrapper.module, inputs).union(outputs)
        casts = cast_sizes(wrapper.module, self._device.torch_device.type)
        lasting: set[int] = set()
        if tracer is not None and ran and not wrapper.checkpoints:
            trace = self.traces[key] = tracer.finish(result)
            lasting = self._lasting(key, trace, saved, casts)
        sizes = [size for identity, (_, size) in saved.items() if identity not in others | lasting]
        sample.saved_storages = tuple(sizes)
        sample.output_storages = tuple(outputs.values())
        sample.output = sum(round_up(size, ROUND) for size in outputs.values())
        left = 0
        for reference, size in remaining(saved, others):
            if size in casts:
                sample.copies.append((reference, size))
                sample.copy_bytes += round_up(size, ROUND)
            else:
                left += size
        sample.activation = max(0, sum(round_up(s, ROUND) for s in sizes) - sample.copy_bytes)
        sample.checkpoint_peak = peak_of(high) - low
        # Until its run in backward has shown it: no more than both together.
        sample.kept_peak = sample.checkpoint_peak + sample.activation
        sample.unsaved = self._unsaved(key, (args, kwargs), saved)
        sample.passing = also_saved((result, captured.added()), inputs, outputs, saved)
        self._passed.update(one.reference for one in sample.passing)
        self._check_left(wrapper.name, sample.activation, left)
        self._finish_call(key, result, inputs)
        return result

    def _lasting(self, key: Key, trace: Trace, saved: Saved, casts: Sequence[int]) -> set[int]:
        """Return what a recomputed call saves that is there in any case: a table made once, say.

        Copies of weights, of the sizes ``casts``, are there until autocast ends only.
        """
        own = {storage for storage, pack in zip(self._packs[key], trace.packs) if pack.value >= 0}
        return {
            identity
            for identity, (reference, size) in saved.items()
            if not (identity in own or size in casts or reference.expired())
        }

    def let_go(self, key: Key, dropped: tuple[int, ...]) -> None:
        """Note that a call has just let values of its graph go; until then it counts as kept."""
        sample = self._samples.get(key)
        if sample is None or self._closed:
            return
        # Trying recipes out may have taken more than the block itself: this mark leaves that out.
        sample.let_go = max(0, sample.end - self._levels.mark().allocated)
        self._dropped[key] = dropped

    @contextmanager
    def first_running(self, key: Key) -> Iterator[None]:
        """Look at a block's first run, which takes place within its checkpoint."""
        running, self._running = self._running, None
        if running is None or running[0] != key:
            yield
            return
        _, wrapper, saved, tracer = running
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)

        with ExitStack() as stack:
            stack.enter_context(self._hooks(key, saved, tracer, pack, unpack))
            found: list[bool] = []
            if wrapper.checkpoints is None:
                look = partial(look_for_checkpoint, active_checkpoint(), None, found)
                handle = register_module_forward_pre_hook(look)
                stack.callback(handle.remove)
            if tracer is not None:
                stack.enter_context(recording(tracer))
            yield
        if wrapper.checkpoints is None:
            wrapper.checkpoints = bool(found)
        self._samples[key].around_checkpoint = bool(wrapper.checkpoints)

    @contextmanager
    def rerunning(self, key: Key) -> Iterator[None]:
        """Measure a block's second run, in backward: with it, all that it saves is there."""
        levels = self._levels
        if self._closed or self.finished:
            yield
            return
        before = levels.look()
        # Any other step's run ends with the last tensor that backward needs.
        ended: list[Mark] = []
        pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)
        left = len(self._packs.get(key, ()))

        def counting(tensor: torch.Tensor) -> Any:
            nonlocal left
            packed = pack(tensor)
            left -= 1
            if left == 0:
                ended.append(levels.look())
            return packed

        try:
            with super().rerunning(key), torch.autograd.graph.saved_tensors_hooks(counting, unpack):
                yield
        finally:
            marks = [*ended, levels.skip() if ended else levels.look()]
            sample = self._samples.get(key)
            peaks = [mark.peak_allocated for mark in marks if mark.peak_allocated is not None]
            if sample is not None and peaks:
                sample.measuring_peak = max(peaks) - self._base
                shown = max(peaks) - before.allocated
                sample.kept_peak = max(shown, sample.activation + sample.output)

    def _hooks(
        self,
        key: Key,
        saved: Saved,
        tracer: Tracer | None,
        pack: Callable[[torch.Tensor], Any],
        unpack: Callable[[Any], torch.Tensor],
        *,
        remade: bool = False,
    ) -> AbstractContextManager[Any]:
        """Return hooks that look at what a call saves, and at when backward comes to it."""
        packs = self._packs[key] = []
        # PyTorch holds the hook as long as anything that it saved, and the tracer holds tensors.
        traced_by = None if tracer is None else weakref.ref(tracer)

        def noting(tensor: torch.Tensor) -> Any:
            list_storage(saved, tensor)
            found = None if traced_by is None else traced_by()
            if found is not None:
                found.note(tensor)
            packs.append(_identity(tensor))
            return len(packs) - 1, Held(pack(tensor))

        def needing(packed: Any) -> Any:
            place, held = packed
            # What a block with a checkpoint of its own makes again is gone sooner than if kept.
            keeping = not remade and self._wrappers[key].checkpoints
            if remade and not (self._closed or self.finished):
                # Making it again belongs neither to what was before nor to it.
                peak = self._end_moment().peak_allocated
                self._before.setdefault(key, (peak or 0) - self._base)
            tensor = unpack(held.packed)
            if keeping:
                self._holding.take(held, tensor)
            self._come_to(key, place)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(noting, needing)

    def _watching(
        self, key: Key, saved: Saved, tracer: Tracer | None
    ) -> AbstractContextManager[Any]:
        """Return the context of a call that keeps all that it saves."""
        stack = ExitStack()
        pack: Callable[[torch.Tensor], Any] = _detached
        unpack: Callable[[Any], torch.Tensor] = _same
        saving, self._saving = self._saving, None
        if saving is not None:
            stack.enter_context(saving.hooks())
            pack, unpack = torch._C._autograd._top_saved_tensors_default_hooks(False)
        hooks = self._hooks(key, saved, tracer, pack, unpack, remade=saving is not None)
        stack.enter_context(hooks)
        if tracer is not None:
            stack.enter_context(recording(tracer))
        return stack

    def collected(self, number: Callable[[Key], int]) -> Collected:
        """Return what was measured, blocks numbered by ``number``; may wait for the device."""
        found = super().collected(number)
        shown = {
            number(key): by_use(self.traces[key], moments, self._samples[key].level)
            for key, moments in self._moments.items()
            if key in self.traces
        }
        dropped = {number(key): values for key, values in self._dropped.items()}
        firsts = {number(key): peak for key, peak in self._before.items()}
        blocks = {sample.block: sample for sample in found.blocks}
        traced = []
        for one in found.traced:
            starts, levels = shown.get(one.block, ((), ()))
            inside = replace(one, starts=starts, levels=levels)
            if one.block in dropped and one.block in blocks:
                sample, before = blocks[one.block], firsts.get(one.block, 0)
                inside, blocks[one.block] = as_kept(inside, dropped[one.block], sample, before)
            traced.append(inside)
        return replace(found, blocks=tuple(blocks.values()), traced=tuple(traced))

    def _come_to(self, key: Key, place: int) -> None:
        """Note that backward has come to what a block has saved at ``place``."""
        if self._closed or self.finished:
            return
        mark = self._end_moment()
        if mark.peak_allocated is not None:
            start = mark.allocated - self._base
            self._moments.setdefault(key, {}).setdefault(place, Passage(start, start))
            self._moment = key, place

    def _end_moment(self) -> Mark:
        """Note the peak since backward came to the last tensor."""
        mark = self._levels.look()
        moment, self._moment = self._moment, None
        if moment is not None and mark.peak_allocated is not None:
            key, place = moment
            start, peak = self._moments[key][place]
            self._moments[key][place] = Passage(start, max(peak, mark.peak_allocated - self._base))
        return mark

    def _arrived(self, key: Key, gradient: torch.Tensor) -> None:
        if not (self._closed or self.finished):
            self._end_moment()
        super()._arrived(key, gradient)

    def _left(self, key: Key, gradient: torch.Tensor) -> None:
        if not (self._closed or self.finished):
            self._end_moment()
        super()._left(key, gradient)


def as_kept(
    traced: Traced, dropped: Sequence[int], sample: BlockSample, before: int
) -> tuple[Traced, BlockSample]:
    """Return what a block that let values go would have shown in backward, had it kept them.

    Args:
        traced: What was seen inside it, the levels of its backward as they were.
        dropped: The values.
        sample: Its sample, likewise.
        before: The peak of its backward until that needed the first of them, from the same level
            as the sample's.
    """
    if sample.backward_peak_bytes is None or not traced.levels:
        return traced, sample
    more = [0] * len(traced.levels)
    for sign, values in ((1, ()), (-1, dropped)):
        for use, alive, ran in course_of(traced.graph, values):
            if not ran:
                # Of what is held longer so as to make them, the most part is there anyway.
                more[use] += sign * sum(traced.bytes[v] for v in alive.intersection(dropped))
    levels = tuple(map(add, traced.levels, more))
    peak = max(sample.level_bytes + max(levels), before + sample.let_go_bytes)
    return (
        replace(traced, starts=tuple(map(add, traced.starts, more)), levels=levels),
        replace(sample, backward_peak_bytes=peak),
    )


def by_use(
    trace: Trace, moments: Mapping[int, Passage], level: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where a block's backward stands as it comes to each use of a value, and its peaks.

    A node comes to all that it has saved before it runs: the peak belongs to the last of that.

    Args:
        trace: The block's trace.
        moments: By place among what was saved what was measured there, in backward's order.
        level: The level before the block's forward, from which both are counted.
    """
    places = [place for place in trace.order if trace.packs[place].value >= 0]
    if not moments or not places:
        return (), ()
    lowest = min(start for start, _ in moments.values())
    starts = {place: moments[place].start if place in moments else lowest for place in places}
    peaks = dict(starts)
    owner = places[0]
    for node in _nodes(moments):
        owner = max((place for place in node if place in peaks), default=owner)
        peaks[owner] = max(peaks[owner], *(moments[place].peak for place in node))
    return (
        tuple(starts[place] - level for place in places),
        tuple(peaks[place] - level for place in places),
    )


def _nodes(moments: Mapping[int, Passage]) -> Iterator[list[int]]:
    """Yield the places that belong to one node of backward's each: those that rise."""
    node: list[int] = []
    for place in moments:
        if node and place < node[-1]:
            yield node
            node = []
        node.append(place)
    if node:
        yield node


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    # A node that saves its own output would keep itself alive otherwise.
    return tensor.detach()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0
