"""A step between its beginning and its end: what was decided and when each part was over."""

from __future__ import annotations

from typing import Any

from mimose.devices.base import Device, Mark, StepMemory
from mimose.records import Decision, Situation, Size, StepRecord
from mimose.runtime.executor import Executor
from mimose.schedule import AnyPlan


class OpenStep:
    """A step that has been decided. Its time stamps are the device's.

    Args:
        size: Size of the mini-batch.
        situation: The state at the start of the step.
        decision: What the planner decided.
        started: When the step began.
        planned: When it had been decided.
        estimator_seconds: Time that predicting took.
        scheduler_seconds: Time that the rest of deciding took: choosing, looking the plan up.

    Attributes:
        lost: Whether it ran out of memory and the error went to the user's loop.
        retried: Whether its first attempt ran out of memory and was undone.
        forwarded: When the model's forward pass ended, or None.
        ordered: What the executor was told to do instead of the decision's plan, or None.
        carried_out: What the forward pass really carried out, or None before it ended.
        backward_ran: Whether a backward pass has gone well since the model's forward pass.
        backward_done: When the optimizer began, or None.
        optimized: When the optimizer ended, or None.
        memory: The figures when the optimizer ended, or None.
        optimizer_noted: Whether an optimizer's peak was noted.
        optimizer_peak: Highest allocated bytes while optimizers stepped, or None if unknown.
    """

    def __init__(
        self,
        size: Size,
        situation: Situation,
        decision: Decision,
        *,
        started: Any,
        planned: Any,
        estimator_seconds: float,
        scheduler_seconds: float,
    ) -> None:
        self.size = size
        self.situation = situation
        self.decision = decision
        self.started = started
        self.planned = planned
        self.estimator_seconds = estimator_seconds
        self.scheduler_seconds = scheduler_seconds
        self.lost = False
        self.retried = False
        self.forwarded: Any = None
        self.ordered: AnyPlan | None = None
        self.carried_out: AnyPlan | None = None
        self.backward_ran = False
        self.backward_done: Any = None
        self.optimized: Any = None
        self.memory: StepMemory | None = None
        self.optimizer_noted = False
        self.optimizer_peak: int | None = None

    @property
    def plan(self) -> AnyPlan:
        """What the step carries out, as far as its forward pass has shown."""
        return self.carried_out or self.ordered or self.decision.plan

    def note_optimizer(self, mark: Mark) -> None:
        """Note what an optimizer's step took; of several the most, unknown if that of one is."""
        peak = mark.peak_allocated
        if self.optimizer_noted and (peak is None or self.optimizer_peak is None):
            peak = None
        elif self.optimizer_peak is not None and peak is not None:
            peak = max(peak, self.optimizer_peak)
        self.optimizer_noted, self.optimizer_peak = True, peak

    def record(self, device: Device, executor: Executor) -> StepRecord:
        """Return the step as a record, without its memory figures."""
        decision = self.decision
        collected = executor.collected() if decision.collect and not self.retried else None
        collecting = 0.0 if collected is None else collected.collector_seconds
        evicted = executor.evictions.figures
        between = device.seconds_between
        forwarded = self.forwarded if self.forwarded is not None else self.planned
        backward_done = self.backward_done if self.backward_done is not None else self.optimized
        return StepRecord(
            size=self.size,
            plan=self.plan,
            phase=decision.phase,
            situation=self.situation,
            outcome="retried" if self.retried else "ok",
            predicted_peak_bytes=decision.predicted_peak_bytes,
            cache_hit=decision.cache_hit,
            collected=collected,
            step_seconds=between(self.started, self.optimized),
            forward_seconds=max(0.0, between(self.planned, forwarded) - collecting),
            backward_seconds=between(forwarded, backward_done),
            optimizer_seconds=between(backward_done, self.optimized),
            collector_seconds=collecting,
            estimator_seconds=self.estimator_seconds,
            scheduler_seconds=self.scheduler_seconds,
            extra={} if evicted is None else evicted.extra(),
        )
