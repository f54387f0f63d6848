"""Train PyTorch models under a memory budget: input-aware activation checkpointing.

``handle = mimose.attach(model, budget="6GB")`` and the training loop stays as it was.
"""

from mimose.costs import Infeasible
from mimose.plan import Plan, Region
from mimose.planners import PLANNERS

__all__ = [
    "PLANNERS",
    "Handle",
    "Infeasible",
    "MimoseCallback",
    "Plan",
    "Region",
    "Thrashing",
    "attach",
    "detach",
    "detach_all",
]


def __getattr__(name: str) -> object:
    # torch takes a second to import; plans and planners do not need it.
    if name in ("attach", "Handle"):
        from mimose import handle

        return getattr(handle, name)
    if name in ("detach", "detach_all"):
        from mimose import attached

        return getattr(attached, name)
    if name == "MimoseCallback":
        from mimose.integrations.transformers import MimoseCallback

        return MimoseCallback
    if name == "Thrashing":
        from mimose.runtime.eviction.engine import Thrashing

        return Thrashing
    raise AttributeError(f"module 'mimose' has no attribute {name!r}")
