"""What a step of one size is predicted to take, whatever the plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mimose.costs import Peak, Profile, predict_peak
from mimose.plan import Plan
from mimose.planners.mimose.storages import Packed, Packing
from mimose.records import ModelInfo, Situation


@dataclass(frozen=True, slots=True)
class Forecast:
    """Predictions for one size.

    Attributes:
        profile: Costs of the step.
        packing: What is lost between tensors; nothing is, where it is None.
    """

    profile: Profile
    packing: Packing | None = None

    def let_go(self, plan: Plan) -> Mapping[int, Sequence[int]]:
        """Return, for each block that lets values go, the bytes of each; none are known here."""
        return {}

    def rises(self, plan: Plan) -> Mapping[int, int]:
        """Return by how much more the backward of such a block takes than of a recomputed one."""
        return {}

    def holding(self, plan: Plan) -> Collection[int]:
        """Return which of those blocks may hold their input, to make something again from it."""
        return [r.block for r in plan.remade]

    def peak(self, plan: Plan, info: ModelInfo, situation: Situation) -> Peak:
        """Return the predicted peak of a step that carries out ``plan``."""
        if not plan.remade:
            return predict_peak(self.profile, plan, info, situation)
        let_go = {b: sum(v) for b, v in self.let_go(plan).items()}
        rises, holding = self.rises(plan), self.holding(plan)
        return predict_peak(self.profile, plan, info, situation, let_go, rises, holding)

    def step_bytes(self, plan: Plan, info: ModelInfo, situation: Situation) -> int:
        """Return that peak above the resident bytes."""
        return self.peak(plan, info, situation).bytes - situation.resident_bytes

    def packed(self, plan: Plan) -> Packed:
        """Return how the blocks' tensors lie in segments at that peak."""
        if self.packing is None:
            return Packed()
        return self.packing.pack(sorted(plan.recomputed), self.let_go(plan))
