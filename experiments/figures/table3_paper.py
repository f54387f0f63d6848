"""The paper's Table III and what its text says of it.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025; QA-XLNet's row and what is marked so are the first
version's (arXiv 2209.02478).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mimose_bench.experiments.figures.claims import Version
from mimose_bench.experiments.figures.result import FACTORS

MS, PERCENT = FACTORS["ms"], FACTORS["%"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Printed:
    """A row of the paper's table.

    Attributes:
        collector: Seconds of the collector in one of ten sheltered iterations.
        planning: Least and most seconds of estimator and scheduler for one plan.
        num_plans: How many plans were made.
        total: Seconds in all.
        iterations: The same in iterations.
        iteration: Seconds of an iteration.
        version: Whose row it is.
    """

    collector: float
    planning: tuple[float, float]
    num_plans: int
    total: float
    iterations: float
    iteration: float
    version: Version = "ipdps"


def _printed(
    collector: float,
    planning: tuple[float, float],
    num_plans: int,
    total: float,
    iterations: float,
    iteration: float,
    version: Version = "ipdps",
) -> Printed:
    return Printed(
        collector=collector * MS,
        planning=(planning[0] * MS, planning[1] * MS),
        num_plans=num_plans,
        total=total * MS,
        iterations=iterations,
        iteration=iteration * MS,
        version=version,
    )


PRINTED: Mapping[str, Printed] = {
    "qa-bert": _printed(118.96, (0.27, 0.38), 24, 1196.88, 2.64, 452.89),
    "tc-bert": _printed(157.73, (0.27, 0.34), 51, 1592.49, 6.36, 250.27),
    "mc-roberta": _printed(145.99, (0.26, 0.32), 17, 1464.77, 3.93, 371.86),
    "qa-xlnet": _printed(294.47, (0.31, 0.39), 69, 2967.76, 2.87, 1033.56, "v1"),
    "tr-t5": _printed(257.22, (0.47, 0.64), 32, 2589.34, 4.55, 568.50),
    "od-r50": _printed(114.95, (0.29, 0.70), 64, 1171.26, 1.23, 953.91),
    "od-r101": _printed(228.35, (0.57, 1.25), 120, 2368.39, 2.19, 1080.16),
}
"""Table III by task, in milliseconds and iterations; the quickest here come first."""

V1_TASKS = ("mc-roberta", "qa-xlnet", "qa-bert", "tc-bert")
IPDPS_TASKS = ("mc-roberta", "tr-t5", "qa-bert", "tc-bert", "od-r50", "od-r101")
MEANS: Mapping[Version, tuple[tuple[str, ...], float]] = {
    "v1": (V1_TASKS, 3.95),
    "ipdps": (IPDPS_TASKS, 3.48),
}
"""Mean overhead in iterations, by version, and over which tasks."""

SHARES: Mapping[Version, tuple[tuple[str, ...], float, float]] = {
    "v1": (V1_TASKS, 0.25, 0.65),
    "ipdps": (IPDPS_TASKS, 0.12, 0.453),
}
"""Least and most that the collector takes of an iteration, by version's text."""

MOST_PLANNING = 1 * MS
MOST_PLANNING_SHARE = 0.2 * PERCENT
FEWEST_SHELTERED, MOST_SHELTERED = 10, 30
MOST_SHELTERED_RATIO = 2.0
