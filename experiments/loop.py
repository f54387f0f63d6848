"""The training loop: the same few lines for every planner, task and device."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.devices.sim.device import SimDevice
from mimose.devices.sim.steps import StepLog
from mimose.handle import Handle
from mimose.planners import make_planner
from mimose.planners.static import Static
from mimose.records import Measured, StepRecord
from mimose.runtime.eviction.engine import Thrashing
from mimose.units import format_seconds
from mimose_bench.experiments import stopping
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.remembered import Replay, StepMemory, key_of
from mimose_bench.experiments.tasks.base import Batch, Task


@dataclass(frozen=True, slots=True)
class Step:
    """One finished step and what belongs to it.

    Attributes:
        number: From 0.
        batch: The mini-batch.
        record: What was measured; None where the planner refused the batch before it started.
        loss: Mean loss of the batch, or None where the step did not finish or is simulated.
        wait_seconds: Time spent waiting for the batch and copying it, outside the step; None where
            time is simulated, since the host's work on data is not.
        least_budget_bytes: Where the planner refused: the least budget that would do.
        error: Why the step did not finish.
        in_optimizer: It failed in the optimizer's step, half applied: the parameters are lost.
        rescued: What had been done of it was undone, so that training may go on.
        thrashing: It was given up, since it recomputed too much.
    """

    number: int
    batch: Batch
    record: StepRecord | None
    loss: float | None
    wait_seconds: float | None
    least_budget_bytes: int | None = None
    error: str | None = None
    in_optimizer: bool = False
    rescued: bool = True
    thrashing: bool = False


class Trainer:
    """A model, its optimizer and its handle, ready to take steps.

    Attributes:
        together: Whether other processes take each step, too.
    """

    def __init__(
        self,
        task: Task,
        model: torch.nn.Module,
        handle: Handle,
        config: RunConfig,
        memory: StepMemory | None = None,
        begin: Callable[[Callable[[], None], Device], None] | None = None,
    ) -> None:
        """Make the task's optimizer.

        Args:
            task: The task.
            model: Its model, attached.
            handle: The model's handle.
            config: The run.
            memory: Where simulated steps are remembered; None takes every step in full.
            begin: In several processes what begins a step in all of them or in none, as
                :meth:`mimose_bench.experiments.crew.Crew.begin` does.
        """
        self.task = task
        self.model = model
        self.handle = handle
        self.config = config
        self.simulated = handle.device.kind == "sim"
        self._sim = handle.device if isinstance(handle.device, SimDevice) else None
        self.memory = memory
        self._begin = begin
        self.together = begin is not None
        self._scope = (
            json.dumps(task.settings(), sort_keys=True, default=str),
            None if self._sim is None else repr(self._sim.gpu),
            config.zero_grad,
            config.foreach,
        )
        # Parameters on meta would not make PyTorch choose as it does on cuda.
        foreach = {"auto": True if self.simulated else None, "on": True, "off": False}
        self.optimizer = task.optimizer(model, foreach=foreach[config.foreach])
        kind = handle.device.torch_device.type
        dtype = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}[config.precision]
        self.autocast: AbstractContextManager[object] = (
            nullcontext() if dtype is None else torch.autocast(kind, dtype=dtype)
        )
        self.scaler = torch.amp.GradScaler(kind, enabled=config.precision == "fp16")

    def steps(self, batches: Iterable[Batch]) -> Iterator[Step]:
        """Yield each step once it is finished, those that failed included."""
        waiting = time.perf_counter()
        for number, batch in enumerate(batches):
            try:
                tensors = self.handle.device.put(batch.tensors)
            except torch.OutOfMemoryError as error:
                tensors, failure = None, str(error)
            waited = None if self.simulated else time.perf_counter() - waiting
            if tensors is None:  # Not even the batch fits: no step has begun.
                yield Step(number, batch, None, None, waited, error=failure)
            else:
                yield self._step(number, batch, tensors, waited)
            del tensors
            waiting = time.perf_counter()

    def _step(
        self, number: int, batch: Batch, tensors: dict[str, torch.Tensor], waited: float | None
    ) -> Step:
        handle = self.handle
        try:
            record, loss = self.train(batch, tensors)
        except Infeasible as error:
            least = error.least_budget_bytes
            return Step(number, batch, None, None, waited, least, str(error))
        except torch.OutOfMemoryError as error:
            # Its text alone: the error itself would keep the step's tensors alive.
            failure, thrashing = str(error), False
        except Thrashing as error:
            failure, thrashing = _too_much(error), True
        else:
            return Step(number, batch, record, loss, waited)
        in_optimizer = handle.in_optimizer
        return Step(
            number,
            batch,
            handle.end(failed=True, outcome="thrashing" if thrashing else "oom"),
            None,
            waited,
            error=failure,
            in_optimizer=in_optimizer,
            rescued=handle.planner.rescued and not in_optimizer,
            thrashing=thrashing,
        )

    def train(
        self, batch: Batch, tensors: dict[str, torch.Tensor]
    ) -> tuple[StepRecord | None, float | None]:
        """Take one training step on a batch that is on the device.

        Raises:
            Infeasible: If the planner refuses the batch; nothing was run.
            torch.OutOfMemoryError: If the step ran out of memory; the handle's step is open.
            Thrashing: If a tensor-level policy recomputed too much, likewise.
        """
        handle = self.handle
        if self._begin is None:
            handle.begin(batch.size)
        else:
            self._begin(lambda: handle.begin(batch.size), handle.device)
        if self._sim is None or self.memory is None:
            return self._take(lambda: self._gradients(tensors))
        key = key_of(handle, self._scope, tensors)
        if key is None:
            return self._take(lambda: self._gradients(tensors))
        return self._take_or_replay(self._sim, self.memory, key, tensors), None

    def measure(self, batch: Batch) -> Measured:
        """Run a batch through the collector, for a planner that plans once; nothing is trained.

        Raises:
            torch.OutOfMemoryError: If it does not fit.
            KeyboardInterrupt: Between passes, if the program was asked to end.
        """
        handle = self.handle
        assert isinstance(handle.planner, Static)
        tensors = handle.device.put(batch.tensors)

        def passes() -> None:
            stopping.check()
            self._gradients(tensors)

        return handle.measure(
            passes,
            batch.size,
            plan=handle.planner.profiling_plan(),
            optimizer=self.optimizer,
            keeps_gradients=self.config.zero_grad == "keep",
        )

    def _take(self, passes: Callable[[], float | None]) -> tuple[StepRecord | None, float | None]:
        handle, optimizer, scaler = self.handle, self.optimizer, self.scaler
        # zero_grad has left no gradients or zeros.
        loss = handle.run(passes, grads_are_zero=True)
        scaler.step(optimizer)
        scaler.update()
        record = handle.end()
        optimizer.zero_grad(set_to_none=self.config.zero_grad == "free")
        return record, loss

    def _take_or_replay(
        self, device: SimDevice, memory: StepMemory, key: Hashable, tensors: dict[str, torch.Tensor]
    ) -> StepRecord | None:
        known = memory.find(key)
        if known is not None:
            memory.num_replayed += 1
            return self._replay(Replay(device, self.handle, known), tensors)
        logs: list[StepLog] = []

        def passes() -> None:
            # Not before: what it takes to make the step undoable is not part of it.
            device.stop_log()
            logs.append(device.start_log())
            self._gradients(tensors)

        try:
            record, _ = self._take(passes)
        finally:
            device.stop_log()
        if record is not None:
            memory.keep(key, logs[-1], record.plan)
        return record

    def _replay(self, replay: Replay, tensors: dict[str, torch.Tensor]) -> StepRecord | None:
        handle, optimizer = self.handle, self.optimizer
        replayed: list[bool] = []

        def passes() -> None:
            replayed.append(not replayed)
            if replayed[-1]:
                replay.passes()
            else:  # The replay ran out of memory, and this attempt has another plan.
                self._gradients(tensors)

        handle.run(passes, grads_are_zero=True)
        if replayed[-1]:
            replay.optimizer()
            record = handle.end()
            replay.rest()
            return record
        optimizer.step()
        record = handle.end()
        optimizer.zero_grad(set_to_none=self.config.zero_grad == "free")
        return record

    def _gradients(self, tensors: dict[str, torch.Tensor]) -> float | None:
        with self.autocast:
            loss = self.task.loss(self.model, tensors)
        self.scaler.scale(loss).backward()
        if self.simulated:
            self.handle.device.synchronize()  # As reading the loss does elsewhere.
            return None
        return float(loss.detach())

    def least_budget(
        self, batch: Batch, *, in_optimizer: bool = False, as_planned: bool = False
    ) -> int | None:
        """Measure, with the limit lifted, the budget that ``batch`` needs fully recomputed.

        For the end of a run only: it takes a training step, and a second one if the first had to
        make the optimizer's state, which every later one finds there.

        Args:
            batch: The batch.
            in_optimizer: Whether the last step failed in the optimizer.
            as_planned: Under the planner that is there instead.

        Returns:
            Bytes, or None where even the bare device has too little memory, or where other
            processes would have to take the steps, too.
        """
        if self._begin is not None:
            return None
        handle = self.handle
        handle.device.enforce(None)
        if not as_planned:
            handle.planner = make_planner("full")
        handle.rebind()
        if in_optimizer:
            # Its state may be half made: it is made anew.
            self.optimizer.state.clear()
        self.optimizer.zero_grad(set_to_none=self.config.zero_grad == "free")
        handle.device.release_cache()
        peaks = []
        for _ in range(1 if self.optimizer.state else 2):
            try:
                record, _ = self.train(batch, handle.device.put(batch.tensors))
            except torch.OutOfMemoryError:
                return None
            peaks.append(0 if record is None else record.peak_reserved_bytes or 0)
        return max(peaks) or None


def _too_much(error: Thrashing) -> str:
    return (
        f"recomputation took {format_seconds(error.recompute_cost)} beside the "
        f"{format_seconds(error.operator_cost)} of the step's own operators, more than "
        f"{error.limit:g} times as long in all"
    )
