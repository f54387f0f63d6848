"""Training under tensor-level policies, step by step, failed steps among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from mimose.devices.base import Device
from mimose.eviction import EvictionFigures
from mimose.records import StepRecord
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.session import OpenDevice, Session, training
from mimose_bench.experiments.summary import eviction_breakdown


@dataclass(slots=True)
class Course:
    """What came of some steps under one planner, up to the first that failed.

    Attributes:
        records: Of each step that counts.
        figures: What the policy did in each of them; empty for planners of blocks.
        failure: How a step did not finish, in two words; empty where all did.
        reason: The same in a sentence.
        peak_allocated: Over all steps, in bytes.
        peak_reserved: Likewise.
    """

    records: list[StepRecord] = field(default_factory=list)
    figures: list[EvictionFigures] = field(default_factory=list)
    failure: str = ""
    reason: str = ""
    peak_allocated: int = 0
    peak_reserved: int = 0

    @property
    def fragmentation(self) -> int:
        """Peak of reserved bytes less that of allocated ones."""
        return self.peak_reserved - self.peak_allocated

    @property
    def seconds(self) -> float:
        """Mean time of a step."""
        return mean([known(record.step_seconds) for record in self.records])

    @property
    def pass_seconds(self) -> float:
        """Mean time of a step's forward and backward pass."""
        return mean([passes(record) for record in self.records])

    def count(self, name: str) -> float:
        """Return the mean of one of the policy's figures."""
        return mean([float(getattr(each, name)) for each in self.figures])

    def parts(self) -> dict[str, float]:
        """Return where forward and backward passes spent their time, see the function called."""
        frame = pd.DataFrame(
            {
                "outcome": record.outcome,
                "weight": None,
                "forward_seconds": record.forward_seconds,
                "backward_seconds": record.backward_seconds,
                **record.extra,
            }
            for record in self.records
        )
        found = eviction_breakdown(frame)
        assert found is not None
        return found


def follow(session: Session, batches: Iterable[Batch], *, settle: int = 0) -> Course:
    """Take steps until one fails.

    Args:
        session: Whose steps.
        batches: Their batches.
        settle: So many of the first steps do not count: gradients and optimizer state are made.
    """
    course = Course()
    device = session.handle.device
    for number, batch in enumerate(batches):
        step = session.attempt(batch)
        if step.error is not None or step.record is None:
            course.failure = "given up (thrashing)" if step.thrashing else "out of memory"
            course.reason = step.error or course.failure
            break
        if number >= settle:
            course.records.append(step.record)
            if session.evicted is not None:
                course.figures.append(session.evicted)
    course.peak_allocated = device.peak_allocated_bytes()
    course.peak_reserved = device.peak_reserved_bytes()
    return course


def train(
    open_device: OpenDevice,
    workload: Any,
    planner: str,
    budget_bytes: int | None,
    batches: Sequence[Batch],
    *,
    settle: int = 2,
    enforce: bool = True,
    **options: Any,
) -> Course:
    """Take steps in an allocator of their own, see :func:`follow`."""
    with open_device() as device:
        return train_on(
            device,
            workload,
            planner,
            budget_bytes,
            batches,
            settle=settle,
            enforce=enforce,
            **options,
        )


def train_on(
    device: Device,
    workload: Any,
    planner: str,
    budget_bytes: int | None,
    batches: Sequence[Batch],
    *,
    settle: int = 2,
    enforce: bool = True,
    **options: Any,
) -> Course:
    """Take steps on a device that was just opened, see :func:`follow`."""
    with training(device, workload, planner, budget_bytes, enforce=enforce, **options) as session:
        return follow(session, batches, settle=settle)


def passes(record: StepRecord) -> float:
    """Return the seconds of a step's forward and backward pass."""
    return known(record.forward_seconds) + known(record.backward_seconds)


def known(value: float | None) -> float:
    """Return a figure that is there on every device but a CUDA one."""
    assert value is not None
    return value


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of nothing."""
    return sum(values) / len(values) if values else 0.0
