"""The optimal schedule that stores inputs of blocks only, on a heterogeneous chain.

Griewank and Walther, "Algorithm 799: revolve", ACM TOMS 26(1), 2000, for uniform chains; the
dynamic programme is Rotor's without its choice to keep what a block saves (Beaumont et al. 2019,
arXiv 1911.13214, compare with it under this name).
"""

from __future__ import annotations

from typing import ClassVar

from mimose.planners.candidates import every_block, schedules
from mimose.planners.options import whole_number
from mimose.planners.static import Progress, Solution, Static, StepCosts


class Revolve(Static):
    """Recomputes every block but the last from stored inputs, as often as the memory requires.

    Args:
        slots: Units of memory in which schedules are searched; by default 500 to 2000, the more
            the fewer blocks there are.
        margin: See :class:`mimose.planners.static.Static`.
    """

    name: ClassVar[str] = "revolve"

    def __init__(self, *, slots: int | str | None = None, margin: int | str | None = None) -> None:
        super().__init__(margin=margin)
        self._slots = None if slots is None else whole_number("slots", slots, 1)

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the fastest schedule that fits.

        Raises:
            Infeasible: If none fits.
        """
        found = schedules(costs, store_all=False, slots=self._slots, progress=progress)
        return costs.choose([*found, every_block(costs)[1]])
