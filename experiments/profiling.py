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
from mimose_bench.experiments import plan_store, stopping
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.tasks.base import Task

Say = Callable[[str], None]

SAID_SECONDS = 5.0
"""Least time between two lines about a solve that is under way."""

INTERRUPTED = plan_store.INTERRUPTED


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
        Infeasible: If every plan needs more than the budget.
        ProfileError: If a pass does.
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
    solution = planner.take_profile(measured, _now_and_then(say))
    if solution.details.get(INTERRUPTED) and not stopping.asked():
        say("interrupted: the run goes on with the best plan so far; once more ends it")
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


def least_budget(trainer: Trainer, size: Size, error: ProfileError) -> ProfileError | Infeasible:
    """Return, after a profile that did not fit, an error that names the least budget.

    Measuring it ends whatever ``trainer`` was used for. It stays as it is where not even the
    device has enough.
    """
    least = trainer.least_budget(trainer.task.example_batch(size))
    if least is None:
        return error
    return Infeasible(
        f"{error}; with every block recomputed it needs a budget of "
        f"{format_bytes(least, up=True)} ({least} bytes): give that, or a smaller --plan-size",
        least,
    )


def _now_and_then(say: Say) -> Say:
    said = time.monotonic()

    def tell(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= SAID_SECONDS:
            said = time.monotonic()
            say(f"solving: {text}")

    return tell


def _measure(config: RunConfig, trainer: Trainer, size: Size, shown: str) -> Measured:
    try:
        return trainer.measure(trainer.task.example_batch(size))
    except torch.OutOfMemoryError:
        pass  # The error itself would keep the pass's tensors alive.
    raise ProfileError(
        f"a batch of {shown}, for which planner {config.planner} plans, ran out of memory when it "
        "was profiled"
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
