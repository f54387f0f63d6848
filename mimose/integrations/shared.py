"""What the adapters share: options, figures for logs, and the end of a training."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from mimose.attaching import chosen_planner
from mimose.handle import Handle, attach
from mimose.planners.base import Planner
from mimose.planners.static import Static

_ATTACHING = frozenset(
    name
    for name, parameter in inspect.signature(attach).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)
_LOGGED = ("budget_use", "recomputed_blocks", "planning_seconds", "num_violations")
_PREFIX = "mimose_"


def for_planner(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options that :func:`mimose.attach` takes itself, and the planner's."""
    attaching = {name: value for name, value in options.items() if name in _ATTACHING}
    return attaching, {n: value for n, value in options.items() if n not in _ATTACHING}


def ready_planner(planner: str | Planner, options: dict[str, Any]) -> Planner:
    """Return a planner that needs no loop of the user's own.

    Raises:
        ValueError: If there is no such planner, it takes no such options, or it has to be shown
            the largest batch before training.
    """
    chosen = chosen_planner(planner, options)
    needs_profile = isinstance(chosen, Static) and chosen.solution is None
    if needs_profile and type(chosen).unprofiled is Static.unprofiled:
        raise ValueError(
            f"planner {chosen.name!r} plans once, from a profile of the largest batch, which a "
            "callback cannot take: choose 'mimose' or 'full', or call handle.profile() in a loop "
            "of your own"
        )
    return chosen


def plain(value: Any) -> bool:
    """Whether ``value`` comes back from JSON as it was."""
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


def figures_for_logs(handle: Handle) -> dict[str, float]:
    """Return the figures of the steps since the last call; none where there was no step."""
    _ = handle.last_record  # Closes the step that has just ended.
    figures = handle.statistics()
    if not figures["num_steps"]:
        return {}
    return {_PREFIX + name: figures[name] for name in _LOGGED if name in figures}


def leave(handle: Handle) -> tuple[dict[str, Any], str]:
    """Detach at the end of a training, or after one that failed.

    Returns:
        What was learned, and the summary.
    """
    _ = handle.last_record  # Closes the step that has just ended.
    learned, summary = handle.state_dict(), handle.summary()
    # Leaving its context lets go of whatever cannot be brought back.
    with handle:
        pass
    return learned, summary
