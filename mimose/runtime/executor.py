"""Carry out a plan on a model, one forward pass at a time."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from mimose.devices.base import Device
from mimose.eviction import Eviction
from mimose.plan import Plan
from mimose.records import Collected
from mimose.runtime.afterwards import has_compiled_parts
from mimose.runtime.blocks import BlockModule
from mimose.runtime.calls import CallOrder, Key
from mimose.runtime.checkpointing import prepare
from mimose.runtime.cores import SUPPORTED
from mimose.runtime.dataflow import (
    DataFlow,
    FlowRecorder,
    has_foreign_hooks,
    num_global_hooks,
    tensors_in,
)
from mimose.runtime.evicting import Evictions
from mimose.runtime.holding import KNOWS_HOOKS
from mimose.runtime.program import Program
from mimose.runtime.remaking.remaker import Remaker
from mimose.runtime.rerun import StepState
from mimose.runtime.riding import RidingCollector
from mimose.runtime.run import Run
from mimose.runtime.scheduled import ScheduledPass
from mimose.runtime.shuttle import Collector
from mimose.runtime.standing import Astray, FlowChanged
from mimose.runtime.wrappers import BlockForward, ModelForward, Switch
from mimose.schedule import AnyPlan, BlockPlan

_FLAGS = ("output_hidden_states", "output_attentions")

_STEPS_OUTSIDE = 3
"""Steps that train blocks outside of the model's forward pass, of which one may be a user's probe,
before they are warned of."""


class Executor:
    """Carries plans out on a model.

    Each forward pass in training with gradients carries out the plan that :meth:`begin` was given
    for it. In eval mode, under ``no_grad`` and in inference mode the model runs as it is.

    Attributes:
        block_names: A readable name for each block, by number; the third call of a shared module
            is called ``name#2``.
        block_modules: The module of each block.
        exact: Whether a forward pass has shown which calls there are.
        cuts: Where no region may span (see :class:`mimose.records.ModelInfo`); None until known.
        free: Blocks that save nothing for backward.
        keep_only: Blocks that must not run twice.
        cores: Blocks of which the attention core alone can run again; None until it was tried.
        evictions: What carries out a tensor-level policy.
        remaker: What carries out the parts of plans that drop what kept blocks save.
        takes_transforms: Whether what it is to carry out is possible under ``torch.func``'s
            transforms; such a policy is.
        version: Rises whenever one of these facts changes.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        blocks: Sequence[BlockModule],
        on_forward: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None,
        after_forward: Callable[[], None] | None = None,
        budget_bytes: int | None = None,
        on_out_of_memory: Callable[[torch.OutOfMemoryError], None] | None = None,
    ) -> None:
        """Wrap the ``forward`` of the model and of its blocks.

        Args:
            model: The model.
            device: What memory and time are read from.
            blocks: Its block modules, from :func:`mimose.runtime.blocks.find_blocks`.
            on_forward: Called with the model's arguments at the start of a forward pass in
                training for which :meth:`begin` has not been called; expected to call it.
            after_forward: Called at the end of each forward pass that carried a plan out.
            budget_bytes: Bound on reserved bytes, which a tensor-level policy heeds.
            on_out_of_memory: Called with PyTorch's error if it ends such a forward pass.
        """
        self.version = 0
        self.block_names: tuple[str, ...] = ()
        self.block_modules: tuple[nn.Module, ...] = ()
        self.exact = False
        self.cuts: tuple[int, ...] | None = None
        self.free: frozenset[int] = frozenset()
        self.keep_only: frozenset[int] = frozenset()
        self.cores: frozenset[int] | None = None
        self.evictions = Evictions(model, device, budget_bytes)
        self.remaker = Remaker(device)
        self.takes_transforms = False
        self._model = model
        self._device = device
        self._on_forward = on_forward
        self._after_forward = after_forward
        self._on_out_of_memory = on_out_of_memory
        self._armed: tuple[AnyPlan, bool] | None = None
        self._tracing = False
        self._effective: AnyPlan | None = None
        self._program: Program | None = None
        self._collector: Collector | None = None
        self._order = CallOrder(len(blocks))
        self._flows: dict[tuple[Any, ...], DataFlow] = {}
        self._flow: DataFlow | None = None
        self._astray = Astray()
        self._free: set[Key] = set()
        self._keep_only: set[Key] = set()
        self._cored: set[Key] | None = None
        self._trainable: list[bool] | None = None
        self._trainable_blocks = [True] * len(blocks)
        self._warned = False
        self._measurable = True
        self._parameters = list(model.parameters())
        self._block_parameters = [list(block.module.parameters()) for block in blocks]
        self._configs = _configs(model)
        self._settings = [vars(config) for config in self._configs if hasattr(config, "__dict__")]
        self._switches = _switches(model, [block.module for block in blocks])
        self._takes_use_cache = "use_cache" in inspect.signature(model.forward).parameters
        self._switch = Switch()
        self._passed = self._ran_outside = False
        self._steps_outside = 0
        # Kept, since every look at a method makes an object of its own.
        self._watch: Callable[[BlockForward, Any, Any], Any] | None = self._watch_outside
        self._switch.outside = self._watch
        self._wrappers = [
            BlockForward(b.module, self._switch, i, b.name, StepState(b.module, b.name, device))
            for i, b in enumerate(blocks)
        ]
        for wrapper in self._wrappers:
            wrapper.follow_compiling()
        self._model_wrapper = ModelForward(model, self)
        self._number_blocks()

    def begin(
        self, plan: AnyPlan, *, collect: bool = False, count: bool = False, trace: bool = False
    ) -> None:
        """Set what the model's next forward pass carries out.

        Args:
            plan: The plan; blocks that it does not cover are kept. An eviction is in force from the
                forward pass on until :attr:`evictions` is told to stop. A schedule that comes to a
                tree is carried out as that tree; where it cannot be carried out (the data flow is
                not known yet, or the model has other blocks), each block that it does not keep from
                its first run on is recomputed on its own.
            collect: Recompute every block, whatever the plan says, and run each once more to
                measure it, unless the collector has found that it cannot.
            trace: While collecting, trace the blocks; they run as the plan says, none of them once
                more (before PyTorch 2.8 as without).
            count: Count FLOPs while collecting, which takes time of its own, wherever
                :meth:`counting` is around both passes.
        """
        if self._collector is not None:
            self._collector.close()
        self._collector = None
        self.evictions.forget()
        if collect or getattr(plan, "regions", ()):
            prepare(self._device)
        if collect and self._measurable:
            kind = RidingCollector if trace and KNOWS_HOOKS else Collector
            self._collector = kind(self._device, self._largest_gradient(), count=count)
        self._armed = (plan, collect)
        self._tracing = trace
        self._effective = None

    def counting(self) -> AbstractContextManager[Any]:
        """Return a context for the pass that :meth:`begin` was told to count the FLOPs of."""
        return nullcontext() if self._collector is None else self._collector.counting()

    def _largest_gradient(self) -> int:
        trainable = (p for p in self._parameters if p.requires_grad)
        return max((p.numel() * p.element_size() for p in trainable), default=0)

    @property
    def effective_plan(self) -> AnyPlan:
        """What the last forward pass really carried out.

        Raises:
            RuntimeError: If no forward pass has ended since :meth:`begin`.
        """
        if self._effective is None:
            raise RuntimeError("no forward pass has ended since a plan was set")
        return self._effective

    def collected(self) -> Collected | None:
        """Return what the last collecting step measured, once its backward pass is over."""
        collector = self._collector
        if collector is None or not collector.finished:
            return None
        numbers = {key: number for number, key in enumerate(self._order.keys)}
        return collector.collected(numbers.__getitem__)

    @property
    def module_names(self) -> tuple[str, ...]:
        """The qualified names of the block modules, each once."""
        return tuple(wrapper.name for wrapper in self._wrappers)

    def state_dict(self) -> dict[str, Any]:
        """Return which calls the forward pass makes, and what was found of them, as plain data."""
        return {
            "exact": self._order.exact,
            "calls": [list(key) for key in self._order.keys],
            "free": sorted(map(list, self._free)),
            "keep_only": sorted(map(list, self._keep_only)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned, of a model with the same blocks."""
        if not state["exact"]:
            return
        self._order.keys = [(int(i), int(n)) for i, n in state["calls"]]
        self._order.exact = True
        self._free = {(int(i), int(n)) for i, n in state["free"]}
        self._keep_only = {(int(i), int(n)) for i, n in state["keep_only"]}
        self._flows.clear()
        self._flow = None
        self._number_blocks()

    def detach(self) -> None:
        """Restore the model exactly; whatever is still in flight finishes as it was planned.

        Raises:
            torch.OutOfMemoryError: If a tensor-level policy has evicted more than the device has
                memory for, whatever the budget. Nothing has changed then.
        """
        self.evictions.stop(regardless=True)
        if self._collector is not None:
            self._collector.close()
        self._watch = self._switch.outside = None
        self._model_wrapper.remove()
        for wrapper in self._wrappers:
            wrapper.remove()

    def run_forward(
        self, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run the model's forward pass ``inner``; called by its wrapper."""
        if not torch.is_grad_enabled() or self._switch.run is not None:
            return inner(*args, **kwargs)
        self._switch.outside = None  # Blocks that are called now are called by the model.
        try:
            return self._run_forward(inner, args, kwargs)
        finally:
            self._switch.outside = self._watch

    def _run_forward(
        self, inner: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if torch._C._current_graph_task_id() != -1:
            # Within a backward pass: a checkpoint around the model runs it again.
            return inner(*args, **kwargs)
        if not self._model.training:
            return self._watch_untrained(inner(*args, **kwargs))
        if self._is_transformed():
            return inner(*args, **kwargs)
        for wrapper in self._wrappers:
            wrapper.follow_compiling()  # Layers may be compiled after attaching, too.
        self._passed = True
        if self._armed is None and self._on_forward is not None:
            self._on_forward(args, kwargs)
        armed, self._armed = self._armed, None
        if armed is None:
            return inner(*args, **kwargs)
        plan, collect = armed
        try:
            if isinstance(plan, Eviction):
                output = self._evict(plan, inner, args, kwargs)
            else:
                output = self._carry_out(plan, collect, inner, args, kwargs)
        except torch.OutOfMemoryError as error:
            if self._on_out_of_memory is not None:
                self._on_out_of_memory(error)
            raise
        if self._after_forward is not None:
            self._after_forward()
        return output

    def _evict(
        self,
        policy: Eviction,
        inner: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the forward pass under a policy, which stays in force for the backward pass.

        The blocks run as they are, and so nothing is learned of them.
        """
        if self._takes_use_cache:
            kwargs = {**kwargs, "use_cache": False}
        try:
            self.evictions.start(policy, args, kwargs)
            with self._caches_off():
                output = inner(*args, **kwargs)
        except BaseException:
            self.evictions.abandon()
            raise
        self._effective = policy
        return output

    def _carry_out(
        self,
        asked: BlockPlan,
        collect: bool,
        inner: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        trainable = [p.requires_grad for p in self._parameters]
        probing = trainable != self._trainable
        if probing:
            self._trainable_blocks = [
                any(p.requires_grad for p in parameters) for parameters in self._block_parameters
            ]
        if self._takes_use_cache:
            kwargs = {**kwargs, "use_cache": False}
        program, plan = self._translated(asked)
        plain = program is None and plan.keeps_all
        if plain and not collect and self.exact and not probing:
            with self._caches_off():
                output = inner(*args, **kwargs)
            self._effective = plan
            return output
        if self._astray.read:
            self._forget_flows()
        recorder, signature = None, ()
        if collect or program is not None or plan.spans_blocks:
            signature = self._signature(args, kwargs)
            self._flow = self._flows.get(signature)
            recorder = FlowRecorder((args, kwargs)) if self._flow is None else None
        scheduled, cores = None, plan.cores
        if collect and not (self._tracing and KNOWS_HOOKS):
            plan = Plan.recompute_each(len(self._order.keys))
        elif program is not None:
            scheduled = self._scheduled(program)
        elif plan.spans_blocks:
            plan = plan.cut(self._effective_cuts(plan))
        run = Run(
            plan,
            self._order.keys,
            self._wrappers,
            self._flow,
            self._keep_only,
            self._trainable_blocks,
            self._device,
            self._astray,
            collector=self._collector if collect else None,
            recorder=recorder,
            probing=probing or not self.exact,
            scheduled=scheduled,
            cores=cores,
            remaker=self.remaker if plan.remade or (collect and self._tracing) else None,
        )
        for wrapper in self._wrappers:
            wrapper.count = 0
        self._switch.open(run)
        if collect and self._collector is not None:
            self._collector.start(looks=not has_compiled_parts(self._model))
        try:
            with self._caches_off(), recorder or nullcontext():
                output = inner(*args, **kwargs)
            if collect and self._collector is not None:
                self._collector.leave(output)
            output = run.finish(output)
        except FlowChanged:
            self._forget_flows()
            raise
        finally:
            self._switch.run = None
            run.close()
            if collect and self._collector is not None:
                self._collector.stop()
        self._learn(run, recorder, signature, output, probing)
        self._trainable = trainable
        if cores:
            self._check_cores(run)
        return output

    def _forget_flows(self) -> None:
        self._astray.read = False
        self._flows.clear()
        self._flow = None
        self._publish()

    def _translated(self, asked: BlockPlan) -> tuple[Program | None, Plan]:
        """Return a schedule that is no tree, ready to be carried out, and a plan to take for it."""
        if isinstance(asked, Plan):
            return None, asked
        program = self._program
        if program is None or program.schedule is not asked:
            program = self._program = Program(asked)
        return (program, program.singly) if program.tree is None else (None, program.tree)

    def _scheduled(self, program: Program) -> ScheduledPass | None:
        flow, keys = self._flow, self._order.keys
        if flow is None or not self.exact or program.schedule.num_blocks != len(keys):
            return None
        wrappers = {number: self._wrappers[index] for number, (index, _) in enumerate(keys)}
        return ScheduledPass(program, self._device, flow, wrappers)

    def _check_cores(self, run: Run) -> None:
        if not run.cored and not self._cored:
            raise ValueError(
                f"no attention core was found in {type(self._model).__name__}, so that none can be "
                f"recomputed on its own: choose another planner, or a model that is supported "
                f"({SUPPORTED})"
            )

    def _effective_cuts(self, plan: Plan) -> Sequence[int]:
        if self._flow is None or not self.exact:
            return range(1, plan.num_blocks)
        return self._all_cuts(self._flow)

    def _all_cuts(self, flow: DataFlow) -> tuple[int, ...]:
        """Return the flow's cuts and those around blocks that must not run twice."""
        number = {key: n for n, key in enumerate(self._order.keys)}
        alone = [number[key] for key in self._keep_only if key in number]
        around = {c for b in alone for c in (b, b + 1) if 0 < c < len(number)}
        return tuple(sorted(around.union(flow.cuts)))

    def _learn(
        self,
        run: Run,
        recorder: FlowRecorder | None,
        signature: tuple[Any, ...],
        output: Any,
        probing: bool,
    ) -> None:
        """Take in what the finished forward pass has shown."""
        if run.sequence != self._order.keys or not self.exact:
            if self._order.learn(run.sequence):
                self._flows.clear()
                self._flow = None
            self._number_blocks()
        if recorder is not None:
            flow = recorder.finish(self._model, output)
            if run.sequence != self._order.keys:
                # Calls were left out, so which block follows which is not settled.
                count = len(self._order.keys)
                none = (None,) * count
                flow = DataFlow(tuple(range(1, count)), none, none)
            self._flows[signature] = self._flow = flow
        collector = self._collector
        if collector is not None:
            self._keep_only |= collector.keep_only
            self._measurable = not collector.gave_up
            if self._flow is not None and run.sequence == self._order.keys:
                for key, sole in zip(run.sequence, self._flow.sole):
                    collector.free_inputs(key, sole)
                for group in self._flow.shared:
                    collector.share([(run.sequence[number], place) for number, place in group])
        if probing:
            self._free = set(run.free)
        else:
            self._free |= run.free
        if run.cored:
            self._cored = run.cored | (self._cored or set())
        numbers = {key: number for number, key in enumerate(self._order.keys)}
        self._effective = run.effective_plan(numbers)
        self._publish()

    def _publish(self) -> None:
        """Bring the public facts up to date."""
        keys = self._order.keys
        facts = (
            tuple(self._wrappers[i].name + (f"#{n}" if n else "") for i, n in keys),
            self._order.exact,
            None if self._flow is None else self._all_cuts(self._flow),
            frozenset(n for n, key in enumerate(keys) if key in self._free),
            frozenset(n for n, key in enumerate(keys) if key in self._keep_only),
            None
            if self._cored is None
            else frozenset(n for n, key in enumerate(keys) if key in self._cored),
        )
        known = (self.block_names, self.exact, self.cuts, self.free, self.keep_only, self.cores)
        if facts != known:
            self.block_names, self.exact, self.cuts, self.free, self.keep_only, self.cores = facts
            self.block_modules = tuple(self._wrappers[i].module for i, _ in keys)
            self.version += 1

    def _number_blocks(self) -> None:
        for wrapper, numbers in zip(self._wrappers, self._order.numbers(len(self._wrappers))):
            wrapper.numbers = numbers
        self._publish()

    def _signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        """Return what the data flow may depend on.

        Flags, switches, which arguments are given, hooks. Numbers are left out: they may be others
        in every pass.
        """
        given = [(str(i), _kind(value)) for i, value in enumerate(args)]
        given += [(name, _kind(kwargs[name])) for name in sorted(kwargs)]
        flags = [getattr(config, flag, None) for config in self._configs for flag in _FLAGS]
        hooks = [has_foreign_hooks(wrapper.module) for wrapper in self._wrappers]
        switches = [
            (name, value)
            for attributes in self._switches
            for name, value in attributes.items()
            if (value is True or value is False) and not name.startswith("_")
        ]
        return (*given, *flags, *hooks, *num_global_hooks(), *switches)

    @contextmanager
    def _caches_off(self) -> Iterator[None]:
        """Switch key-value caches off: a recomputed block would write to them twice.

        In steps that recompute nothing as well: with a cache, keys are laid out differently, and
        a loss would differ in its last bits with the plan.
        """
        # In the configurations' own dictionaries: their attribute access costs microseconds.
        on = [settings for settings in self._settings if settings.get("use_cache")]
        for settings in on:
            settings["use_cache"] = False
        try:
            yield
        finally:
            for settings in on:
                settings["use_cache"] = True

    def _is_transformed(self) -> bool:
        """Whether the pass runs under a transform of ``torch.func``; warn once that no plan can.

        Checkpoints take hooks on saved tensors, which those transforms have none of.
        """
        if torch._C._functorch.peek_interpreter_stack() is None or self.takes_transforms:
            return False
        if not self._warned:
            self._warned = True
            self._watch = None
            warnings.warn(
                f"{type(self._model).__name__} runs under a transform of torch.func (grad, vmap, "
                "jacrev, ...), in which no block can be recomputed and no memory budget is kept: "
                "differentiate with backward() or torch.autograd.grad for that",
                UserWarning,
                stacklevel=2,
            )
        return True

    def _watch_outside(self, block: BlockForward, args: Any, kwargs: Any) -> Any:
        """Run a block that something else than the model calls; notice if it is trained."""
        output = block.inner(*args, **kwargs)
        if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
            return output
        if block.module.training and torch.is_grad_enabled():
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(self._notice_outside)
        return output

    def _notice_outside(self, gradient: torch.Tensor) -> None:
        if self._watch is None:
            return
        self._ran_outside = True
        if not self._passed:
            self.warn_unplanned()

    def count_outside(self) -> None:
        """Count an optimizer's step; warn once if blocks were trained outside in several."""
        if not self._ran_outside:
            return
        self._ran_outside = False
        self._steps_outside += 1
        if self._steps_outside < _STEPS_OUTSIDE or self._watch is None:
            return
        name = type(self._model).__name__
        self._warn_once(
            f"blocks of {name} are being trained outside of its forward pass, where nothing is "
            f"planned for and no memory budget is kept, as {self._steps_outside} steps have shown: "
            f"call {name} as model(...), not a method or a part of it"
        )

    def warn_unplanned(self) -> None:
        """Warn once that the model is trained without its forward pass having been called."""
        name = type(self._model).__name__
        self._warn_once(
            f"{name} is being trained, but its forward pass was never called, so that nothing "
            f"is planned for and no memory budget is kept: call the {name} that was attached "
            "as model(...), not a method or a part of it, or attach what is called"
        )

    def _warn_once(self, text: str) -> None:
        self._watch = self._switch.outside = None
        if not self._warned:
            self._warned = True
            warnings.warn(text, UserWarning, stacklevel=3)

    def _watch_untrained(self, output: Any) -> Any:
        """Warn once if a model in eval mode is trained after all: no plan is carried out then."""
        if self._warned:
            return output
        for tensor in tensors_in(output):
            if tensor.requires_grad:
                tensor.register_hook(self._warn_untrained)
        return output

    def _warn_untrained(self, gradient: torch.Tensor) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self._model).__name__} is being trained in eval mode, in which no memory "
                "budget is kept: call model.train() before the forward pass",
                UserWarning,
                stacklevel=2,
            )


def _configs(model: nn.Module) -> list[Any]:
    found = {id(c): c for m in model.modules() if (c := getattr(m, "config", None)) is not None}
    return [config for config in found.values() if not isinstance(config, nn.Module)]


def _switches(model: nn.Module, blocks: Sequence[nn.Module]) -> list[dict[str, Any]]:
    """Return the attributes of the modules that lie outside all blocks."""
    inside = {id(module) for block in blocks for module in block.modules()}
    return [vars(module) for module in model.modules() if id(module) not in inside]


def _kind(value: Any) -> Any:
    """Return a switch's value, and of anything else its type only."""
    return value if value is None or isinstance(value, bool | str) else type(value)
