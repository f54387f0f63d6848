"""What comes before the loop for planners that plan once: a profile and a solved plan, or one kept.

The largest batch (or ``--plan-size``) goes through the collector under the budget; from what it
shows the planner makes its plan, unless an earlier run has solved the same.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mimose.costs import Infeasible
from mimose.handle import Handle
from mimose.planners.base import Planner
from mimose.planners.static import Solution, Static
from mimose.records import Measured, Size
from mimose.units import format_bytes, format_seconds
from mimose_bench.experiments import plan_store, stopping
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Step, Trainer
from mimose_bench.experiments.tasks.base import Task

Say = Callable[[str], None]
Record = Callable[..., None]
"""Takes keys of ``run.json`` as keyword arguments."""

SAID_SECONDS = 5.0
"""Least time between two lines about a solve that is under way."""

INTERRUPTED = plan_store.INTERRUPTED


def _nothing(**info: Any) -> None:
    """Record nothing."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a planner that plans once is ready with.

    Attributes:
        solution: Its plan.
        profile: Size, passes, seconds and peaks of the profile; None where the plan was kept.
        reused_from: The run whose plan it is; None where it was solved now.
        key: What decides the plan.
        shown: The size planned for, in words.
        first_plan: The plan that this one replaced during the run, in words.
    """

    solution: Solution
    profile: dict[str, Any] | None
    reused_from: Path | None
    key: dict[str, Any]
    shown: str
    first_plan: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return ``solution`` and ``profile`` as ``run.json`` keeps them."""
        reused = None if self.reused_from is None else self.reused_from.name
        solution = {
            **self.solution.to_json(),
            "text": str(self.solution.plan),
            "size_text": self.shown,
            "reused_from": reused,
        }
        if self.first_plan is not None:
            solution["first_plan"] = self.first_plan
        return {"solution": solution, "profile": self.profile}


class ProfileError(Exception):
    """The profiled passes did not fit."""


def check(config: RunConfig, planner: Planner) -> None:
    """Refuse options that only planners that plan once have a use for.

    Raises:
        ValueError: If one is given to another.
    """
    if isinstance(planner, Static):
        return
    given = {"--plan-size": config.plan_size is not None, "--fresh-plan": config.fresh_plan}
    for option in (option for option, there in given.items() if there):
        raise ValueError(
            f"{option} is for planners that plan once, and {config.planner} does not: leave it out"
        )


def check_segments(config: RunConfig, handle: Handle) -> None:
    """Refuse more segments than there are blocks.

    Raises:
        ValueError: If that is what ``--segments`` asks for.
    """
    blocks = len(handle.block_names)
    if config.segments is not None and config.segments > blocks:
        raise ValueError(
            f"--segments {config.segments} is more than the model's {blocks} blocks: give a number "
            f"from 1 to {blocks}"
        )


def plan_size(config: RunConfig, task: Task) -> Size:
    """Return the size that a planner that plans once plans for.

    Raises:
        ValueError: If ``--plan-size`` is not a size that the task has batches of.
    """
    if config.plan_size is None:
        return task.longest()
    try:
        size = task.parse_size(config.plan_size)
        task.example_batch(size)
    except ValueError as error:
        raise ValueError(f"--plan-size {config.plan_size}: {error}") from error
    return size


def prepare(
    config: RunConfig,
    trainer: Trainer,
    size: Size,
    say: Say,
    *,
    own: Path | None = None,
    record: Record = _nothing,
) -> Prepared:
    """Let the run's planner, which plans once, profile a batch of ``size`` and solve.

    The profile is taken under the budget or, if it does not fit there, without the limit: some
    planners have plans that need less than the profile.

    Args:
        config: The run.
        trainer: Its model and its optimizer; no step has been taken.
        size: The size planned for.
        say: Takes lines of progress.
        own: The run's folder, if it has one: plans kept in others beside it are reused.
        record: Takes the profile once it is there.

    Raises:
        Infeasible: If every plan needs more than the budget.
        ProfileError: If the device has too little memory for the profile.
    """
    planner = trainer.handle.planner
    assert isinstance(planner, Static)
    check_segments(config, trainer.handle)
    key = plan_store.key_of(config, trainer.task, trainer.handle, size)
    shown = f"{size[0]} x {trainer.task.describe_size(size)} {trainer.task.unit}"
    if own is not None and not config.fresh_plan:
        stored, problems = plan_store.find(own.parent, key, own=own)
        for problem in problems:
            say(problem)
        if stored is not None and _takes(trainer, planner, stored, say):
            return Prepared(stored.solution, None, stored.folder, key, shown)
    say(f"profiling a batch of {shown}")
    started = time.perf_counter()
    measured, over_budget = _measure(config, trainer, size, shown)
    stopping.check()
    profile = _described(measured, time.perf_counter() - started, over_budget)
    record(profile=profile)
    if over_budget:
        needed = format_bytes(profile["peak_reserved_bytes"], up=True)
        say(f"the profile needed {needed}, more than the budget, and was taken without the limit")
    say(f"profiled in {format_seconds(profile['seconds'])}, solving")
    try:
        solution = planner.take_profile(measured, _now_and_then(say))
    except Infeasible as error:
        raise _worded(config, error, shown) from None
    if solution.details.get(INTERRUPTED) and not stopping.asked():
        say("interrupted: the run goes on with the best plan so far; once more ends it")
    say(told(solution))
    return Prepared(solution, profile, None, key, shown)


class Kept:
    """What a run's folder says of its plan, kept true while steps run.

    Args:
        prepared: The plan that the run begins with.
        planner: The planner, which may plan anew after a step that ran out of memory.
        folder: The run's folder.
        record: Takes changed keys of ``run.json``.
        say: Takes lines of progress.
    """

    def __init__(
        self, prepared: Prepared, planner: Static, folder: Path, record: Record, say: Say
    ) -> None:
        self.prepared = prepared
        self._planner = planner
        self._folder = folder
        self._record = record
        self._say = say
        self._known = planner.solution
        self._retried = 0
        self._keep()

    def after(self, step: Step) -> None:
        """Take note of a step, if it ran out of memory under the plan."""
        if step.record is None or step.record.outcome not in ("retried", "oom"):
            return
        self._retried += 1
        known, solution = self._known, self._planner.solution
        if solution is not None and known is not None and solution is not known:
            self._known, self._retried = solution, 0
            first = self.prepared.first_plan or str(known.plan)
            self.prepared = replace(self.prepared, solution=solution, first_plan=first)
            change = "the same plan" if solution.plan == known.plan else str(solution.plan)
            self._say(
                f"step {step.number} ran out of memory under the plan, which was made anew with "
                f"more of a margin: {change}; predicted peak "
                f"{format_bytes(solution.predicted_peak_bytes)}"
            )
        self._keep()

    def _keep(self) -> None:
        prepared = self.prepared
        plan_store.keep(self._folder, prepared.key, prepared.solution, retried=self._retried)
        self._record(**prepared.to_json())


def told(solution: Solution) -> str:
    """Return a solution as a line for the screen."""
    text = (
        f"solved in {format_seconds(solution.solve_seconds)}: {solution.plan}; predicted peak "
        f"{format_bytes(solution.predicted_peak_bytes)}"
    )
    if solution.baseline_seconds > 0:
        text += (
            f", {solution.predicted_seconds / solution.baseline_seconds:.3f} of the time without "
            "recomputation"
        )
    return text


def _takes(trainer: Trainer, planner: Static, stored: plan_store.Stored, say: Say) -> bool:
    """Let the planner have a stored plan; return whether it is one for this model."""
    planned = stored.solution.plan.num_blocks
    blocks = len(trainer.handle.block_names)
    if planned != blocks:
        say(
            f"the plan of {stored.folder.name} is not reused: it is for {planned} blocks, and the "
            f"model has {blocks}"
        )
        return False
    planner.load_state_dict({"solution": stored.solution.to_json()})
    say(f"plan of {stored.folder.name} reused: {stored.solution.plan}")
    return True


def _worded(config: RunConfig, error: Infeasible, shown: str) -> Infeasible:
    """Return a refusal that names the size as users write it, if it is one of the budget."""
    least, budget = error.least_budget_bytes, config.budget
    if budget is None or least <= budget:
        return error
    return Infeasible(
        f"a batch of {shown}, for which planner {config.planner} plans, needs "
        f"{format_bytes(least, up=True)} ({least} bytes) whatever it recomputes, and the budget is "
        f"{format_bytes(budget)}: give a larger budget or a smaller --plan-size",
        least,
    )


def _now_and_then(say: Say) -> Say:
    said = time.monotonic()

    def tell(text: str) -> None:
        nonlocal said
        stopping.check()
        if time.monotonic() - said >= SAID_SECONDS:
            said = time.monotonic()
            say(f"solving: {text}")

    return tell


def _measure(config: RunConfig, trainer: Trainer, size: Size, shown: str) -> tuple[Measured, bool]:
    """Return what the profiled passes show, and whether they needed more than the budget."""
    limited = config.enforce and config.budget is not None
    try:
        return trainer.measure(trainer.task.example_batch(size)), False
    except torch.OutOfMemoryError:
        pass  # The error itself would keep the pass's tensors alive.
    if limited:
        device = trainer.handle.device
        device.enforce(None)
        try:
            return trainer.measure(trainer.task.example_batch(size)), True
        except torch.OutOfMemoryError:
            pass
        finally:
            gc.collect()  # What a failed pass has left in cycles would count as in use.
            device.enforce(config.budget)
    raise ProfileError(
        f"a batch of {shown}, for which planner {config.planner} plans, ran out of memory when it "
        "was profiled" + (", even without the limit" if limited else "") + ": give a smaller "
        "--plan-size or --batch-size, or use a device with more memory"
    )


def _described(measured: Measured, seconds: float, over_budget: bool) -> dict[str, Any]:
    records = measured.records
    return {
        "size": list(records[0].size),
        "passes": len(records),
        "seconds": seconds,
        "over_budget": over_budget,
        "pass_seconds": [record.step_seconds for record in records],
        "peak_allocated_bytes": max(r.peak_allocated_bytes or 0 for r in records),
        "peak_reserved_bytes": max(r.peak_reserved_bytes or 0 for r in records),
    }
