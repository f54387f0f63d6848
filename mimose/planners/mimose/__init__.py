"""Mimose: collector, estimator, scheduler and the planner that joins them."""

from mimose.planners.mimose.planner import Mimose

__all__ = ["Mimose"]
