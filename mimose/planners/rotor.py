"""Rotor: the optimal persistent schedule of a heterogeneous chain, as nested regions.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains", 2019, arXiv 1911.13214.
"""

from __future__ import annotations

from typing import ClassVar

from mimose.planners.candidates import chen_segments, equal_segments, every_block, schedules
from mimose.planners.options import whole_number
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.planners.sublinear_greedy import greedy_plans
from mimose.solvers import segments


class Rotor(Static):
    """The fastest tree of regions that fits, up to the units in which memory is counted.

    The dynamic programme rounds sizes up to units of memory, so it may miss a plan by a unit or
    two. What simpler planners choose from are schedules of the same kind, so they are judged
    with its own.

    Args:
        slots: Units of memory in which schedules are searched; by default 500 (Rotor's own number)
            to 8000, the more the fewer blocks there are.
        margin: See :class:`mimose.planners.static.Static`.
    """

    name: ClassVar[str] = "rotor"

    def __init__(self, *, slots: int | str | None = None, margin: int | str | None = None) -> None:
        super().__init__(margin=margin)
        self._slots = None if slots is None else whole_number("slots", slots, 1)

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest schedule that fits.

        Raises:
            Infeasible: If none fits.
        """
        own = schedules(costs, store_all=True, slots=self._slots, progress=progress)
        simpler = [
            *every_block(costs),
            *equal_segments(costs),
            *equal_segments(costs, segments.periodic),
            *chen_segments(costs),
            *greedy_plans(costs),
            *schedules(costs, store_all=False, slots=self._slots, progress=progress),
        ]
        return costs.choose([*own, *simpler], schedules=len(own))
