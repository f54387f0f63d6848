"""What a planner would do at given sizes, without training: the verb ``plan``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.handle import Handle, attach
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.auto import Auto
from mimose.planners.evicting import Evicting
from mimose.planners.static import Static
from mimose.records import Size
from mimose.units import format_bytes, format_seconds
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.menus import BlockMenu, menus_of, told
from mimose_bench.experiments.profiling import ProfileError, check, plan_size, prepare
from mimose_bench.experiments.run import opened, task_of
from mimose_bench.experiments.tables import planned_size
from mimose_bench.experiments.tasks.base import Task

Say = Callable[[str], None]


def _silent(_: str) -> None:
    pass


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
        num_cores: Blocks of which the attention core alone is recomputed.
        predicted_peak_bytes: Predicted peak of allocated bytes, where the planner predicts.
        least_budget_bytes: Where nothing fits: the least budget that would do.
    """

    size: tuple[int, ...]
    shown: str
    plan: str | None
    num_recomputed: int | None
    predicted_peak_bytes: int | None
    least_budget_bytes: int | None = None
    num_cores: int = 0
    num_remade: int = 0
    chosen: tuple[tuple[str, str], ...] = ()


def plan_sizes(
    config: RunConfig, sizes: Sequence[str], say: Say = _silent
) -> tuple[list[Planned], dict[str, Any]]:
    """Return what ``config``'s planner would do for a batch of each of ``sizes``.

    A planner that learns is shown a dozen steps whose sizes spread over the task's; their
    gradients train a throw-away model. One that plans once profiles the size that it plans for,
    and has the same plan for every size. Nothing is recorded.

    Args:
        config: The run.
        sizes: What :meth:`~mimose_bench.experiments.tasks.base.Task.parse_size` takes; none asks
            a planner that plans once for the size that it plans for.
        say: Takes lines of progress.

    Returns:
        An answer a size, and facts about the measurement: device label, blocks, margin; of a
        planner that plans once its solution and its profile, too, and of one that chooses from
        menus these.

    Raises:
        ValueError: If something about the configuration or a size is wrong.
        Infeasible: If a step that was to teach the planner did not fit the budget, or no plan of
            a planner that plans once does.
        torch.OutOfMemoryError: If it did not fit the device either.
    """
    planner = make_planner(config.planner, **config.options())
    check(config, planner)
    once = isinstance(planner, Static)
    if not sizes and not once:
        raise ValueError("--lengths takes sizes separated by commas, for example 128,384")
    with opened(config) as device:
        task = task_of(config)
        planned = plan_size(config, task) if once else None
        parsed = parse_sizes(task, sizes)
        if planned is not None and not parsed:
            parsed, sizes = [planned], [task.describe_size(planned)]
        shown = [_shown(task, text, size) for text, size in zip(sizes, parsed)]
        torch.manual_seed(config.seed)
        model = device.build(task.build_model)
        device.adopt(model)
        with attach(model, config.budget, planner, device=device, enforce=config.enforce) as handle:
            trainer = Trainer(task, model, handle, config)
            found: dict[str, Any] = {}
            if isinstance(planner, Evicting):
                pass  # It has one policy for every size, and nothing to learn.
            elif planned is None:
                _teach(task, trainer, device)
            else:
                found = _prepare(config, trainer, planned, say)
            menus = _menus(handle, parsed)
            if menus is not None:
                found["menus"] = menus
            answers = [_ask(handle, size, text, menus) for size, text in zip(parsed, shown)]
            facts = {
                "device_label": device.label,
                "unit": task.unit,
                "blocks": list(handle.block_names),
                "budget_bytes": config.budget,
                "margin_bytes": getattr(planner, "margin_bytes", None),
                **found,
            }
    return answers, facts


def _prepare(config: RunConfig, trainer: Trainer, size: Size, say: Say) -> dict[str, Any]:
    try:
        return prepare(config, trainer, size, say).to_json()
    except ProfileError as error:
        failed = str(error)
    raise torch.OutOfMemoryError(failed)


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
    # The largest and the smallest early: a planner may stop measuring after a few.
    for share in (0.5, 1.0, 0.0, *(i / (PROFILED_STEPS - 2) for i in range(1, PROFILED_STEPS - 2))):
        batch = task.example_batch(seen[round(share * (len(seen) - 1))])
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


def _menus(handle: Handle, sizes: Sequence[Size]) -> list[BlockMenu] | None:
    """Return what the planner chooses from at each size, None for one that has no menus."""
    planner, last = handle.planner, handle.last_record
    if not isinstance(planner, Auto):
        return None
    menus = []
    for size in dict.fromkeys(sizes):
        forecast = None if last is None else planner.forecast(size, last.situation)
        menus += [] if forecast is None else menus_of(size, forecast)
    return menus


def _ask(
    handle: Handle, size: Size, shown: str, menus: Sequence[BlockMenu] | None = None
) -> Planned:
    try:
        decision = handle.decide(size)
    except Infeasible as error:
        return Planned(size, shown, None, None, None, error.least_budget_bytes)
    plan, peak = decision.plan, decision.predicted_peak_bytes
    solution = getattr(handle.planner, "solution", None)
    if solution is not None and size == solution.size:
        peak = solution.predicted_peak_bytes  # Of training under way; this is before its start.
    cores = remade = 0
    chosen: tuple[tuple[str, str], ...] = ()
    if isinstance(plan, Plan):
        cores, remade = len(plan.cores), plan.num_remade
        if menus is not None:
            chosen = tuple(told(plan, [m for m in menus if m.size == size]))
    return Planned(size, shown, str(plan), plan.num_recomputed, peak, None, cores, remade, chosen)


def describe_solution(facts: Mapping[str, Any]) -> str:
    """Return what a planner that plans once found, as lines for the screen."""
    solution = facts["solution"]
    lines = [
        f"planned once, for a batch of {planned_size(solution)}; solved in "
        f"{format_seconds(solution['solve_seconds'])}, the least budget is "
        f"{format_bytes(solution['least_budget_bytes'], up=True)}"
    ]
    if solution["baseline_seconds"]:
        ratio = solution["predicted_seconds"] / solution["baseline_seconds"]
        lines.append(
            f"predicted time of its forward and backward pass: {ratio:.3f} of what it is with "
            "everything kept"
        )
    lines += [
        f"{name.replace('_', ' ')}: {value:.4g}"
        if isinstance(value, float)
        else f"{name.replace('_', ' ')}: {value}"
        for name, value in solution["details"].items()
    ]
    return "\n".join(lines)


def describe(planned: Planned) -> str:
    """Return an answer as a sentence for the screen."""
    if planned.plan is None:
        least = format_bytes(planned.least_budget_bytes or 0, up=True)
        return f"does not fit: the least budget is {least}"
    return planned.plan
