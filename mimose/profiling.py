"""The passes that planners which plan once are shown: nothing of them stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from mimose.attaching import check_size
from mimose.plan import Plan
from mimose.planners.base import Planner
from mimose.planners.static import Progress, Solution, Static
from mimose.records import Decision, Measured, Size, StepRecord
from mimose.runtime.optimizers import optimizer_costs
from mimose.runtime.step import OpenStep

if TYPE_CHECKING:
    from mimose.handle import Handle

# A simulated pass takes the same time whenever it is taken.
_TIMED_PASSES = {"sim": 0, "cpu": 3, "cuda": 3}


class Profiled:
    """The part of a handle that profiles."""

    planner: Planner

    def profile(
        self,
        function: Callable[[], Any],
        size: Size,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        keeps_gradients: bool = False,
        progress: Progress | None = None,
    ) -> Solution | None:
        """Let a planner that plans once see the batch that it is to plan for.

        The passes recompute every block, measure each, and leave nothing behind: gradients,
        buffers and the random state are as before, and no optimizer steps. Planners that do not
        ask for it are left alone.

        Args:
            function: Computes the loss of the largest batch and its gradients.
            size: That batch's size.
            optimizer: What will train the model: its state and temporaries are part of the peak.
                By default they are taken to be Adam's.
            keeps_gradients: Whether the loop leaves gradients allocated between steps, as
                ``zero_grad(set_to_none=False)`` does.
            progress: Is told how far a long solve has come.

        Returns:
            The planner's solution; None where the planner asks for no profile.

        Raises:
            Infeasible: If no plan fits.
            torch.OutOfMemoryError: If not even the profiled passes fit.
        """
        planner = self.planner
        if not isinstance(planner, Static):
            return None
        measured = self.measure(
            function,
            size,
            plan=planner.profiling_plan,
            optimizer=optimizer,
            keeps_gradients=keeps_gradients,
        )
        return planner.take_profile(measured, progress)

    def measure(
        self,
        function: Callable[[], Any],
        size: Size,
        *,
        plan: Plan | Callable[[], Plan],
        optimizer: torch.optim.Optimizer | None = None,
        keeps_gradients: bool = False,
        grads_are_zero: bool = False,
    ) -> Measured:
        """Run the passes of :meth:`profile` and return what they show, for any planner.

        Args:
            function: As for :meth:`profile`, as are the others.
            size: The batch's size.
            plan: What the passes carry out, or
                :meth:`mimose.planners.static.Static.profiling_plan`, which is asked anew once a
                first pass has shown how many blocks there are.
            optimizer: What will train the model.
            keeps_gradients: Whether the loop leaves gradients allocated between steps.
            grads_are_zero: Whether gradients that exist already are known to be zeros, so that
                nobody has to look.

        Raises:
            ValueError: If there are gradients already.
            torch.OutOfMemoryError: If a pass does not fit.
        """
        return _measure(
            self,  # type: ignore[arg-type]  # a handle
            function,
            size,
            plan=plan,
            optimizer=optimizer,
            keeps_gradients=keeps_gradients,
            grads_are_zero=grads_are_zero,
        )


def _measure(
    handle: Handle,
    function: Callable[[], Any],
    size: Size,
    *,
    plan: Plan | Callable[[], Plan],
    optimizer: torch.optim.Optimizer | None,
    keeps_gradients: bool,
    grads_are_zero: bool,
) -> Measured:
    """Run the passes and return what they show; see :meth:`Handle.measure`."""
    check_size(size, "size is")
    if handle._step is not None:
        handle.end()
    device = handle.device
    # The first pass counts FLOPs, which takes time, and warms up what has to be.
    records: list[StepRecord] = []
    while len(records) <= _TIMED_PASSES[device.kind]:
        passed = plan() if callable(plan) else plan
        records.append(
            _profiled_pass(
                handle, passed, function, size, keeps_gradients, grads_are_zero, count=not records
            )
        )
        if callable(plan) and plan() != passed:
            records.clear()  # Modules are called more often than had been thought.
    trainable = [p for p in handle._parameters if p.requires_grad]
    gradients = sum(p.numel() * p.element_size() for p in trainable)
    state, temporary = optimizer_costs(optimizer, device, gradients)
    device.release_cache()
    before = records[-1].situation
    steady = replace(
        before,
        resident_bytes=before.resident_bytes + (0 if before.optimizer_ready else state),
        grads_resident=keeps_gradients,
        optimizer_ready=True,
        reserved_bytes=device.reserved_bytes(),
    )
    return Measured(tuple(records), steady, state, temporary)


def _profiled_pass(
    handle: Handle,
    plan: Plan,
    function: Callable[[], Any],
    size: Size,
    keeps_gradients: bool,
    grads_are_zero: bool,
    *,
    count: bool,
) -> StepRecord:
    device = handle.device
    handle._undo.save(grads_are_zero=grads_are_zero)
    if not handle._undo.possible:
        raise ValueError(
            "there are gradients, which profiling would mix with its own: call "
            "handle.profile() before training, or optimizer.zero_grad() first"
        )
    try:
        if keeps_gradients:
            for parameter in handle._parameters:
                if parameter.requires_grad and parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
        device.begin_step()
        situation = handle._situation()
        handle._step = OpenStep(
            size,
            situation,
            Decision(plan, "profile", collect=True),
            started=device.now(),
            planned=device.now(),
            estimator_seconds=0.0,
            scheduler_seconds=0.0,
        )
        handle._executor.begin(plan, collect=True, count=count)
        with handle._executor.counting():
            function()
        step, handle._step = handle._step, None
        if step is None:
            raise ValueError(
                "the profiled function ended its own step: let it compute a loss and its "
                "gradients and nothing else"
            )
        step.optimized = device.now()
        record = step.record(device, handle._executor)
        record.phase = "profile"
        memory = device.end_step()
        record.peak_allocated_bytes = memory.peak_allocated
        record.peak_reserved_bytes = memory.peak_reserved
    finally:
        handle._step = None
        handle._undo.restore()
    handle._bind()
    return record
