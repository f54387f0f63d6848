"""Collect a step beside its plan: no block runs once more for it.

The shuttling collector runs every block twice in the forward pass. Yet a block that is recomputed
shows what it saves in its first run already, since hooks see it although it is not kept, and what
having it kept takes when it runs again in backward; a block that is kept shows all that in its only
run. So a step under any plan of single blocks can teach, at the price of looking.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook

from mimose.devices.base import Device
from mimose.records import Collected
from mimose.runtime.calls import Key
from mimose.runtime.capturing import Captured
from mimose.runtime.checkpointing import active_checkpoint
from mimose.runtime.cores import Cores
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.ledger import OUTSIDE
from mimose.runtime.remaking.trace import Trace
from mimose.runtime.remaking.tracing import Tracer, recording
from mimose.runtime.shuttle import Collector, look_for_checkpoint, peak_of
from mimose.runtime.storages import (
    Saved,
    cast_sizes,
    list_storage,
    new_storages,
    remaining,
    storages_of,
)
from mimose.runtime.wrappers import BlockForward
from mimose.solvers.packing import ROUND, round_up

RIDES = hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
"""Whether this PyTorch tells which hooks a checkpoint has, so that others can be put before them;
2.8 and later do."""


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
        self._moments: dict[Key, dict[int, int]] = {}
        self._moment: tuple[Key, int] | None = None

    def run(
        self,
        key: Key,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rerun: Callable[[], Any] | None,
        cores: Cores | None = None,
        tracer: Tracer | None = None,
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
        """
        if rerun is None or self.gave_up:
            return super().run(key, wrapper, args, kwargs, rerun, cores, tracer)
        levels, ledger = self._levels, self._ledger
        start = ledger.measure()
        begin = levels.mark()
        sample = self._begin(key, begin)
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
        sizes = [size for identity, (_, size) in saved.items() if identity not in others]
        sample.saved_storages = tuple(sizes)
        sample.output_storages = tuple(outputs.values())
        sample.output = sum(round_up(size, ROUND) for size in outputs.values())
        casts = cast_sizes(wrapper.module, self._device.torch_device.type)
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
        sample.unsaved = self._unsaved((args, kwargs), saved)
        sample.passing = [
            (StorageWeakRef(tensor.untyped_storage()), size)
            for tensor in tensors_in((result, captured.added()))
            if (size := outputs.get(_identity(tensor))) is not None and _identity(tensor) in saved
        ]
        self._passed.update(reference for reference, _ in sample.passing)
        if tracer is not None and ran and not wrapper.checkpoints:
            self.traces[key] = tracer.finish(result)
        self._check_left(wrapper.name, sample.activation, left)
        self._watch_gradients(key, result, inputs)
        ledger.begin(OUTSIDE)
        return result

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
        try:
            with super().rerunning(key):
                yield
        finally:
            after = levels.look()
            sample = self._samples.get(key)
            if sample is not None and after.peak_allocated is not None:
                shown = after.peak_allocated - before.allocated
                sample.kept_peak = max(shown, sample.activation + sample.output)

    def _hooks(
        self,
        key: Key,
        saved: Saved,
        tracer: Tracer | None,
        pack: Callable[[torch.Tensor], Any],
        unpack: Callable[[Any], torch.Tensor],
    ) -> AbstractContextManager[Any]:
        """Return hooks that look at what a call saves, and at when backward comes to it."""
        count = 0
        # PyTorch holds the hook as long as anything that it saved, and the tracer holds tensors.
        traced_by = None if tracer is None else weakref.ref(tracer)

        def noting(tensor: torch.Tensor) -> Any:
            nonlocal count
            list_storage(saved, tensor)
            found = None if traced_by is None else traced_by()
            if found is not None:
                found.note(tensor)
            count += 1
            return count - 1, pack(tensor)

        def needing(packed: Any) -> Any:
            place, held = packed
            tensor = unpack(held)
            self._come_to(key, place)
            return tensor

        return torch.autograd.graph.saved_tensors_hooks(noting, needing)

    def _watching(
        self, key: Key, saved: Saved, tracer: Tracer | None
    ) -> AbstractContextManager[Any]:
        """Return the context of a call that keeps all that it saves."""
        stack = ExitStack()
        stack.enter_context(self._hooks(key, saved, tracer, _detached, _same))
        if tracer is not None:
            stack.enter_context(recording(tracer))
        return stack

    def collected(self, number: Callable[[Key], int]) -> Collected:
        """Return what was measured, blocks numbered by ``number``; may wait for the device."""
        found = super().collected(number)
        levels = {
            number(key): _by_use(self.traces[key], moments, self._samples[key].level)
            for key, moments in self._moments.items()
            if key in self.traces
        }
        traced = tuple(replace(t, levels=levels.get(t.block, ())) for t in found.traced)
        return replace(found, traced=traced)

    def _come_to(self, key: Key, place: int) -> None:
        """Note that backward has come to what a block has saved at ``place``."""
        if not (self._closed or self.finished):
            self._end_moment()
            self._moment = key, place

    def _end_moment(self) -> None:
        """Note the peak since backward came to the last tensor."""
        peak = self._levels.look().peak_allocated
        moment, self._moment = self._moment, None
        if moment is not None and peak is not None:
            key, place = moment
            moments = self._moments.setdefault(key, {})
            moments[place] = max(peak - self._base, moments.get(place, 0))

    def _arrived(self, key: Key, gradient: torch.Tensor) -> None:
        if not (self._closed or self.finished):
            self._end_moment()
        super()._arrived(key, gradient)

    def _left(self, key: Key, gradient: torch.Tensor) -> None:
        if not (self._closed or self.finished):
            self._end_moment()
        super()._left(key, gradient)


def _by_use(trace: Trace, moments: dict[int, int], level: int) -> tuple[int, ...]:
    """Return the peaks of a block's backward, one for each use of a value, above ``level``."""
    found: list[int] = []
    highest = 0
    for place in reversed(range(len(trace.packs))):
        highest = max(highest, moments.get(place, 0))
        if trace.packs[place].value >= 0:
            found.append(highest - level)
            highest = 0
    if found and highest:
        found[-1] = max(found[-1], highest - level)
    return tuple(found) if moments else ()


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    # A node that saves its own output would keep itself alive otherwise.
    return tensor.detach()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _identity(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout == torch.strided else 0
