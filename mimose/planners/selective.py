"""Selective recomputation (Korthikanti et al., 2022): of every block the attention core alone."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from mimose.plan import Plan
from mimose.planners.static import Progress, Solution, Static, StepCosts
from mimose.records import Measured, ModelInfo


class Selective(Static):
    """Keeps every block but what its attention core computes, which is run again in backward.

    The core (QK^T, softmax, its dropout, times V) is what activations grow with the square of the
    length by, and takes few of the FLOPs (arXiv 2205.05198, section 5). Everything else is kept at
    every size. It needs no profile; with one it says beforehand what its plan needs and takes.
    """

    name: ClassVar[str] = "selective"
    rescued: ClassVar[bool] = True

    def __init__(self, *, margin: int | str | None = None) -> None:
        super().__init__(margin=margin)
        self._core_seconds = 0.0

    def profiling_plan(self) -> Plan:
        """Return what the profiled passes carry out: blocks are measured with their cores left out.

        Each is recomputed around that like any other planner's.
        """
        return _plan(self.info)

    def take_profile(self, measured: Measured, progress: Progress | None = None) -> Solution:
        """Make the plan from profiled passes; see :meth:`Static.take_profile`."""
        # The profile is one of selective steps. What they take more than one that keeps everything
        # is what they run again.
        passes = [record.collected for record in measured.records if record.collected]
        self._core_seconds = min(
            (sum(s.core_seconds for s in each.blocks) for each in passes[1:] or passes),
            default=0.0,
        )
        return super().take_profile(measured, progress)

    def solve(self, costs: StepCosts, progress: Progress | None = None) -> Solution:
        """Return the one plan that there is.

        Raises:
            Infeasible: If it does not fit.
        """
        solution = costs.choose([_plan(costs.info)])
        plain = solution.predicted_seconds - self._core_seconds
        return replace(solution, baseline_seconds=max(0.0, plain))

    def unprofiled(self) -> Plan:
        """Return the same plan, as far as the model is known."""
        return _plan(self.info)


def _plan(info: ModelInfo) -> Plan:
    cores = range(info.num_blocks) if info.cores is None else sorted(info.cores)
    return Plan(info.num_blocks, (), tuple(b for b in cores if b not in info.free))
