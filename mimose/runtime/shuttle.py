"""The shuttling collector: measure each block while every block is recomputed.

After Mimose (arXiv 2209.02478). Every block's forward runs twice: plainly, measured and dropped,
and then checkpointed. So memory stays within that of recomputing every block plus one block.
Gradients arriving at the blocks' outputs part the backward pass into segments, whose peaks are
measured as well, or bounded from above where the device cannot tell them (peak statistics on cuda
that belong to the user).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils import _pytree as pytree

from mimose.devices.base import Device, Mark
from mimose.records import BlockSample, Collected
from mimose.runtime.afterwards import Afterwards
from mimose.runtime.calls import Key
from mimose.runtime.capturing import Captured
from mimose.runtime.checkpointing import active_checkpoint
from mimose.runtime.cores import Cores
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.holding import KNOWS_HOOKS, Holding
from mimose.runtime.ledger import OUTSIDE, Ledger
from mimose.runtime.levels import Levels
from mimose.runtime.remaking.trace import Trace
from mimose.runtime.remaking.tracing import Tracer, tracing
from mimose.runtime.rerun import Snapshot
from mimose.runtime.storages import (
    Returned,
    Saved,
    alive,
    also_saved,
    cast_sizes,
    list_storage,
    listing,
    new_storages,
    new_tensors,
    remaining,
    storages_of,
)
from mimose.runtime.wrappers import BlockForward
from mimose.solvers.packing import ROUND, round_up

_HEAD_SHARE = 3


class Sample:
    """A :class:`BlockSample` in the making.

    ``began`` and ``measured`` are the device's stamps: between them the collector was at work.
    """

    __slots__ = (
        "activation",
        "around_checkpoint",
        "backward_peak",
        "began",
        "checkpoint_peak",
        "checkpointed",
        "copies",
        "copy_bytes",
        "end",
        "freed",
        "freed_late",
        "gap_peak",
        "held",
        "inside_checkpoint",
        "kept",
        "kept_peak",
        "let_go",
        "level",
        "measured",
        "measuring_peak",
        "output",
        "output_storages",
        "passed",
        "passing",
        "saved_storages",
        "shared",
        "unsaved",
    )

    def __init__(self, level: int) -> None:
        self.level = level
        self.activation = self.output = self.kept_peak = self.checkpoint_peak = 0
        self.backward_peak: int | None = None
        self.saved_storages: tuple[int, ...] = ()
        self.output_storages: tuple[int, ...] = ()
        self.passing: list[Returned] = []
        self.copies: list[tuple[StorageWeakRef, int]] = []
        self.copy_bytes = self.freed = self.freed_late = self.shared = 0
        self.gap_peak = 0  # Of the block kept, from the end of its forward to what comes next.
        self.end = self.let_go = self.passed = self.measuring_peak = 0
        self.unsaved: dict[int, int] = {}
        # Of what passes what was there when the next block began; None if none did.
        self.held: frozenset[int] | None = None
        self.kept = False
        self.checkpointed = self.inside_checkpoint = self.around_checkpoint = False
        self.began: Any = None
        self.measured: Any = None

    def own(self, passes: Iterable[tuple[int, bool]]) -> None:
        """Count some outputs as what the block itself keeps.

        Args:
            passes: As :attr:`BlockForward.passes`.
        """
        sizes = self.output_storages
        gone = dict(passes)
        taken = {place: round_up(sizes[place], ROUND) for place in gone}
        self.output -= sum(taken.values())
        self.activation += sum(taken.values())
        self.passed += sum(taken[place] for place, held in gone.items() if held)
        self.output_storages = tuple(s for place, s in enumerate(sizes) if place not in gone)
        self.saved_storages += tuple(sizes[place] for place in gone)

    def settle(self) -> tuple[tuple[int, bool], ...]:
        """Count outputs that are gone once the forward is over as what the block itself keeps.

        Attention weights, say, which a layer returns and its caller ignores: recomputed, the layer
        leaves nothing of them, kept, it keeps them for its backward.

        Returns:
            What :attr:`BlockForward.passes` is by that.
        """
        gone = [one for one in self.passing if one.reference.expired()]
        passes = tuple((one.place, self.held is None or one.place in self.held) for one in gone)
        self.own(passes)
        self.passing = []
        # Autocast still on: the copies are in every level, whatever the plan.
        if any(not reference.expired() for reference, _ in self.copies):
            self.copies = []
        return passes

    def finish(self, key: Key, block: int, ledger: Ledger, seconds: Counter[Any]) -> BlockSample:
        """Return the sample of a call, which is the block of this number."""
        measuring = 0 if self.backward_peak is None else self.measuring_peak - self.backward_peak
        return BlockSample(
            block=block,
            level_bytes=self.level,
            activation_bytes=self.activation,
            output_bytes=self.output,
            kept_peak_bytes=max(self.kept_peak, self.gap_peak),
            checkpoint_peak_bytes=self.checkpoint_peak,
            backward_peak_bytes=self.backward_peak,
            forward_seconds=seconds["forward", key],
            saved_storages=self.saved_storages,
            output_storages=self.output_storages,
            checkpointed=self.checkpointed,
            inside_checkpoint=self.inside_checkpoint,
            around_checkpoint=self.around_checkpoint,
            recompute_seconds=seconds["recompute", key],
            backward_seconds=seconds["backward", key] + seconds["core", key],
            forward_flops=ledger.flops_of(("forward", key)),
            recompute_flops=ledger.flops_of(("recompute", key)),
            backward_flops=ledger.flops_of(("backward", key), ("core", key)),
            core_seconds=seconds["core", key],
            core_flops=ledger.flops_of(("core", key)),
            copy_bytes=self.copy_bytes,
            saved_copy_bytes=min(
                self.copy_bytes, sum(round_up(size, ROUND) for _, size in self.copies)
            ),
            freed_bytes=self.freed,
            freed_late_bytes=self.freed_late,
            shared_bytes=self.shared,
            let_go_bytes=self.let_go,
            passed_bytes=self.passed,
            measuring_bytes=max(0, measuring),
        )


class Collector:
    """Collects one step. Levels are bytes above those allocated when it is made.

    Attributes:
        finished: Whether the backward pass has ended.
        keep_only: Calls found to change their arguments, which must not run twice.
        traces: What the traces of calls that were to be traced have shown.
        gave_up: Whether nothing can be measured: what plain passes computed stays in memory.
    """

    def __init__(self, device: Device, largest_gradient: int = 0, *, count: bool = False) -> None:
        """Start with the next forward pass.

        Args:
            device: What measures.
            largest_gradient: Bytes of the model's largest gradient.
            count: Whether FLOPs are counted, too, while :meth:`counting` says so.
        """
        self._ledger = Ledger(device, count)
        self.finished = False
        self.gave_up = False
        self._largest_gradient = largest_gradient
        self.keep_only: set[Key] = set()
        self.traces: dict[Key, Trace] = {}
        self._device = device
        self._levels = Levels(device)
        self._base = self._levels.mark().allocated
        self._samples: dict[Key, Sample] = {}
        self._wrappers: dict[Key, BlockForward] = {}
        self._last: Sample | None = None
        self._first_peak = self._loss_peak = self._after_peak = 0
        self._head_peak = self._tail_peak = 0
        self._passed: set[StorageWeakRef] = set()
        self._afterwards: Afterwards | None = None
        self._segment_start = 0
        self._holding = Holding()
        self._open: Key | None = None
        self._arrived_at: set[Key] = set()
        self._closed = self._begun = self._parted = False
        self._left_behind = self._largest_activation = 0

    def close(self) -> None:
        """Ignore whatever still arrives: another step has begun."""
        self._closed = True
        self._levels.stop()
        self.stop()

    def start(self, *, looks: bool = True) -> None:
        """Note that the forward pass begins.

        Args:
            looks: Whether modules may be looked at that are called outside of blocks.
        """
        self._afterwards = Afterwards(self._levels) if looks else None
        self._ledger.begin(OUTSIDE)

    def stop(self) -> None:
        """Note that the forward pass is over, or has failed."""
        if self._afterwards is not None:
            self._afterwards.stop()

    def counting(self) -> AbstractContextManager[Any]:
        """Return the context for the whole pass in which FLOPs are counted, if they are to be."""
        return self._ledger.counting()

    def rerunning(self, key: Key) -> AbstractContextManager[None]:
        """Return the context of a block's second run, in backward."""
        return self._ledger.within(("recompute", key))

    def first_running(self, key: Key) -> AbstractContextManager[None]:
        """Return the context of a block's first run, within its checkpoint."""
        wrapper = self._wrappers.get(key)
        if wrapper is None or not wrapper.checkpoints or not KNOWS_HOOKS:
            return nullcontext()
        return self._holding.hooks(*torch._C._autograd._top_saved_tensors_default_hooks(False))

    def rerunning_core(self, key: Key) -> AbstractContextManager[None]:
        """Return the context of the second run of a block's attention core, in backward."""
        return self._ledger.within(("core", key))

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
        """Run a block call, measure it, and return its result.

        Args:
            key: The call.
            wrapper: Its block.
            args: Its arguments.
            kwargs: Its keyword arguments.
            rerun: Runs the call checkpointed; None where it must not or need not run twice.
            cores: Has the block's attention core recomputed, if it is to be.
            tracer: Traces the call, if it is to be traced.
        """
        if self.gave_up:
            return wrapper.inner(*args, **kwargs) if rerun is None else rerun()
        device, ledger, levels = self._device, self._ledger, self._levels
        start = ledger.measure()
        begin = levels.mark()
        sample = self._begin(key, wrapper, begin)
        inputs = list(tensors_in((args, kwargs)))
        versions = [t._version for t in inputs]
        snapshot = Snapshot() if rerun is None else wrapper.state.snapshot(args, kwargs)
        random = device.rng_state()
        outer = active_checkpoint()
        sample.inside_checkpoint = outer is not None
        # Hugging Face's flag, switched on after the model was attached.
        sample.checkpointed = getattr(wrapper.module, "gradient_checkpointing", False) is True
        low = levels.mark().allocated
        ledger.begin(("forward", key))
        saved: Saved = {}
        captured = Captured()
        # Within someone's checkpoint nothing is saved, and hooks on top would hide it.
        with self._watching(key, saved, tracer) if outer is None else nullcontext():
            if wrapper.checkpoints is None:  # Once only: looking slows the measured pass a little.
                look = partial(look_for_checkpoint, active_checkpoint(), cores, found := [])
                handle = register_module_forward_pre_hook(look)
                try:
                    result = wrapper.inner(*args, **kwargs)
                finally:
                    handle.remove()
                wrapper.checkpoints = bool(found)
            else:
                result = wrapper.inner(*args, **kwargs)
        sample.began = sample.measured = start
        ledger.measure()
        if tracer is not None and outer is None and not wrapper.checkpoints:
            self.traces[key] = tracer.finish(result)
        sample.around_checkpoint = wrapper.checkpoints
        high = levels.mark()
        sample.end = high.allocated
        outputs = new_storages((result, captured.added()), inputs)
        others = storages_of(wrapper.module, inputs).union(outputs)
        sample.saved_storages = tuple(alive(saved, others))
        sample.output_storages = tuple(outputs.values())
        sample.output = sum(round_up(size, ROUND) for size in outputs.values())
        sample.activation = max(0, high.allocated - low - sample.output)
        sample.kept_peak = sample.checkpoint_peak = peak_of(high) - low
        sample.unsaved = self._unsaved(key, (args, kwargs), saved)
        if [t._version for t in inputs] != versions:
            self.keep_only.add(key)
            rerun = None
        sample.kept = rerun is None
        if rerun is None:
            places = {place for place, storage in enumerate(outputs) if storage in saved}
            sample.own(one for one in wrapper.passes if one[0] in places)
        else:
            del result
            captured.drop()
            device.set_rng_state(random)
            snapshot.put_back()
            snapshot.clear()
            del args, kwargs
            before_plain, low = low, levels.mark().allocated
            casts = cast_sizes(wrapper.module, device.torch_device.type)
            sample.copy_bytes = min(
                max(0, low - before_plain), sum(round_up(size, ROUND) for size in casts)
            )
            sample.activation = max(0, sample.activation - sample.copy_bytes)
            sample.measured = ledger.measure()
            result = rerun()
            again = levels.mark()
            sample.passing = also_saved((result, captured.added()), inputs, outputs, saved)
            if again.peak_allocated is not None:
                # Otherwise the plain pass, which holds more, stands for it.
                sample.checkpoint_peak = again.peak_allocated - before_plain
            self._passed.update(one.reference for one in sample.passing)
            left = 0
            for reference, size in remaining(saved, others):
                if size in casts:
                    sample.copies.append((reference, size))
                else:
                    left += size
            self._check_left(wrapper.name, sample.activation, min(left, low - before_plain))
        self._finish_call(key, result, inputs)
        return result

    def _finish_call(self, key: Key, result: Any, inputs: Sequence[torch.Tensor]) -> None:
        """Go on with what is outside of blocks."""
        self._watch_gradients(key, result, inputs)
        if self._afterwards is not None:
            sample = self._samples[key]
            places = {place for place, _ in self._wrappers[key].passes}
            places = places if sample.kept else {one.place for one in sample.passing}
            self._afterwards.watch(new_tensors(result, inputs, places) if places else ())
        self._ledger.begin(OUTSIDE)

    def _watching(
        self, key: Key, saved: Saved, tracer: Tracer | None
    ) -> AbstractContextManager[Any]:
        """Return the context in which a call's plain pass is listed, and traced if it is to be."""
        if tracer is None:
            return listing(saved)
        return tracing(tracer, partial(list_storage, saved))

    def _unsaved(self, key: Key, own: tuple[Any, Any], saved: Saved) -> dict[int, int]:
        """Return which arguments a plain call saves nothing of: their places and their bytes.

        Those that share their memory are left out, and those that the block before saves.
        """
        found = {}
        for place, leaf in enumerate(pytree.tree_leaves(own)):
            if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided:
                continue
            storage = leaf.untyped_storage()
            whole = leaf.nbytes == storage.nbytes()
            known = storage._cdata in saved or StorageWeakRef(storage) in self._passed
            if whole and not known:
                found[place] = round_up(storage.nbytes(), ROUND)
                if self._afterwards is not None:
                    self._afterwards.note(key, place, leaf)
        return found

    def free_inputs(self, key: Key, sole: Sequence[tuple[int, bool]]) -> None:
        """Take which of a call's arguments nobody else uses, by their places.

        Args:
            key: The call.
            sole: Their places, and whether each is a block's output: what called the first block
                may hold its argument until the forward pass is over.
        """
        sample = self._samples.get(key)
        if sample is not None:
            gone = frozenset() if self._afterwards is None else self._afterwards.early
            sample.freed = sample.freed_late = sample.shared = 0
            for place, inner in sole:
                if inner or (key, place) in gone:
                    sample.freed += sample.unsaved.get(place, 0)
                else:
                    sample.freed_late += sample.unsaved.get(place, 0)

    def share(self, takers: Sequence[tuple[Key, int]]) -> None:
        """Take which calls an argument goes to that nobody else uses, and at which places."""
        samples = [(self._samples.get(key), place) for key, place in takers]
        first = samples[0][0]
        if first is not None:
            first.shared += min(
                0 if sample is None else sample.unsaved.get(place, 0) for sample, place in samples
            )

    def leave(self, output: Any) -> None:
        """Note that the model's forward pass is over, and what it returns.

        Autocast still has the copies of weights that recomputed blocks have left to it. Blocks that
        are kept have saved them, and have them no second time. So where all that follows takes less
        than there is now, what it takes is looked for once backward begins.
        """
        if self._closed or self._arrived_at or self._last is None:
            return
        peaks = None if self._afterwards is None else self._afterwards.end()
        mark = self._levels.mark()
        self._loss_peak = peak_of(mark) - self._base
        copies = [reference for s in self._samples.values() for reference, _ in s.copies]
        if peaks is not None and not copies:
            self._loss_peak = peaks.holding - self._base
            self._after_peak = peaks.after - self._base
            self._parted = peaks.returning is not None
            if peaks.returning is not None:
                self._charge(self._last, peaks.returning - self._base)
        if mark.peak_allocated is None or all(reference.expired() for reference in copies):
            return
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(partial(self._begin_backward, mark.allocated))

    def _begin_backward(self, left: int, gradient: torch.Tensor) -> None:
        """Note that backward begins; ``left`` bytes were allocated when the model was left."""
        if self._closed or self._arrived_at or self._begun:
            return
        self._begun = True  # Others of the model's outputs get their gradients on the way.
        peak = peak_of(self._levels.mark())
        if peak > left:
            self._head_peak = peak - self._base

    def _check_left(self, name: str, activation: int, left: int) -> None:
        """Give up once plain passes have left as much in memory as half of one of them keeps.

        Args:
            name: The block that has just run.
            activation: Bytes of its activations.
            left: Bytes of them that are still there, although their result has been dropped and
                the block has run again: what is stored under one name is replaced by then.
        """
        self._left_behind += max(0, left)
        self._largest_activation = max(self._largest_activation, activation)
        if self._left_behind <= self._largest_activation // 2:
            return
        self.gave_up = True
        self.close()
        warnings.warn(
            f"block {name} was run once to be measured and its activations stay in memory, "
            "probably because a forward hook stores outputs of a module inside it: mimose measures "
            "no more blocks and recomputes every block that it has no measurements of; store "
            "detached tensors and attach again to have them measured",
            UserWarning,
            stacklevel=2,
        )

    def collected(self, number: Callable[[Key], int]) -> Collected:
        """Return what was measured, blocks numbered by ``number``; may wait for the device."""
        device, ledger = self._device, self._ledger
        seconds = ledger.seconds()
        blocks = [
            sample.finish(key, number(key), ledger, seconds)
            for key, sample in self._samples.items()
        ]
        return Collected(
            blocks=tuple(sorted(blocks, key=lambda sample: sample.block)),
            head_peak_bytes=self._head_peak,
            tail_peak_bytes=self._tail_peak,
            first_peak_bytes=self._first_peak,
            collector_seconds=sum(
                device.seconds_between(s.began, s.measured) for s in self._samples.values()
            ),
            outside_seconds=seconds[OUTSIDE],
            outside_flops=ledger.flops_of(OUTSIDE),
            loss_peak_bytes=self._loss_peak,
            after_peak_bytes=self._after_peak,
            traced=tuple(trace.traced(number(key)) for key, trace in self.traces.items()),
        )

    def _begin(self, key: Key, wrapper: BlockForward, mark: Mark) -> Sample:
        """Begin the sample of a call, which begins at ``mark``."""
        if self._afterwards is not None:
            self._afterwards.go_on()
        self._close_gap(mark)
        last = self._last
        if last is not None:
            last.held = frozenset(p.place for p in last.passing if not p.reference.expired())
        self._wrappers[key] = wrapper
        sample = self._samples[key] = self._last = Sample(mark.allocated - self._base)
        return sample

    def _close_gap(self, mark: Mark) -> None:
        """Charge the peak between two blocks' forwards to the one before."""
        peak = peak_of(mark) - self._base
        last = self._last
        if last is None:
            self._first_peak = peak
            return
        self._charge(last, peak)

    def _charge(self, sample: Sample, peak: int) -> None:
        """Charge a peak after a block's forward, while all that it returned was there, to it."""
        sample.checkpoint_peak = max(sample.checkpoint_peak, peak - sample.level)
        above = peak - sample.level + (sample.let_go if sample.kept else sample.activation)
        sample.gap_peak = max(sample.gap_peak, above)

    def _watch_gradients(self, key: Key, result: Any, inputs: Iterable[torch.Tensor]) -> None:
        given = {id(t) for t in inputs}
        if len(self._samples) == 1:
            for tensor in inputs:
                if tensor.requires_grad:
                    tensor.register_hook(partial(self._left, key))
        for tensor in tensors_in(result):
            if tensor.requires_grad and id(tensor) not in given:
                tensor.register_hook(partial(self._arrived, key))

    def _arrived(self, key: Key, gradient: torch.Tensor) -> None:
        if self._closed or self.finished or key in self._arrived_at:
            return
        mark = self._levels.mark()
        if not self._arrived_at:
            self._head_peak = max(self._head_peak, self._head(mark))
            for key_of, sample in self._samples.items():
                passes = sample.settle()
                if not sample.kept:
                    self._wrappers[key_of].passes = passes
            if self._parted and self._last is not None:
                self._last.passed = 0  # No peak after it has that beside it.
            # The only way to learn that the backward pass has ended, short of patching it.
            torch.autograd.Variable._execution_engine.queue_callback(self._end)
        else:
            self._close_segment(mark)
        self._segment_start = mark.allocated
        self._arrived_at.add(key)
        self._open = key
        self._ledger.begin(("backward", key))

    def _left(self, key: Key, gradient: torch.Tensor) -> None:
        """A gradient arrived at the first block's input: its backward is over."""
        if self._closed or self.finished or self._open != key:
            return
        self._close_segment(self._levels.mark())
        self._open = None
        self._ledger.begin(OUTSIDE)

    def _close_segment(self, mark: Mark) -> None:
        self._holding.end()
        peak = peak_of(mark)
        if self._open is None:
            if mark.peak_allocated is None:
                # Not known: a gradient exists a second time while it is being accumulated, beside
                # the one that it was computed from.
                peak += self._largest_gradient + self._first_output()
            self._tail_peak = max(self._tail_peak, peak - self._base)
            return
        sample = self._samples[self._open]
        if mark.peak_allocated is None:
            # Not known: the block's activations were back, and gradients took half as much again.
            peak = self._segment_start + sample.activation * 3 // 2 + sample.output
        sample.backward_peak = peak - self._base

    def _first_output(self) -> int:
        return next((sample.output for sample in self._samples.values()), 0)

    def _head(self, mark: Mark) -> int:
        """Return the peak level between the last block's forward and the first gradient."""
        peak = peak_of(mark) - self._base
        if mark.peak_allocated is None and self._last is not None:
            # Not known: gradients take a few times what the head still holds and what it was given.
            last = self._last
            peak += _HEAD_SHARE * max(0, peak - last.level - last.output) + 2 * last.output
        return peak

    def _end(self) -> None:
        if self._closed:
            return
        mark = self._levels.mark()
        self._close_segment(mark)
        self._tail_peak = max(self._tail_peak, mark.allocated - self._base)
        self._levels.stop()
        self._ledger.measure()
        self.finished = True


def peak_of(mark: Mark) -> int:
    """Return a mark's peak; where it is unknown, what is allocated then."""
    return mark.allocated if mark.peak_allocated is None else mark.peak_allocated


def look_for_checkpoint(
    outer: Any, cores: Cores | None, found: list[bool], module: Any, args: Any
) -> None:
    """Note in ``found`` if a module runs within a checkpoint other than ``outer``."""
    if cores is not None and cores.running:
        return
    # A reentrant checkpoint runs without gradients, a non-reentrant one with hooks of its own.
    if not torch.is_grad_enabled() or active_checkpoint() is not outer:
        found.append(True)
