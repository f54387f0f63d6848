"""What planning costs in a run of planner ``mimose``: collector, estimator and scheduler."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from mimose_bench.experiments.reading import Run
from mimose_bench.experiments.summary import FAILED, planning_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """The figures of one run.

    Attributes:
        num_sheltered: Sheltered iterations.
        collector: Seconds of the collector in one of them, in the mean.
        collector_total: Seconds of it in all.
        num_plans: Plans that were made and did not come from the cache.
        planning: Seconds of estimator and scheduler for one of those, in the mean.
        planning_most: The most that one took.
        planning_total: Seconds of estimator and scheduler in all, fits and cached plans included.
        iteration: Seconds of a responsive iteration, in the mean.
        sheltered_ratios: Time of each sheltered iteration relative to plain training's on the same
            batch, as far as that was run; the first iteration, a warm-up, is left out.
        num_failed: Iterations that ran out of memory.
        num_retried: Iterations that did and were repeated with another plan.
    """

    num_sheltered: int
    collector: float
    collector_total: float
    num_plans: int
    planning: float
    planning_most: float
    planning_total: float
    iteration: float
    sheltered_ratios: tuple[float, ...]
    num_failed: int
    num_retried: int

    @property
    def total(self) -> float:
        """Seconds of collector, estimator and scheduler together, as Table III adds them up."""
        return self.collector_total + self.planning_total

    @property
    def iterations(self) -> float:
        """The same in iterations."""
        return self.total / self.iteration

    @property
    def collector_share(self) -> float:
        """The collector's time in a sheltered iteration, as a share of a responsive one."""
        return self.collector / self.iteration

    @property
    def planning_share(self) -> float:
        """What making a plan takes, as a share of a responsive iteration."""
        return self.planning / self.iteration


def overheads(run: Run, plain: Run | None = None) -> Overheads:
    """Return a run's overheads.

    Args:
        run: A run of planner ``mimose`` over sampled lengths.
        plain: A run without a planner over the same batches; its first iterations may do.

    Raises:
        ValueError: If it has no sheltered iteration, made no plan or took no responsive iteration.
    """
    steps = run.steps
    done = steps[~steps["outcome"].isin(FAILED)]
    sheltered = done[done["phase"] == "sheltered"]
    responsive = done[done["phase"] == "responsive"]
    made = done[(done["cache_hit"] == False).fillna(False)]  # noqa: E712 (null is neither)
    for rows, what in (
        (sheltered, "sheltered iteration"),
        (made, "new plan"),
        (responsive, "responsive iteration"),
    ):
        if not len(rows):
            raise ValueError(
                f"{run.name} has no {what} that finished: give it more steps or a larger budget"
            )
    planning = planning_seconds(made)
    return Overheads(
        num_sheltered=len(sheltered),
        collector=float(sheltered["collector_seconds"].mean()),
        collector_total=float(sheltered["collector_seconds"].sum()),
        num_plans=len(made),
        planning=float(planning.mean()),
        planning_most=float(planning.max()),
        planning_total=float(planning_seconds(done).sum()),
        iteration=float(responsive["step_seconds"].mean()),
        sheltered_ratios=() if plain is None else _ratios(sheltered, plain.steps),
        num_failed=int(steps["outcome"].isin(FAILED).sum()),
        num_retried=int((steps["outcome"] == "retried").sum()),
    )


def _ratios(sheltered: pd.DataFrame, plain: pd.DataFrame) -> tuple[float, ...]:
    plain = plain[~plain["outcome"].isin(FAILED)]
    both = sheltered.merge(plain, on=["step", "input_size"], suffixes=("", "_plain"))
    both = both[both["step"] > 0]
    return tuple((both["step_seconds"] / both["step_seconds_plain"]).astype(float))
