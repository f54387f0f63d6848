"""The least and the most memory that a task needs: the two ends of every budget sweep.

The lower bound recomputes every block, the upper bound none, both at the largest batch; Fig 10 of
the paper marks them with stars.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mimose.devices.base import Device
from mimose.handle import attach
from mimose.records import Size
from mimose.units import format_bytes
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.tables import table
from mimose_bench.experiments.tasks.base import Task


@dataclass(frozen=True, slots=True)
class Bounds:
    """Peak bytes reserved over training steps at the longest batch.

    Attributes:
        lower_bytes: With every block recomputed.
        upper_bytes: With none recomputed; None where the device itself ran out.
        size: The batch measured.
        shown: Its extents in words, e.g. ``384``.
        device_label: What was measured, e.g. ``measured on cpu``.
    """

    lower_bytes: int
    upper_bytes: int | None
    size: tuple[int, ...]
    shown: str
    device_label: str

    def fits(self, budget_bytes: int | None) -> bool:
        """Return whether the batch fits a budget with every block recomputed."""
        return budget_bytes is None or self.lower_bytes <= budget_bytes

    def budget_at(self, share: float) -> int:
        """Return the budget ``share`` of the way from the lower to the upper bound."""
        if self.upper_bytes is None:
            raise ValueError("the upper bound is unknown: the device itself ran out of memory")
        return int(self.lower_bytes + share * (self.upper_bytes - self.lower_bytes))


def measure_bounds(
    config: RunConfig, task: Task, device: Device, size: Size | None = None
) -> Bounds:
    """Measure both bounds with three training steps each on a model of its own.

    The second step is the first with optimizer state; the third the first with resident gradients
    under ``--zero-grad keep`` and optimizer state together.

    Args:
        config: The run.
        task: Its task.
        device: Where to measure.
        size: The batch; by default the longest.

    Raises:
        torch.OutOfMemoryError: If the device runs out even with every block recomputed.
    """
    size = size or task.longest()
    torch.manual_seed(config.seed)
    model = device.build(task.build_model)
    device.adopt(model)
    peaks: dict[str, int | None] = {}
    for planner in ("full", "baseline"):
        device.release_cache()
        with attach(model, None, planner, device=device) as handle:
            trainer = Trainer(task, model, handle, config)
            batches = (task.example_batch(size) for _ in range(3))
            steps = list(trainer.steps(batches))
            records = [s.record for s in steps if s.error is None and s.record is not None]
            reserved = [r.peak_reserved_bytes or 0 for r in records]
            failed = next((s.error for s in steps if s.error), None)
        if failed is not None and planner == "full":
            raise torch.OutOfMemoryError(failed)
        peaks[planner] = None if failed else max(reserved)
        trainer.optimizer.zero_grad(set_to_none=True)
        del trainer
    assert peaks["full"] is not None
    return Bounds(peaks["full"], peaks["baseline"], size, task.describe_size(size), device.label)


def describe_bounds(found: Sequence[Bounds], unit: str, budget_bytes: int | None) -> str:
    """Return measured bounds as a table and what it leaves out, for the screen."""
    headers = ["batch", unit, "every block recomputed", "none recomputed"]
    if budget_bytes is not None:
        headers.append(f"at {format_bytes(budget_bytes)}")
    rows = []
    for each in found:
        upper = each.upper_bytes
        row = [
            str(each.size[0]),
            each.shown,
            format_bytes(each.lower_bytes, up=True),
            "more than the device has" if upper is None else format_bytes(upper, up=True),
        ]
        if budget_bytes is not None:
            row.append(_verdict(each, budget_bytes))
        rows.append(row)
    return (
        f"{table(headers, rows)}\n\npeak reserved, {found[0].device_label}, over steps at one "
        "size by itself. Batches of many sizes leave memory cached that the next cannot use: a "
        "budget for them needs room on top, or a planner that hands memory back."
    )


def _verdict(bounds: Bounds, budget_bytes: int) -> str:
    if not bounds.fits(budget_bytes):
        return "does not fit"
    if bounds.upper_bytes is None or bounds.upper_bytes > budget_bytes:
        return "fits with recomputation"
    return "fits as it is"
