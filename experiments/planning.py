"""What a planner would do at given sizes, without training: the verb ``plan``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.handle import Handle, attach
from mimose.planners import make_planner
from mimose.records import Size
from mimose.units import format_bytes
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.run import opened, task_of
from mimose_bench.experiments.tasks.base import Task

PROFILED_STEPS = 12
"""Most steps that are run so that a learning planner has something to decide by."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planner's answer for one size.

    Attributes:
        size: The batch, e.g. ``(12, 384)``.
        shown: Its extents in words, e.g. ``384``.
        plan: The plan in words, or None where nothing fits.
        num_recomputed: Blocks recomputed.
        predicted_peak_bytes: Predicted peak of allocated bytes, where the planner predicts.
        least_budget_bytes: Where nothing fits: the least budget that would do.
    """

    size: tuple[int, ...]
    shown: str
    plan: str | None
    num_recomputed: int | None
    predicted_peak_bytes: int | None
    least_budget_bytes: int | None = None


def plan_sizes(config: RunConfig, sizes: Sequence[str]) -> tuple[list[Planned], dict[str, Any]]:
    """Return what ``config``'s planner would do for a batch of each of ``sizes``.

    A planner that learns is shown a dozen steps whose sizes spread over the task's; their
    gradients train a throw-away model. Nothing is recorded.

    Args:
        config: The run.
        sizes: What :meth:`~mimose_bench.experiments.tasks.base.Task.parse_size` takes.

    Returns:
        An answer a size, and facts about the measurement: device label, blocks, margin.

    Raises:
        ValueError: If something about the configuration or a size is wrong.
        Infeasible: If a step that was to teach the planner did not fit the budget.
        torch.OutOfMemoryError: If it did not fit the device either.
    """
    planner = make_planner(config.planner, **config.options())
    with opened(config) as device:
        task = task_of(config)
        parsed = parse_sizes(task, sizes)
        shown = [_shown(task, text, size) for text, size in zip(sizes, parsed)]
        torch.manual_seed(config.seed)
        model = device.build(task.build_model)
        device.adopt(model)
        with attach(model, config.budget, planner, device=device, enforce=config.enforce) as handle:
            trainer = Trainer(task, model, handle, config)
            _teach(task, trainer, device)
            answers = [_ask(handle, size, told) for size, told in zip(parsed, shown)]
            facts = {
                "device_label": device.label,
                "unit": task.unit,
                "blocks": list(handle.block_names),
                "budget_bytes": config.budget,
                "margin_bytes": getattr(planner, "margin_bytes", None),
            }
    return answers, facts


def parse_sizes(task: Task, texts: Sequence[str]) -> list[Size]:
    """Return the sizes that a user means by ``texts``.

    Raises:
        ValueError: If one is not a size, or not one that the task has batches of.
    """
    sizes = []
    for text in texts:
        try:
            size = task.parse_size(text)
            task.example_batch(size)
        except ValueError as error:
            raise ValueError(f"--lengths {text}: {error}") from error
        sizes.append(size)
    return sizes


def _teach(task: Task, trainer: Trainer, device: Device) -> None:
    seen = sorted({*(b.size for b in task.size_bins()), task.longest()})
    last = len(seen) - 1
    for number in range(PROFILED_STEPS):
        batch = task.example_batch(seen[round(number * last / (PROFILED_STEPS - 1))])
        try:
            record, _ = trainer.train(batch, device.put(batch.tensors))
        except torch.OutOfMemoryError as error:
            failure = str(error)
        else:
            failure = ""
        if failure:
            in_optimizer = trainer.handle.in_optimizer
            trainer.handle.end(failed=True)
            least = trainer.least_budget(batch, in_optimizer=in_optimizer)
            if least is None:
                raise torch.OutOfMemoryError(failure)
            raise Infeasible(
                f"a batch of {batch.num_samples} of {task.describe_size(batch.size)} {task.unit} "
                "ran out of memory while it was to be measured; with every block recomputed it "
                f"needs {format_bytes(least, up=True)}: give a larger budget",
                least,
            )
        if record is not None and record.phase in ("static", "responsive"):
            break


def _shown(task: Task, text: str, size: Size) -> str:
    """Return what a user asked for, and what became of it where that is something else."""
    told = task.describe_size(size)
    return told if told == text else f"{text} ({told})"


def _ask(handle: Handle, size: Size, shown: str) -> Planned:
    try:
        decision = handle.decide(size)
    except Infeasible as error:
        return Planned(size, shown, None, None, None, error.least_budget_bytes)
    plan = decision.plan
    return Planned(size, shown, str(plan), plan.num_recomputed, decision.predicted_peak_bytes)


def describe(planned: Planned) -> str:
    """Return an answer as a sentence for the screen."""
    if planned.plan is None:
        least = format_bytes(planned.least_budget_bytes or 0, up=True)
        return f"does not fit: the least budget is {least}"
    return planned.plan
