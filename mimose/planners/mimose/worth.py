"""Whether recomputing blocks lowers a model's peak at all."""

from __future__ import annotations

import warnings

from mimose.costs import Profile, predict_peak
from mimose.plan import Plan
from mimose.records import ModelInfo, Situation, Size
from mimose.units import format_bytes

LEAST_SHARE = 0.05
"""Less than this share of a step's peak is not worth recomputing for."""


def warn_if_useless(
    profile: Profile, plan: Plan, info: ModelInfo, situation: Situation, size: Size
) -> None:
    """Warn if a plan that recomputes hardly lowers the peak of a step.

    Args:
        profile: Costs of the step.
        plan: What it recomputes, because it has to.
        info: The model.
        situation: The state at the start of the step.
        size: Its size.
    """
    kept = predict_peak(profile, Plan.keep_all(info.num_blocks), info, situation)
    peak = predict_peak(profile, plan, info, situation)
    above, saved = kept.bytes - situation.resident_bytes, kept.bytes - peak.bytes
    if saved >= LEAST_SHARE * above:
        return
    warnings.warn(
        f"recomputing {plan.num_recomputed} of {info.num_blocks} blocks saves only "
        f"{format_bytes(max(0, saved))} of the {format_bytes(above)} that a step of size "
        f"{' x '.join(map(str, size))} takes, because its peak is elsewhere ({peak.where}): take "
        "a smaller batch or a larger budget, or name other modules with blocks=",
        UserWarning,
        stacklevel=2,
    )
