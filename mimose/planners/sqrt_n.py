"""Equal segments, as many as take the least memory: the square root of the depth, or thereabouts.

Chen, Xu, Zhang and Guestrin, 2016, arXiv 1604.06174. With ``l`` blocks, ``c`` segments keep
``c`` inputs of ``A_in`` bytes and recompute ``l / c`` blocks of ``A_int`` bytes at a time; the sum
is least at ``c = sqrt(l A_int / A_in)``.
"""

from __future__ import annotations

from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.candidates import segmented
from mimose.planners.options import whole_number
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.solvers import segments


class SqrtN(Static):
    """Equal segments of blocks, of which all but the last are recomputed.

    Args:
        segments: How many; by default as many as take the least memory.
        margin: See :class:`mimose.planners.static.Static`.
    """

    name: ClassVar[str] = "sqrt-n"

    def __init__(
        self, *, segments: int | str | None = None, margin: int | str | None = None
    ) -> None:
        super().__init__(margin=margin)
        self._segments = None if segments is None else whole_number("segments", segments, 1)

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the plan.

        Raises:
            Infeasible: If it does not fit.
            ValueError: If there are fewer blocks than segments asked for.
        """
        count = self._segments if self._segments is not None else best_count(costs)
        plan = segmented(costs, segments.equal(costs.num_blocks, count), keep_last=True)
        return costs.choose([plan], segments=count)

    def unprofiled(self) -> Plan:
        """Return the plan where the number of segments is given.

        Raises:
            ValueError: If it is not, or there are fewer blocks.
        """
        if self._segments is None:
            return super().unprofiled()
        info = self.info
        count = info.num_blocks
        cuts = range(1, count) if info.cuts is None else info.cuts
        found = segments.equal(count, self._segments)
        keep = info.free | info.keep_only
        return segments.to_plan(count, found, keep_last=True, cuts=cuts, keep=keep)


def best_count(costs: StepCosts) -> int:
    """Return how many equal segments take the least memory, by the formula."""
    profile, blocks = costs.profile, costs.blocks
    if not blocks:
        return 1
    outputs = sum(profile.output[b] for b in blocks) / len(blocks)
    internal = sum(profile.activation[b] for b in blocks) / len(blocks) + outputs
    return segments.sqrt_count(costs.num_blocks, internal, outputs)
