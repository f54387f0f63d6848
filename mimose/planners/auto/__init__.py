"""Auto: Mimose's way of learning, with a choice among the values that blocks save."""

from mimose.planners.auto.planner import Auto

__all__ = ["Auto"]
