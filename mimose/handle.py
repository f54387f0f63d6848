"""`attach`: make a model train under a byte budget, and the handle that comes back.

A step is: decide (the planner), carry out (the executor), learn (the planner). The harness opens
steps itself with :meth:`Handle.begin` and closes them with :meth:`Handle.end`; in a user's own
loop the model's forward pass opens them, and a step closes when the next one opens.
"""

from __future__ import annotations

import operator
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mimose import attached
from mimose.asking import Asked
from mimose.attaching import (
    budget_bytes,
    check_arguments,
    check_size,
    checked_model,
    chosen_planner,
    open_for,
)
from mimose.attempts import Attempt, attempts, explain, explain_leaving
from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.distributed.agreeing import check_sync
from mimose.distributed.together import Together
from mimose.distributed.wrapping import num_bytes
from mimose.eviction import Eviction
from mimose.plan import Plan
from mimose.planners.base import Planner
from mimose.planners.evicting import Evicting
from mimose.profiling import Profiled
from mimose.records import (
    NO_WORK,
    Decision,
    ModelInfo,
    Outcome,
    Situation,
    Size,
    StepRecord,
)
from mimose.report import Tally, over_budget
from mimose.runtime.blocks import OwnCheckpointing, find_blocks
from mimose.runtime.executor import Executor
from mimose.runtime.failing import watch
from mimose.runtime.optimizers import stepping, with_state
from mimose.runtime.recovery import Undo, collect_garbage
from mimose.runtime.sizes import Alike, SizeReader
from mimose.runtime.step import OpenStep
from mimose.schedule import AnyPlan

T = TypeVar("T")
Stage = Callable[[], None]
SizeFunction = Callable[[tuple[Any, ...], Mapping[str, Any]], Size]

_REQUIRES_GRAD = operator.attrgetter("requires_grad")

_GRADS_LOOKED_AT = 16


def attach(
    model: torch.nn.Module,
    budget: int | float | str | None,
    planner: str | Planner = "auto",
    *,
    blocks: Sequence[str] | None = None,
    device: Device | None = None,
    enforce: bool = False,
    size: SizeFunction | None = None,
    sync: str | None = None,
    **options: Any,
) -> Handle:
    """Make ``model`` train within ``budget``; the training loop stays as it is.

    Args:
        model: The model, already where it will train; with ``DistributedDataParallel`` before or
            after wrapping, with ``fully_shard`` after it.
        budget: Bound on the bytes that the device's caching allocator reserves: an ``int``, text
            such as ``"6GB"`` (GB and GiB both mean 2**30 bytes), a share of the device's memory
            such as ``"80%"`` (of the GPU's, or on the CPU of the machine's), or None or ``"none"``
            for no bound.
        planner: A planner's name (``mimose.PLANNERS`` lists them), ``package.module:Class``, or
            a planner.
        blocks: Patterns of the names of the modules to treat as blocks; by default they are found.
        device: The device to measure on; by default that of the model's parameters.
        enforce: Whether to make exceeding the budget fail. Off by default, since the limit that
            PyTorch offers is process-wide and would hit evaluation, too.
        size: Returns the batch's size from the forward pass's ``(args, kwargs)``; by default it is
            read from the shapes of the usual inputs, see :mod:`mimose.runtime.sizes`.
        sync: In several processes, None for each to plan for its own batch, or ``"max"`` for all
            of them to recompute what any has to: they agree in every forward pass, so all must
            make equally many.
        **options: Options of the planner.

    Returns:
        The handle; ``handle.detach()`` gives the model back as it was.

    Raises:
        ValueError: If the model is attached already, compiled as a whole, wrapped in what is not
            supported, or has no blocks and the planner needs some, or if the budget is not one or
            is less than the parameters take.
    """
    given, model = model, checked_model(model)
    check_sync(sync)
    check_arguments(blocks, size, enforce)
    attached.check_free(model)
    chosen = chosen_planner(planner, options)
    found = find_blocks(model, blocks, required=getattr(chosen, "needs_blocks", True))
    limit = budget_bytes(budget, model, device)
    opened, owned = open_for(model, device)
    try:
        if enforce:
            opened.enforce(limit)
        modules = [block.module for block in found]
        together = Together(given, model, opened, owned=owned, sync=sync, blocks=modules)
        try:
            return Handle(model, chosen, opened, found, limit, size, owned, enforce, together)
        except BaseException:
            together.release()
            raise
    except BaseException:
        if owned:
            opened.close()
        raise


class Handle(Asked, Profiled):
    """An attached model: plans, carries out and observes one step after another.

    Attributes:
        model: The attached model.
        planner: The planner that decides.
        device: The device that measures.
        budget_bytes: Bound on reserved bytes, or None.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        planner: Planner,
        device: Device,
        blocks: Sequence[Any],
        budget_bytes: int | None,
        size: SizeFunction | None,
        owns_device: bool,
        enforced: bool,
        together: Together,
    ) -> None:
        self.model = model
        self.planner = planner
        self.device = device
        self.budget_bytes = budget_bytes
        self._last_record: StepRecord | None = None
        self._tally = Tally(budget_bytes)
        self._attempt: Attempt | None = None
        config = getattr(model, "config", None)
        encoder_decoder = bool(getattr(config, "is_encoder_decoder", False))
        self._size = size or SizeReader(encoder_decoder=encoder_decoder)
        # A planner that tells which length fits plans by size.
        by_size = budget_bytes is not None and hasattr(planner, "longest")
        self._alike = Alike(budget_bytes) if by_size else None
        self._sized = self._called = False
        self._cast: str | None = None  # To what autocast cast in the last step.
        self._owns_device = owns_device
        self._enforced = enforced
        self._together = together
        self._parameters = list(model.parameters())
        # Looked up once: while a model that is sharded runs, it has others.
        self._own_parameters = {m: list(m.parameters()) for m in (b.module for b in blocks)}
        self._optimizers: weakref.WeakKeyDictionary[torch.optim.Optimizer, bool] = (
            weakref.WeakKeyDictionary()
        )
        self._optimizer_ready: bool | None = None  # Not looked for yet.
        self._step: OpenStep | None = None
        self._undo = Undo(model, device)
        self._own_checkpointing = OwnCheckpointing(model)
        self._executor = Executor(
            model,
            device,
            blocks,
            on_forward=self._on_forward,
            after_forward=self._after_forward,
            budget_bytes=budget_bytes,
            on_out_of_memory=self._notice,
        )
        self._executor.takes_transforms = isinstance(planner, Evicting)
        self._version = -1
        try:
            self._bind()
        except BaseException:
            self._executor.detach()
            raise
        # PyTorch's registry of these hooks outlives every model: it must not keep this one alive.
        hooks = [
            register_optimizer_step_pre_hook(_weakly(self._before_optimizer)),
            register_optimizer_step_post_hook(_weakly(self._after_optimizer)),
        ]
        self._release = weakref.finalize(
            self,
            _release,
            [*(hook.remove for hook in hooks), watch(_weakly(self._notice))],
            device if owns_device else None,
            together,
        )
        self._release.atexit = False
        attached.add(self)

    # -- steps

    def begin(self, size: Size) -> None:
        """Open a step for a mini-batch of ``size``: decide what it recomputes.

        Raises:
            Infeasible: If the planner knows that no plan fits the budget, not even without the
                garbage that Python had yet to collect.
            ValueError: If the model's own gradient checkpointing was turned on.
        """
        attempt = self._attempt
        if attempt is not None:
            attempt.num_begun += 1
        if self._step is not None:
            self.end()
        self._own_checkpointing.refuse(self.model, attached=True)
        self._called = True
        self._together.before_step()
        if self._optimizer_ready is None:
            self._optimizer_ready = with_state(self._parameters)
        device = self.device
        device.begin_step()
        begun = device.now()
        self._cast = cast = self._cast_now()
        situation = self._situation(cast)

        def plan() -> Decision:
            nonlocal situation
            try:
                return self.planner.plan(size, situation)
            except Infeasible:
                if not collect_garbage(device):
                    raise
            device.begin_step()  # What the garbage took is not this step's doing.
            situation = self._situation(cast)
            return self.planner.plan(size, situation)

        started = time.perf_counter()
        decision = self._together.decide(plan)
        if decision.release_cache:
            device.release_cache()
            device.begin_step()  # What was reserved before is not this step's doing.
            situation = replace(situation, reserved_bytes=device.reserved_bytes())
        work, estimating = decision.work, decision.estimator_seconds
        # Whatever the planner did not attribute itself (looking the plan up, releasing cache) is
        # the scheduler's.
        choosing = max(decision.scheduler_seconds, time.perf_counter() - started - estimating)
        estimating = device.charge(work.estimating, estimating)
        choosing = device.charge(work.choosing, choosing)
        self._step = OpenStep(
            size,
            situation,
            decision,
            started=begun,
            planned=device.now(),
            estimator_seconds=estimating,
            scheduler_seconds=choosing,
        )
        if attempt is not None and attempt.ordered is not None:
            self._step.ordered = attempt.ordered
            self._executor.begin(attempt.ordered)
            return
        self._executor.remaker.expected_peak = decision.predicted_peak_bytes
        self._executor.begin(decision.plan, collect=decision.collect, trace=decision.trace)

    def decide(self, size: Size) -> Decision:
        """Return what the planner would do for a mini-batch of ``size`` now, without doing it."""
        return self.planner.plan(size, self._situation())

    def end(self, *, failed: bool = False, outcome: Outcome = "oom") -> StepRecord | None:
        """Close the open step, tell the planner what it measured and return it.

        Args:
            failed: The step ran out of memory, or was given up: its forward and backward pass is
                undone if the planner is one that is rescued, and nothing is learned.
            outcome: The outcome of a step that failed.

        Returns:
            The step, or None if none is open.

        Raises:
            torch.OutOfMemoryError: If a tensor-level policy has evicted what is still in use, and
                it does not fit.
        """
        step, self._step = self._step, None
        if step is None:
            return None
        device, evictions = self.device, self._executor.evictions
        if failed:
            evictions.abandon()
        elif evictions.stuck:
            try:
                evictions.stop()
            except torch.OutOfMemoryError:  # Again: its loop was told the first time.
                evictions.abandon()
                failed, outcome = True, "oom"
        else:
            evictions.stop()
        if step.optimized is None:
            if step.backward_done is not None and not failed and not stepping():
                step.lost = True  # The optimizer's step has begun and not ended.
            step.optimized = device.now()
        if step.backward_done is not None and not step.optimizer_noted:
            step.note_optimizer(device.mark())
        memory = device.end_step() if failed or step.memory is None else step.memory
        record = step.record(device, self._executor)
        record.peak_allocated_bytes = memory.peak_allocated
        record.peak_reserved_bytes = memory.peak_reserved
        record.num_alloc_retries = memory.num_alloc_retries
        record.peak_exact = memory.exact
        if step.optimizer_peak is not None:
            record.optimizer_peak_bytes = step.optimizer_peak - step.situation.resident_bytes
        if failed:
            record.outcome = outcome
            if self.planner.rescued and step.backward_done is None and not self._together.several:
                self._undo.restore()
            device.release_cache()
            self._tell_ran_out(step, record)
            return self._closed(record)
        if step.lost:
            record.outcome = "oom"
            self._tell_ran_out(step, record)
            return self._closed(record)
        self._bind()
        started = time.perf_counter()
        work = self.planner.observe(record) or NO_WORK
        observing = device.charge(work, time.perf_counter() - started)
        record.estimator_seconds += observing
        if record.step_seconds is not None:
            record.step_seconds += observing
        return self._closed(record)

    def _tell_ran_out(self, step: OpenStep, record: StepRecord) -> None:
        """Tell the planner of a forward or backward pass for which the budget had no room.

        What ran out within a budget that is not enforced is the doing of something else, which may
        pass.
        """
        ran_out = getattr(self.planner, "ran_out", None)
        if ran_out is None or record.outcome != "oom" or step.backward_done is not None:
            return
        if self._enforced or over_budget(record, self.budget_bytes):
            measuring = step.decision.collect and step.ordered is None and step.forwarded is None
            ran_out(record, measuring=measuring)

    def _closed(self, record: StepRecord) -> StepRecord:
        self._last_record = record
        self._tally.add(record)
        if self._sized and self._alike is not None:
            self._alike.add(record)
        return record

    def _close_retried(self) -> None:
        """Close the step that ran out of memory in a window of several, which runs again."""
        if self._step is not None:
            self._step.retried = True
            self.end()

    def run(self, function: Callable[[], T], *, grads_are_zero: bool = False) -> T:
        """Run the forward and backward pass of a step, again if it runs out of memory.

        An attempt that runs out of memory is undone (no gradient of it stays; the random state,
        the modules' buffers and their attributes come back) and run once more with every block
        recomputed, or with a plan that the planner knows to need less. Not so if the planner is one
        that is never rescued, or if gradients other than zeros were there before (of earlier
        micro-batches): those could not be told apart. The optimizer's step does not belong in it:
        it cannot be undone, and an error after it has begun is raised as it is.

        Args:
            function: Computes the loss and its gradients. With gradient accumulation it runs all
                micro-batches of the optimizer's step, which are all run again. What its local
                variables hold is let go before the second attempt.
            grads_are_zero: Whether gradients that exist already are known to be zeros, so that
                nobody has to look.

        Returns:
            What ``function`` returned.

        Raises:
            torch.OutOfMemoryError: PyTorch's own error, if the last attempt ran out of memory.
        """
        for attempt in self.attempts(grads_are_zero=grads_are_zero):
            with attempt:
                result = function()
        return result

    def attempts(self, *, grads_are_zero: bool = False) -> Iterator[Attempt]:
        """Yield one attempt at a step's forward and backward pass, and another if it failed.

        ``for attempt in handle.attempts(): with attempt: train(batch)``; see :meth:`run`, which is
        the better choice: a ``loss`` assigned in the loop's own body keeps a failed attempt's
        activations alive through the second one.
        """
        return attempts(self, grads_are_zero=grads_are_zero)

    def stand_in(self, plan: AnyPlan, forward: Stage, backward: Stage) -> None:
        """Carry out the open step's passes by stand-ins, as a replayed step does.

        Args:
            plan: What the stand-ins carry out.
            forward: Stands for the forward pass.
            backward: Stands for everything after it and before the optimizer.
        """
        step = self._step
        if step is None:
            raise ValueError("no step is open: call begin() first")
        forward()
        step.forwarded = self.device.now()
        step.carried_out = plan
        backward()

    def stand_in_optimizer(self, optimize: Stage) -> None:
        """Carry out the open step's optimizer by a stand-in; see :meth:`stand_in`."""
        step = self._step
        if step is None:
            raise ValueError("no step is open: call begin() first")
        step.backward_done = self.device.now()
        self.device.mark()
        optimize()
        step.optimized = self.device.now()

    def detach(self) -> None:
        """Give the model back as it was; lift the limit if this handle set it.

        What a tensor-level policy has evicted and is still in use comes back first, whatever the
        budget.

        Raises:
            torch.OutOfMemoryError: If the device has no memory for that. The model stays attached
                and nothing is lost: let go of some tensors and call it again.
        """
        if not self.attached:
            return
        if self._enforced:
            self.device.enforce(None)
        try:
            self._executor.evictions.stop(regardless=True)
        except BaseException:
            if self._enforced:
                self.device.enforce(self.budget_bytes)
            raise
        self._close_ended()  # A whole step of a user's own loop, the last one.
        step = self._step
        if step is not None and step.backward_ran and step.backward_done is None:
            self.end()  # One that no optimizer's step has followed: a micro-batch, say.
        self._step = None
        try:
            self._executor.detach()
        finally:
            attached.discard(self.model)
            self._release()

    def __enter__(self) -> Handle:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        frames: TracebackType | None,
    ) -> None:
        explain_leaving(self, error)
        try:
            self.detach()
        except torch.OutOfMemoryError:
            self._executor.evictions.abandon()
            self.detach()
            raise

    def _close_ended(self) -> None:
        """Close a step that is over: in a user's own loop, once the optimizer has stepped.

        Or once it has run out of memory and the error went to the loop, unless a policy may have
        tensors to bring back, for which there may be no memory yet.
        """
        step = self._step
        if step is None:
            return
        if step.optimized is not None or (step.lost and not isinstance(step.plan, Eviction)):
            self.end()

    @property
    def last_record(self) -> StepRecord | None:
        """The last step that is over; None until the first is.

        In a user's own loop a step is over once the optimizer has stepped: after ``backward()``
        alone this is still the one before it. Without an optimizer's step (a micro-batch) it is
        over when the next one begins, or the model is detached.
        """
        self._close_ended()
        return self._last_record

    @property
    def attached(self) -> bool:
        """Whether the model is still attached by this handle."""
        return attached.handle_of(self.model) is self

    @property
    def block_names(self) -> tuple[str, ...]:
        """The model's blocks, in the order of its forward pass."""
        return self._executor.block_names

    @property
    def open_step(self) -> OpenStep | None:
        """The step that has begun and not ended."""
        return self._step

    def bearing_on(self, plan: AnyPlan) -> tuple[Any, ...]:
        """Return what carrying ``plan`` out depends on besides it: what the executor has learned.

        Whether two steps with one plan run alike can be told from it.
        """
        executor = self._executor
        if isinstance(plan, Eviction):
            return ()  # And on memory and time as they are in the step.
        if isinstance(plan, Plan):
            if plan.keeps_all:
                return (executor.exact,)
            spans = plan.spans_blocks
            if plan.remade:
                remaker = executor.remaker
                return executor.exact, executor.cuts, remaker.missed, remaker.strays
        else:
            spans = True
        cuts = executor.cuts if spans else None
        return executor.exact, cuts, executor.free, executor.keep_only

    @property
    def in_optimizer(self) -> bool:
        """Whether the open step has reached the optimizer, after which it cannot be undone."""
        return self._step is not None and self._step.backward_done is not None

    def rebind(self) -> None:
        """Tell the planner the facts about the model again, for one that was just put in."""
        self._version = -1
        self._bind()

    # -- what the steps are made of

    def _cast_now(self) -> str:
        """Return to what autocast casts now: a dtype, or ``None`` in words.

        Raises:
            ValueError: If it does in a simulation.
        """
        kind = self.device.torch_device.type
        if kind != "meta":
            return str(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None)
        if torch.is_autocast_enabled("cuda") or torch.is_autocast_enabled("cpu"):
            raise ValueError(
                "autocast is not simulated, since PyTorch has none for tensors without data: "
                "leave it out, or give the model another dtype"
            )
        return str(None)

    def _situation(self, cast: str | None = None, read: SizeFunction | None = None) -> Situation:
        parameters = self._parameters
        trainable = list(filter(_REQUIRES_GRAD, parameters))
        # Some are enough, and any: a parameter that the loss does not use never has a gradient.
        grads_resident = any(
            p.grad is not None for p in trainable[:: len(trainable) // _GRADS_LOOKED_AT + 1]
        )
        dtype = parameters[0].dtype if parameters else None
        return Situation(
            resident_bytes=self.device.allocated_bytes(),
            grads_resident=grads_resident,
            optimizer_ready=bool(self._optimizer_ready),
            signature=f"{dtype}, autocast {cast or self._cast_now()}, {len(trainable)} trainable"
            + _reading(read or self._size),
            reserved_bytes=self.device.reserved_bytes(),
        )

    def _bind(self) -> None:
        executor = self._executor
        if executor.version == self._version:
            return
        self._version = executor.version
        own = [self._own_parameters[module] for module in executor.block_modules]
        grads, others = _grad_bytes(self._parameters, own)
        self.planner.bind(
            ModelInfo(
                block_names=executor.block_names,
                exact=executor.exact,
                cuts=executor.cuts,
                free=executor.free,
                keep_only=executor.keep_only,
                cores=executor.cores,
                budget_bytes=self.budget_bytes,
                grad_bytes=grads,
                other_grad_bytes=others,
                device_label=self.device.label,
                expandable_segments=self.device.has_expandable_segments(),
                copy_bandwidth=executor.remaker.offloads.channel.bandwidth
                if getattr(self.planner, "offload", False)
                else None,
            )
        )

    # -- hooks

    def _on_forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        size = self._size(args, kwargs)
        if isinstance(size, tuple) and 0 in size:
            self._called = True
            # Without data there are no activations: the pass runs as it is, in no step.
            self.end()
            self._together.abstain()
            return
        check_size(size, "size= returned")
        self.begin(size)
        self._sized = True

    def _notice(self, error: torch.OutOfMemoryError | None) -> None:
        """Take note of an error that ends a pass outside of any attempt, or of a backward pass."""
        step = self._step
        if step is None:
            return
        if error is None:
            outermost = torch._C._current_graph_task_id() == -1
            step.backward_ran |= outermost and step.forwarded is not None
        elif self._attempt is None and not step.lost and not step.backward_done:
            explain(self, error)

    def _asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Size, Situation]:
        if not self.attached:
            raise ValueError(
                "the model is detached, and what it takes is not counted any more: ask before "
                "detach(), or attach it again with what state_dict() returned"
            )
        read = self._size.copy() if isinstance(self._size, SizeReader) else self._size
        size = read(args, kwargs)
        check_size(size, "size= returned")
        now = self._cast_now()
        # Who asks outside of autocast asks about the training, all the same.
        cast = self._cast if self._cast is not None and now == str(None) else now
        return size, self._situation(cast, read)

    def _after_forward(self) -> None:
        step = self._step
        if step is not None and step.forwarded is None:
            step.forwarded = self.device.now()
            step.carried_out = self._executor.effective_plan

    def _owns(self, optimizer: torch.optim.Optimizer) -> bool:
        known = self._optimizers.get(optimizer)
        if known is None:
            ours = {id(p) for p in self._parameters}
            known = any(id(p) in ours for group in optimizer.param_groups for p in group["params"])
            self._optimizers[optimizer] = known
        return known

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        step = self._step
        if self._attempt is not None and self._owns(optimizer):
            self._attempt.stepped = True
        if step is not None and step.backward_done is None and self._owns(optimizer):
            if self._executor.evictions.active and torch._C._current_graph_task_id() != -1:
                # An optimizer that steps within backward: what follows may need what was evicted,
                # so that the policy stays in force until the next step begins.
                return
            self._executor.evictions.stop()
            step.backward_done = self.device.now()
            self.device.mark()

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if not self._owns(optimizer):
            return
        self._optimizer_ready = True
        if not self._called and any(p.grad is not None for p in self._parameters):
            self._called = True
            self._executor.warn_unplanned()
        self._executor.count_outside()
        if self._step is not None:
            self._step.optimized = self.device.now()
            # Here, since a step of a user's own loop is closed when the next one begins: data, an
            # evaluation and whatever else comes in between are no part of it.
            self._step.note_optimizer(self.device.mark())
            self._step.memory = self.device.end_step()


def _reading(read: SizeFunction) -> str:
    """Return how sizes are read, if otherwise than usual: what was learned is apart then."""
    reading = read.reading if isinstance(read, SizeReader) else ""
    return f", sizes by {reading}" if reading else ""


def _weakly(method: Callable[..., None]) -> Callable[..., None]:
    reference = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        alive = reference()
        if alive is not None:
            alive(*arguments)

    return call


def _release(hooks: list[Callable[[], None]], device: Device | None, together: Together) -> None:
    for remove in hooks:
        remove()
    together.release()
    if device is not None:
        device.close()


def _grad_bytes(
    parameters: Sequence[torch.nn.Parameter], of_blocks: Sequence[Sequence[torch.nn.Parameter]]
) -> tuple[tuple[int, ...], int]:
    """Return each block's gradient bytes (a parameter counts where first used), and the rest."""
    seen: set[int] = set()
    grads = []
    for of_block in of_blocks:
        own = [p for p in of_block if p.requires_grad and id(p) not in seen]
        seen.update(id(p) for p in own)
        grads.append(num_bytes(own))
    rest = [p for p in parameters if p.requires_grad and id(p) not in seen]
    return tuple(grads), num_bytes(rest)
