"""A machine made of formulas: exact memory for any size, so that planners can be tested alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from mimose.costs import Profile, predict_peak
from mimose.plan import Plan
from mimose.planners.base import Planner
from mimose.records import (
    BlockSample,
    Collected,
    Decision,
    ModelInfo,
    Situation,
    Size,
    StepRecord,
)

MB = 1 << 20


class Machine:
    """Runs steps of an encoder-like model whose memory is quadratic in the length.

    Attributes:
        scale: Factor on all memory that depends on the size; change it for concept drift.
        fragmentation: Reserved over allocated bytes in a step that starts with an empty cache.
        violations: Steps whose allocated peak did not fit.
    """

    def __init__(self, num_blocks: int = 12, budget: int | None = None, **facts: object) -> None:
        self.count = num_blocks
        self.info = ModelInfo(
            block_names=tuple(f"layer.{i}" for i in range(num_blocks)),
            exact=True,
            budget_bytes=budget,
            grad_bytes=(28 * MB,) * num_blocks,
            other_grad_bytes=90 * MB,
            **facts,  # type: ignore[arg-type]
        )
        self.resident = 1700 * MB
        self.scale = 1.0
        self.fixed_head = 0
        self.fragmentation = 1.02
        self.reserved = self.resident
        self.violations = 0
        self.steps = 0

    def profile(self, size: Size) -> Profile:
        batch, *lengths = size
        length = sum(lengths)

        def amount(per_token: int, per_pair: int = 0) -> int:
            return int(self.scale * batch * (length * per_token + length * length * per_pair))

        n = self.count
        unit = amount(3072)
        act = tuple(amount(16 * 3072, 109) + i * batch * 7 for i in range(n))
        level = tuple(unit + i * unit for i in range(n))
        return Profile(
            activation=act,
            output=(unit,) * n,
            level=level,
            kept_peak=tuple(a + 2 * unit for a in act),
            checkpoint_peak=(amount(6 * 3072, 96),) * n,
            backward_peak=tuple(x + a + amount(5 * 3072, 96) for x, a in zip(level, act)),
            forward_seconds=(batch * (1e-5 * length + 1e-8 * length * length),) * n,
            first_peak=2 * unit,
            head_peak=unit * (n + 2) + self.fixed_head,
            tail_peak=4 * unit + self.fixed_head,
            optimizer_peak=30 * MB,
            optimizer_state=0,
        )

    def situation(self, **changes: object) -> Situation:
        now = Situation(self.resident, reserved_bytes=self.reserved, signature="fp32")
        return replace(now, **changes)  # type: ignore[arg-type]

    def collect(self, size: Size) -> Collected:
        p = self.profile(size)
        warm_up = 50.0 if self.steps == 0 else 1.0
        blocks = tuple(
            BlockSample(
                block=i,
                level_bytes=p.level[i],
                activation_bytes=p.activation[i],
                output_bytes=p.output[i],
                kept_peak_bytes=p.kept_peak[i],
                checkpoint_peak_bytes=p.checkpoint_peak[i],
                backward_peak_bytes=p.backward_peak[i],
                forward_seconds=p.forward_seconds[i] * warm_up,
            )
            for i in range(self.count)
        )
        return Collected(blocks, p.head_peak, p.tail_peak, p.first_peak, 0.01)

    def peak(self, size: Size, plan: Plan, situation: Situation) -> int:
        return predict_peak(self.profile(size), plan, self.info, situation).bytes

    def carry_out(self, decision: Decision, size: Size, situation: Situation) -> StepRecord:
        if decision.release_cache:
            self.reserved = situation.resident_bytes
        peak = self.peak(size, decision.plan, situation)
        self.violations += self.info.budget_bytes is not None and peak > self.info.budget_bytes
        self.reserved = max(self.reserved, int(peak * self.fragmentation))
        record = StepRecord(
            size=size,
            plan=decision.plan,
            phase=decision.phase,
            situation=situation,
            predicted_peak_bytes=decision.predicted_peak_bytes,
            cache_hit=decision.cache_hit,
            collected=self.collect(size) if decision.collect else None,
            peak_allocated_bytes=peak,
            peak_reserved_bytes=self.reserved,
            optimizer_peak_bytes=30 * MB,
        )
        self.steps += 1
        return record

    def step(self, planner: Planner, size: Size, **changes: object) -> tuple[Decision, StepRecord]:
        situation = self.situation(**changes)
        decision = planner.plan(size, situation)
        record = self.carry_out(decision, size, situation)
        planner.observe(record)
        return decision, record


@pytest.fixture
def machine() -> Callable[..., Machine]:
    """The class: ``machine(num_blocks=12, budget=None)``."""
    return Machine
