"""Full recomputation: every block, at every size; of every so many blocks one input is kept."""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar

from mimose.plan import Plan, Region
from mimose.planners.bound import recomputable
from mimose.planners.options import whole_number
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.records import ModelInfo


class Full(Static):
    """Recomputes every block that can be, by default one region a block.

    It needs no profile; with one it says beforehand what its plan needs and takes.

    Args:
        every: Blocks a region: of so many consecutive blocks the first one's input is kept. Regions
            are smaller where the model's data flow does not allow for that.
        margin: As for every planner that plans once.
    """

    name: ClassVar[str] = "full"
    rescued: ClassVar[bool] = True

    def __init__(self, *, every: int | str = 1, margin: int | str | None = None) -> None:
        super().__init__(margin=margin)
        self._every = whole_number("every", every, 1)

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the one plan that there is.

        Raises:
            Infeasible: If it does not fit.
        """
        return costs.choose([_plan(costs.info, self._every)], every=self._every)

    def unprofiled(self) -> Plan:
        """Return the same plan, as far as the model is known."""
        return _plan(self.info, self._every)


def _plan(info: ModelInfo, every: int) -> Plan:
    regions: list[Region] = []
    # Consecutive numbers have the same distance to their places.
    for _, run in groupby(enumerate(recomputable(info)), lambda item: item[1] - item[0]):
        blocks = [block for _, block in run]
        for first in range(0, len(blocks), every):
            part = blocks[first : first + every]
            regions.append(Region(part[0], part[-1]))
    plan = Plan(info.num_blocks, tuple(regions))
    # Where it is not known yet, the executor finds out, which it does for larger regions only.
    return plan if info.cuts is None else plan.cut(info.cuts)
