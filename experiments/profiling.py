"""What comes before the loop for planners that plan once: a profile and a solved plan, or one kept.

The largest batch (or ``--plan-size``) goes through the collector under the budget; from what it
shows the planner makes its plan, unless an earlier run has solved the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mimose.costs import Infeasible
from mimose.planners.base import Planner
from mimose.planners.static import Solution, Static
from mimose.records import Measured, Size
from mimose.units import format_bytes, format_seconds
from mimose_bench.experiments import plan_store
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.tasks.base import Task

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a planner that plans once is ready with.

    Attributes:
        solution: Its plan.
        profile: Size, passes, seconds and peaks of the profile; None where the plan was kept.
        reused_from: The run whose plan it is; None where it was solved now.
        key: What decides the plan.
    """

    solution: Solution
    profile: dict[str, Any] | None
    reused_from: Path | None
    key: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return ``solution`` and ``profile`` as ``run.json`` keeps them."""
        reused = None if self.reused_from is None else self.reused_from.name
        solution = {
            **self.solution.to_json(),
            "text": str(self.solution.plan),
            "reused_from": reused,
        }
        return {"solution": solution, "profile": self.profile}


class ProfileError(Exception):
    """The profiled passes did not fit, not even without a limit.

    Attributes:
        least_budget_bytes: None: nobody could measure it.
    """

    least_budget_bytes = None


def plan_size(config: RunConfig, task: Task, planner: Planner) -> Size | None:
    """Return the size that a planner plans for; None for one that does not plan once.

    Raises:
        ValueError: If ``--plan-size`` is not a size, or the planner has no use for one.
    """
    if not isinstance(planner, Static):
        for option, given in (
            ("--plan-size", config.plan_size is not None),
            ("--fresh-plan", config.fresh_plan),
        ):
            if given:
                raise ValueError(
                    f"{option} is for planners that plan once, and {config.planner} does not: "
                    "leave it out"
                )
        return None
    if config.plan_size is None:
        return task.longest()
    try:
        size = task.parse_size(config.plan_size)
        task.example_batch(size)
    except ValueError as error:
        raise ValueError(f"--plan-size {config.plan_size}: {error}") from error
    return size


def prepare(
    config: RunConfig, trainer: Trainer, size: Size, say: Say, *, own: Path | None = None
) -> Prepared:
    """Let the run's planner, which plans once, profile a batch of ``size`` and solve.

    Args:
        config: The run.
        trainer: Its model and its optimizer; no step has been taken.
        size: The size planned for.
        say: Takes lines of progress.
        own: The run's folder, if it has one: plans kept in others beside it are reused.

    Raises:
        Infeasible: If a pass or every plan needs more than the budget.
        ProfileError: If a pass needs more than the device has.
    """
    planner = trainer.handle.planner
    assert isinstance(planner, Static)
    key = plan_store.key_of(config, trainer.task, trainer.handle, size)
    if own is not None and not config.fresh_plan:
        stored, problems = plan_store.find(own.parent, key, own=own)
        for problem in problems:
            say(problem)
        if stored is not None:
            planner.load_state_dict({"solution": stored.solution.to_json()})
            say(f"plan of {stored.folder.name} reused: {stored.solution.plan}")
            return Prepared(stored.solution, None, stored.folder, key)
    shown = f"{size[0]} x {trainer.task.describe_size(size)} {trainer.task.unit}"
    say(f"profiling a batch of {shown}")
    started = time.perf_counter()
    measured = _measure(config, trainer, size, shown)
    profile = _described(measured, time.perf_counter() - started)
    say(f"profiled in {format_seconds(profile['seconds'])}, solving")
    solution = planner.take_profile(measured, say)
    say(told(solution))
    return Prepared(solution, profile, None, key)


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


def _measure(config: RunConfig, trainer: Trainer, size: Size, shown: str) -> Measured:
    batch = trainer.task.example_batch(size)
    try:
        return trainer.measure(batch)
    except torch.OutOfMemoryError as error:
        failure = str(error)  # Its text alone: the error itself would keep tensors alive.
    text = f"a batch of {shown}, for which planner {config.planner} plans, ran out of memory"
    least = trainer.least_budget(batch)
    if least is None:
        raise ProfileError(f"{text} when it was profiled: {failure}")
    raise Infeasible(
        f"{text} when it was profiled; with every block recomputed it needs a budget of "
        f"{format_bytes(least, up=True)} ({least} bytes): give that or a smaller --plan-size",
        least,
    )


def _described(measured: Measured, seconds: float) -> dict[str, Any]:
    records = measured.records
    return {
        "size": list(records[0].size),
        "passes": len(records),
        "seconds": seconds,
        "pass_seconds": [record.step_seconds for record in records],
        "peak_allocated_bytes": max(r.peak_allocated_bytes or 0 for r in records),
        "peak_reserved_bytes": max(r.peak_reserved_bytes or 0 for r in records),
    }
