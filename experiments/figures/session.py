"""Training steps of a chosen padded length on a device, through the harness's own loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from mimose.devices import open_device
from mimose.devices.base import Device
from mimose.eviction import EvictionFigures
from mimose.handle import Handle, attach
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.static import Solution, Static
from mimose.records import Measured, StepRecord
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.workloads import Workload
from mimose_bench.experiments.loop import Step, Trainer
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.tasks.base import Task

OpenDevice = Callable[[], AbstractContextManager[Device]]
"""Opens a device with an empty allocator for the block."""

Say = Callable[[str], None]
"""Takes a line of progress."""


def silent(_: str) -> None:
    """Say nothing."""


@contextmanager
def opened(name: str) -> Iterator[Device]:
    """Open the device called ``name``, with exact peaks, for the block."""
    device = open_device(name, reset_peaks=True)
    try:
        yield device
    finally:
        device.close()


class Session:
    """A workload's model, its optimizer and its handle, taking one step at a time.

    Attributes:
        workload: What is trained; a task is taken batch by batch alone, see :meth:`take`.
        handle: The attached model.
    """

    def __init__(
        self,
        workload: Workload | Task,
        model: torch.nn.Module,
        handle: Handle,
        memory: StepMemory | None = None,
    ) -> None:
        self.workload = workload
        self.handle = handle
        # The paper's PyTorch 1.11 kept gradients between steps, zero_grad filling them with zeros,
        # and had no foreach optimizers.
        config = RunConfig(task=workload.name, zero_grad="keep", foreach="off")
        self._trainer = Trainer(workload, model, handle, config, memory)  # type: ignore[arg-type]

    def use(self, planner: str, **options: Any) -> None:
        """Let another planner decide from the next step on."""
        self.handle.planner = make_planner(planner, **options)
        self.handle.rebind()

    def step(self, length: int) -> StepRecord:
        """Take a training step on a batch padded to ``length``.

        Raises:
            torch.OutOfMemoryError: If it did not fit.
        """
        assert isinstance(self.workload, Workload)
        return self.take(self.workload.example_batch(length))

    def take(self, batch: Batch) -> StepRecord:
        """Take a training step on a batch.

        Raises:
            torch.OutOfMemoryError: If it did not fit.
        """
        step = self.attempt(batch)
        if step.error is not None or step.record is None:
            raise torch.OutOfMemoryError(
                f"{self.workload.name} at length {batch.size[1]} did not fit: {step.error}"
            )
        return step.record

    def attempt(self, batch: Batch) -> Step:
        """Take a training step on a batch, which may fail; the step says how."""
        (step,) = self._trainer.steps([batch])
        return step

    @property
    def evicted(self) -> EvictionFigures | None:
        """What a tensor-level policy did in the last step."""
        return self.handle._executor.evictions.figures

    def measure(self, batch: Batch, *, cores: bool = False) -> Measured:
        """Profile ``batch`` for planners that plan once.

        Args:
            batch: The batch.
            cores: Measure blocks of which the attention core alone is recomputed.
        """
        handle = self.handle
        tensors = handle.device.put(batch.tensors)
        count = len(handle.block_names)
        plan = Plan(count, (), tuple(range(count))) if cores else Plan.recompute_each(count)
        return handle.measure(
            lambda: self._trainer._gradients(tensors),
            batch.size,
            plan=plan,
            optimizer=self._trainer.optimizer,
            keeps_gradients=True,
            grads_are_zero=True,
        )

    def plan_once(self, planner: Static, measured: Measured, budget_bytes: int | None) -> Solution:
        """Let ``planner`` plan from a profile and decide from the next step on.

        Raises:
            Infeasible: If none of its plans fits into the budget.
        """
        handle = self.handle
        handle.budget_bytes = budget_bytes
        handle.planner = planner
        handle.rebind()
        return planner.take_profile(measured)

    def enforced(self, batch: Batch, budget_bytes: int) -> StepRecord:
        """Take a training step on a batch with the budget enforced, from an empty cache.

        Raises:
            torch.OutOfMemoryError: If it did not fit.
        """
        device = self.handle.device
        device.enforce(budget_bytes)
        try:
            return self.take(batch)
        finally:
            device.enforce(None)

    def outcome(self, batch: Batch, budget_bytes: int) -> str:
        """Return what comes of a step under an enforced budget, from an empty cache.

        Returns:
            ``ok``; ``flushed`` where the allocator had to flush its cache within the step; ``oom``
            where the plan ran out of memory.
        """
        try:
            record = self.enforced(batch, budget_bytes)
        except torch.OutOfMemoryError:
            return "oom"
        if record.outcome != "ok":
            return "oom"
        return "flushed" if record.num_alloc_retries else "ok"

    def settle(self, length: int) -> None:
        """Take the steps that make gradients and optimizer state, which later ones find there."""
        for _ in range(2):
            self.step(length)


@contextmanager
def training(
    device: Device,
    workload: Workload | Task,
    planner: str,
    budget_bytes: int | None = None,
    memory: StepMemory | None = None,
    enforce: bool = True,
    **options: Any,
) -> Iterator[Session]:
    """Build and attach ``workload``'s model on ``device`` for the block.

    Args:
        device: An open device.
        workload: What to train.
        planner: A planner's name.
        budget_bytes: The budget; None for none.
        memory: Where simulated steps are remembered, for those that are taken again.
        enforce: Whether the device makes exceeding the budget fail.
        **options: Options of the planner.
    """
    torch.manual_seed(0)
    build = getattr(device, "build", lambda function: function())
    model = build(workload.build_model)
    device.adopt(model)
    enforce = enforce and budget_bytes is not None
    with attach(model, budget_bytes, planner, device=device, enforce=enforce, **options) as handle:
        yield Session(workload, model, handle, memory)
