"""What a planner would do at given sizes, without training: the verb ``plan``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from mimose.costs import Infeasible
from mimose.handle import Handle, attach
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.auto import Auto
from mimose.planners.evicting import Evicting
from mimose.planners.static import Static
from mimose.records import Size
from mimose.solvers.packing import SMALL_SEGMENT
from mimose.units import format_bytes, format_seconds, parse_bytes
from mimose_bench.experiments import tables
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.menus import BlockMenu, menus_of, told
from mimose_bench.experiments.profiling import ProfileError, check, plan_size, prepare
from mimose_bench.experiments.run import opened, require_budget, task_of
from mimose_bench.experiments.tasks import require_task
from mimose_bench.experiments.tasks.base import Task
from mimose_bench.experiments.teaching import refused, teach

Say = Callable[[str], None]


_TRIES = 4
"""Most budgets that are tried beyond one that is too small."""


def _silent(_: str) -> None:
    pass


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
        least_budget_bytes: Where nothing fits: what such a batch needs by itself; None if the
            device has too little memory for it.
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

    A planner that learns is shown a dozen steps of those sizes and of the task's below them; their
    gradients train a throw-away model. Where one does not fit, the sizes that do are shown to
    another. A planner that plans once profiles the size that it plans for, and has the same plan
    for every size. Nothing is recorded.

    Args:
        config: The run.
        sizes: What :meth:`~mimose_bench.experiments.tasks.base.Task.parse_size` takes; none asks
            a planner that plans once for the size that it plans for.
        say: Takes lines of progress.

    Returns:
        An answer a size, and facts about the measurement: device label, blocks, margin, and where
        a size does not fit ``enough_bytes``, a budget that has room for all; of a planner that
        plans once its solution and its profile, too, and of one that chooses from menus these.

    Raises:
        ValueError: If something about the configuration or a size is wrong.
        BudgetTooSmallError: If the parameters alone exceed the budget.
        Infeasible: If no plan of a planner that plans once fits.
        torch.OutOfMemoryError: If its profile did not fit the device either.
    """
    planner = make_planner(config.planner, **config.options())
    check(config, planner)
    require_task(config.task)
    once = isinstance(planner, Static)
    if not sizes and not once:
        raise ValueError("say which sizes to plan for, separated by commas: --lengths 128,384")
    task = task_of(config)
    planned = plan_size(config, task) if once else None
    parsed = parse_sizes(task, sizes)
    if planned is not None and not parsed:
        parsed, sizes = [planned], [task.describe_size(planned)]
    shown = {size: as_asked(task, text, size) for text, size in zip(sizes, parsed)}
    answers: dict[Size, Planned] = {}
    facts: dict[str, Any] = {}
    while left := {size: text for size, text in shown.items() if size not in answers}:
        found, facts = _answers(config, task, left, planned, say)
        answers |= found
    if planned is None:
        facts["enough_bytes"] = _enough(config, task, shown, answers)
    return [answers[size] for size in parsed], facts


def _enough(
    config: RunConfig, task: Task, shown: Mapping[Size, str], answers: Mapping[Size, Planned]
) -> int | None:
    """Return a budget with which every size was found to fit; None if none is known.

    None as well where all of them fit anyway. What a batch needs by itself may be too little beside
    others, which is why it is tried.
    """
    budget, tries = config.budget or 0, 0
    while missing := [a.least_budget_bytes for a in answers.values() if a.plan is None]:
        if tries == _TRIES or None in missing:
            return None
        least = max(b for b in missing if b is not None)
        least = least if least > budget else budget + SMALL_SEGMENT
        budget = parse_bytes(format_bytes(least, up=True))  # as a user gives it back
        try:
            answers, _ = _answers(replace(config, budget=budget), task, shown, None, _silent)
        except ValueError:  # The device has less.
            return None
        tries += 1
    return budget if tries else None


def _answers(
    config: RunConfig, task: Task, shown: Mapping[Size, str], planned: Size | None, say: Say
) -> tuple[dict[Size, Planned], dict[str, Any]]:
    """Return answers for the sizes in ``shown``, and facts; or only which of them do not fit."""
    planner = make_planner(config.planner, **config.options())
    with opened(config) as device:
        torch.manual_seed(config.seed)
        model = device.build(task.build_model)
        device.adopt(model)
        require_budget(config.budget, model, device)
        with attach(model, config.budget, planner, device=device, enforce=config.enforce) as handle:
            trainer = Trainer(task, model, handle, config)
            found: dict[str, Any] = {}
            failed = None
            if isinstance(planner, Evicting):
                pass  # It has one policy for every size, and nothing to learn.
            elif planned is None:
                failed = teach(trainer, list(shown))
            else:
                found = _prepare(config, trainer, planned, say)
            facts = {
                "device_label": device.label,
                "unit": task.unit,
                "blocks": list(handle.block_names),
                "budget_bytes": config.budget,
                "margin_bytes": getattr(planner, "margin_bytes", None),
                **found,
            }
            if failed is not None:
                least = refused(trainer, list(shown), failed)
                return {
                    s: Planned(s, shown[s], None, None, None, b) for s, b in least.items()
                }, facts
            menus = _menus(handle, list(shown))
            if menus is not None:
                facts["menus"] = menus
            return {s: _ask(handle, s, text, menus) for s, text in shown.items()}, facts


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
            several = re.search(r"\d[^\dxX]+\d", text)
            hint = "; several are separated by commas, for example 256,384,512" if several else ""
            raise ValueError(f"--lengths {text}: {error}{hint}") from error
        sizes.append(size)
    return sizes


def as_asked(task: Task, text: str, size: Size) -> str:
    """Return a size as a user wrote it, and what became of it where that is something else."""
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
        menus += [] if forecast is None else menus_of(size, forecast, planner.info.copy_bandwidth)
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
        f"planned once, for a batch of {tables.planned_size(solution)}; solved in "
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


def plans_table(answers: Sequence[Planned], facts: Mapping[str, Any]) -> str:
    """Return answers as a table for the screen, and what its columns count."""
    in_part = any(answer.num_remade for answer in answers)
    part = ["in part"] if in_part else []
    headers = ("batch", facts["unit"], "recomputed", *part, "predicted peak", "plan")
    rows = []
    for answer in answers:
        remade = tables.MISSING if answer.plan is None else str(answer.num_remade)
        rows.append(
            (
                str(answer.size[0]),
                answer.shown,
                tables.recomputed(answer.num_recomputed, answer.num_cores),
                *([remade] if in_part else []),
                tables.size(answer.predicted_peak_bytes),
                describe(answer),
            )
        )
    text = tables.table(headers, rows)
    if in_part:
        text += (
            f"\nof {len(facts['blocks'])} blocks: recomputed as a whole; in part, single values "
            "made again or sent to the host, the rest kept"
        )
    return text


def advice(answers: Sequence[Planned], facts: Mapping[str, Any]) -> str:
    """Return what to change where a batch does not fit, and that it does not."""
    which = "not all of" if any(answer.plan is not None for answer in answers) else "none of"
    budget, enough = "a larger --budget", facts.get("enough_bytes")
    if enough is not None:
        given = format_bytes(enough, up=True).replace(" ", "")
        budget = f"--budget {given}, which has room for all of them"
    return f"{which} these batches fit: give {budget}, smaller --lengths or a smaller --batch-size"


def describe(planned: Planned) -> str:
    """Return an answer as a sentence for the screen."""
    if planned.plan is None:
        if planned.least_budget_bytes is None:
            return "does not fit into the device's memory, whatever is recomputed"
        return f"does not fit: it needs {format_bytes(planned.least_budget_bytes, up=True)}"
    return planned.plan
