"""One forward pass under a plan: what each block call does when the model makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mimose.devices.base import Device
from mimose.plan import Plan, Region, Remade
from mimose.runtime.calls import Key
from mimose.runtime.changing import InputChange, InputWatch
from mimose.runtime.checkpointing import active_checkpoint, checkpointed, keeps_state
from mimose.runtime.conditions import CallMemory, cache_weights, cached_weights
from mimose.runtime.cores import Cores
from mimose.runtime.dataflow import DataFlow, FlowRecorder, tensors_in
from mimose.runtime.regions import OpenRegion, run_block
from mimose.runtime.remaking.remaker import Looked, Remaker, before
from mimose.runtime.remaking.saving import Saving
from mimose.runtime.riding import RidingCollector
from mimose.runtime.scheduled import ScheduledPass
from mimose.runtime.shuttle import Collector
from mimose.runtime.standing import Astray, made_real
from mimose.runtime.wrappers import BlockForward
from mimose.schedule import AnyPlan


class Run:
    """One forward pass.

    Args:
        plan: The plan, already cut where regions may not span.
        keys: The calls that are known, in order.
        wrappers: The wrappers of the block modules.
        flow: The recorded data flow; needed where the plan spans blocks.
        keep_only: Calls that must not run twice.
        trainable: For each module, whether any of its parameters requires a gradient.
        device: Whose random state regions look at.
        astray: Told if a region's inner outputs are read after all.
        collector: Measures every block, if this is a collecting step.
        recorder: Records the data flow, if it is not known yet.
        probing: Whether to find out which calls save nothing for backward.
        scheduled: Carries an explicit schedule out instead of the plan.
        cores: Blocks of which the attention core is recomputed on its own; in a collecting step
            within the recomputed block.
        remaker: Carries out what the plan drops of what kept blocks save; in a collecting step
            traces the blocks.

    Attributes:
        sequence: The calls made so far.
        ran: The calls that were checkpointed on their own.
        cored: The calls whose attention core was recomputed on its own.
        remade: What calls dropped of what they save.
        free: Calls found to save nothing for backward, and so run plainly.
        keep_only: Calls that must not run twice, those found now included.
    """

    __slots__ = (
        "_actions",
        "_astray",
        "_collector",
        "_cores",
        "_default",
        "_device",
        "_flow",
        "_handed",
        "_keys",
        "_open",
        "_plan",
        "_probing",
        "_recorder",
        "_remade",
        "_remaker",
        "_scheduled",
        "_split",
        "_trainable",
        "_watching",
        "_wrappers",
        "cored",
        "free",
        "keep_only",
        "ran",
        "remade",
        "sequence",
    )

    def __init__(
        self,
        plan: Plan,
        keys: Sequence[Key],
        wrappers: Sequence[BlockForward],
        flow: DataFlow | None,
        keep_only: set[Key],
        trainable: list[bool],
        device: Device,
        astray: Astray,
        *,
        collector: Collector | None = None,
        recorder: FlowRecorder | None = None,
        probing: bool = False,
        scheduled: ScheduledPass | None = None,
        cores: Iterable[int] = (),
        remaker: Remaker | None = None,
    ) -> None:
        self._plan = plan
        self._cores = frozenset(cores)
        self._remaker = remaker
        self._remade = {remade.block: remade for remade in plan.remade}
        if remaker is not None:
            remaker.begin(plan.remade)
        self._scheduled = scheduled
        self._keys = tuple(keys)
        self._wrappers = {number: wrappers[index] for number, (index, _) in enumerate(keys)}
        self._flow = flow
        self._trainable = trainable
        self._device = device
        self._astray = astray
        self._probing = probing
        self._collector = collector
        self._recorder = recorder
        self._watching = collector is not None or recorder is not None or probing
        self._open: OpenRegion | None = None
        self._handed: list[Region] = []
        self._split: set[Region] = set()
        # One more than there are blocks: a call that no plan can name yet finds the last entry.
        self._actions: list[Region | None] = [None] * (len(keys) + 1)
        for region in plan.regions:
            for block in range(region.first, min(region.last + 1, len(keys))):
                self._actions[block] = region
        everything = plan.num_recomputed >= len(keys)
        self._actions[-1] = Region(0, 0) if everything else None
        self.keep_only = keep_only
        self.free: set[Key] = set()
        self.ran: set[Key] = set()
        self.cored: set[Key] = set()
        self.remade: dict[Key, Remade] = {}
        self.sequence: list[Key] = []

    def call(self, wrapper: BlockForward, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do what the plan says for this call of a block."""
        nth = wrapper.count
        wrapper.count = nth + 1
        key = (wrapper.index, nth)
        self.sequence.append(key)
        numbers = wrapper.numbers
        known = nth < len(numbers)
        block = numbers[nth] if known else numbers[0] if numbers else -1
        if self._open is not None:
            return self._hand_through(block if known else -1, args, kwargs)
        if self._scheduled is not None:
            return self._run_scheduled(self._scheduled, key, block, known, wrapper, args, kwargs)
        action = self._actions[block]
        if self._watching:
            return self._watched(key, block, action is not None, wrapper, args, kwargs)
        if action is None:
            return self._keep(key, block, wrapper, args, kwargs)
        if action.first == action.last or not known or action in self._split:
            return self._alone(key, block, wrapper, args, kwargs)
        return self._start_region(action, key, block, wrapper, args, kwargs)

    def finish(self, output: Any) -> Any:
        """Return what the model has returned, once it is sure that no region's result went astray.

        Raises:
            FlowChanged: If one did.
        """
        if self._open is not None:
            raise self._open.changed(self._open.next)
        if self._remaker is not None:
            self._remaker.offloads.watch(output)
        return made_real(output) if self._handed else output

    def close(self) -> None:
        """Let go of a region that an error has left open."""
        if self._open is not None:
            self._open.close()

    def effective_plan(self, numbers: Mapping[Key, int]) -> AnyPlan:
        """Return what was really carried out, blocks numbered as by ``numbers``."""
        if self._scheduled is not None:
            return self._effective_schedule(self._scheduled, numbers)
        regions = [Region(numbers[key], numbers[key]) for key in self.ran]
        for region in self._handed:
            # Numbers rise where this pass brought calls never seen before.
            shift = numbers[self._keys[region.first]] - region.first
            regions.append(_shifted(region, shift))
        cores = sorted(numbers[key] for key in self.cored - self.ran)
        ordered = tuple(sorted(regions, key=lambda r: r.first))
        remade = [replace(done, block=numbers[key]) for key, done in self.remade.items()]
        remade.sort(key=lambda r: r.block)
        return Plan(max(len(numbers), 1), ordered, tuple(cores), tuple(remade))

    def _effective_schedule(self, scheduled: ScheduledPass, numbers: Mapping[Key, int]) -> AnyPlan:
        schedule = scheduled.schedule
        if not scheduled.stuck and tuple(self.sequence) == self._keys:
            return schedule
        # As near as a tree comes to it.
        called = set(self.sequence)
        singly = {
            numbers[key]
            for block, key in enumerate(self._keys)
            if key in called
            and block in scheduled.program.singly.recomputed
            and block not in scheduled.stuck
        }
        return Plan.recompute_each(max(len(numbers), 1), singly)

    def _run_scheduled(
        self,
        scheduled: ScheduledPass,
        key: Key,
        block: int,
        known: bool,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not known:
            return wrapper.inner(*args, **kwargs)
        if self._watching and self._saves_nothing((wrapper,), args, kwargs):
            self.free.add(key)
        around = active_checkpoint() is not None
        if around:
            self.keep_only.add(key)
        twice = key not in self.keep_only and not _holds_cache(args, kwargs)
        return scheduled.run(block, wrapper, args, kwargs, twice=twice)

    def _watched(
        self,
        key: Key,
        block: int,
        recompute: bool,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        recorder = self._recorder
        if recorder is not None:
            recorder.enter_block(wrapper.module, args, kwargs)
        if self._collector is not None:
            riding = isinstance(self._collector, RidingCollector)
            remaker, remade = self._remaker, self._remade.get(block) if riding else None
            looked = None if remaker is None else remaker.look(key, wrapper, args, kwargs)
            if remade is not None and (
                remaker is None or looked is None or not remaker.fits(looked, remade)
            ):
                remade, recompute = None, True
            twice = (recompute or not riding) and self._may_run_twice(key, wrapper, args, kwargs)

            cached = cached_weights()

            def rerun() -> Any:
                if riding and self._probing:
                    return self._first_alone(key, block, wrapper, args, kwargs)
                if cached is not None and not riding:
                    cache_weights(cached)  # The measured pass has left its own there.
                return self._checkpoint(key, block, wrapper, args, kwargs, cores)

            cores = self._cores_of(key, block)
            with nullcontext() if cores is None else cores.recomputed(wrapper.module):
                again = rerun if twice else None
                result = self._collect(key, wrapper, args, kwargs, again, cores, looked, remade)
            if cores is not None and cores.found:
                self.cored.add(key)
        elif recompute:
            first = self._first_alone if self._probing else self._alone
            result = first(key, block, wrapper, args, kwargs)
        else:
            if self._saves_nothing((wrapper,), args, kwargs):
                self.free.add(key)
            result = self._keep(key, block, wrapper, args, kwargs)
        if recorder is not None:
            recorder.leave_block(result)
        return result

    def _collect(
        self,
        key: Key,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        rerun: Callable[[], Any] | None,
        cores: Cores | None,
        looked: Looked | None,
        remade: Remade | None,
    ) -> Any:
        """Have a call measured, and traced where that is wanted and can be; then values may go."""
        collector, remaker = self._collector, self._remaker
        assert collector is not None, "only collecting steps are measured"
        if remaker is None or looked is None:
            return collector.run(key, wrapper, args, kwargs, rerun, cores)
        tracer = remaker.tracer(looked)
        if remade is None or collector.gave_up:
            result = collector.run(key, wrapper, args, kwargs, rerun, cores, tracer)
            trace = collector.traces.get(key)
            if trace is not None and not remaker.learn(looked, trace):
                del collector.traces[key]
            return result
        assert isinstance(collector, RidingCollector), "others recompute all that they measure"
        everything, saving = before(tracer), Saving(wrapper.name)
        result = collector.run(key, wrapper, args, kwargs, None, cores, tracer, saving)
        trace = collector.traces.get(key)
        if trace is not None and not remaker.learn(looked, trace):
            # What no call will be like is not to be planned with.
            del collector.traces[key]
            trace = None
        done = remaker.drop(trace, remade, saving, everything)
        if done is not None:
            self.remade[key] = done
            collector.let_go(key, done.dropped)
        return result

    def _cores_of(self, key: Key, block: int) -> Cores | None:
        if block not in self._cores:
            return None
        collector = self._collector
        return Cores() if collector is None else Cores(partial(collector.rerunning_core, key))

    def _keep(
        self,
        key: Key,
        block: int,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a block that is kept, all of it or all but what it makes again."""
        remade, remaker = self._remade.get(block), self._remaker
        if remade is not None and remaker is not None:
            looked = remaker.look(key, wrapper, args, kwargs)
            if looked is None or not remaker.fits(looked, remade):
                return self._alone(key, block, wrapper, args, kwargs)
            result, done = remaker.run(looked, remade, args, kwargs)
            if done is not None:
                self.remade[key] = done
            return result
        cores = self._cores_of(key, block)
        if cores is None or active_checkpoint() is not None:
            return wrapper.inner(*args, **kwargs)
        with cores.recomputed(wrapper.module):
            result = wrapper.inner(*args, **kwargs)
        if cores.found:
            self.cored.add(key)
        return result

    def _alone(
        self,
        key: Key,
        block: int,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        if not self._may_run_twice(key, wrapper, args, kwargs):
            return wrapper.inner(*args, **kwargs)
        return self._checkpoint(key, block, wrapper, args, kwargs)

    def _first_alone(
        self,
        key: Key,
        block: int,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a block for the first time ever; if it changes its input, plainly, now and later.

        Raises:
            RuntimeError: If it has changed a buffer before that, which cannot be undone.
        """
        if wrapper.compiles:  # A watch would be compiled, too.
            return self._alone(key, block, wrapper, args, kwargs)
        buffers = [(b, b._version) for b in wrapper.module.buffers() if not b.is_inference()]
        random = self._device.rng_state()
        try:
            with InputWatch(list(tensors_in((args, kwargs)))):
                return self._alone(key, block, wrapper, args, kwargs)
        except InputChange:
            self.ran.discard(key)
            self.keep_only.add(key)
        # Past the handler: the error held the frame of the checkpoint, and so its hooks.
        if any(buffer._version != version for buffer, version in buffers):
            raise RuntimeError(
                f"block {wrapper.name} changes a buffer and then its input in place, so that it "
                "can neither run twice nor start again: run this step again, in which it is kept"
            )
        self._device.set_rng_state(random)
        return wrapper.inner(*args, **kwargs)

    def _checkpoint(
        self,
        key: Key,
        block: int,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        cores: Cores | None = None,
    ) -> Any:
        self.ran.add(key)
        memory = CallMemory()
        collector = self._collector

        def function(rerun: bool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if collector is not None and not rerun:
                with collector.first_running(key):
                    return run_block(wrapper, block, False, memory, args, kwargs)
            if collector is not None:
                within = nullcontext() if cores is None else cores.recomputed(wrapper.module)
                with collector.rerunning(key), within:
                    return run_block(wrapper, block, True, memory, args, kwargs)
            return run_block(wrapper, block, rerun, memory, args, kwargs)

        return checkpointed(function, args, kwargs)

    def _start_region(
        self,
        region: Region,
        key: Key,
        block: int,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        flow = self._flow
        assert flow is not None, "a plan that spans blocks is cut into single ones without a flow"
        members = [self._wrappers[b] for b in range(region.first, region.last + 1)]
        if (
            block != region.first
            or pytree.tree_structure((args, kwargs)) != flow.specs[block]
            or active_checkpoint() is not None
            or _holds_cache(args, kwargs)
            or self._saves_nothing(members, args, kwargs)
        ):
            self._split.add(region)
            return self._alone(key, block, wrapper, args, kwargs)
        self._open = OpenRegion(region, flow, self._wrappers, self._device, self._astray)
        self._handed.append(region)
        return self._open.start(args, kwargs)

    def _hand_through(self, block: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        opened = self._open
        assert opened is not None, "only called while a region is open"
        result = opened.hand(block, args, kwargs)
        if opened.finished:
            opened.close()
            self._open = None
        return result

    def _may_run_twice(
        self, key: Key, wrapper: BlockForward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        if key in self.keep_only:
            return False
        if active_checkpoint() is not None:
            # The model's own checkpoint recomputes this block, and plainly, so it ran plainly.
            self.keep_only.add(key)
            return False
        if self._saves_nothing((wrapper,), args, kwargs):
            self.free.add(key)
            return False
        return not _holds_cache(args, kwargs)

    def _saves_nothing(
        self,
        wrappers: list[BlockForward] | tuple[BlockForward, ...],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> bool:
        if not torch.is_grad_enabled():
            return True
        if any(self._trainable[wrapper.index] for wrapper in wrappers):
            return False
        return not any(tensor.requires_grad for tensor in tensors_in((args, kwargs)))


def _shifted(region: Region, by: int) -> Region:
    inner = tuple(_shifted(r, by) for r in region.inner)
    return Region(region.first + by, region.last + by, inner)


def _holds_cache(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    return any(map(keeps_state, args)) or any(map(keeps_state, kwargs.values()))
