"""What the adapters share: options, figures for logs, and the end of a training."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar, cast

from mimose.attaching import chosen_planner
from mimose.attempts import Attempt
from mimose.handle import Handle, attach
from mimose.planners.base import Planner
from mimose.planners.static import Static

T = TypeVar("T")

_ATTACHING = frozenset(
    name
    for name, parameter in inspect.signature(attach).parameters.items()
    if parameter.kind is inspect.Parameter.KEYWORD_ONLY
)
_LOGGED = (
    "budget_use",
    "recomputed_blocks",
    "remade_blocks",
    "planning_seconds",
    "num_violations",
)
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
    if isinstance(chosen, Static) and chosen.solution is None and _needs_profile(chosen):
        raise ValueError(
            f"planner {chosen.name!r} plans once, from a profile of the largest batch, which a "
            "callback cannot take: choose 'mimose' or 'full', or call handle.profile() in a loop "
            "of your own"
        )
    return chosen


def _needs_profile(planner: Static) -> bool:
    try:
        planner.unprofiled()
    except ValueError:
        return True
    except RuntimeError:  # It asks for the model, which is bound later: a plan follows from that.
        pass
    return False


def plain(value: Any) -> bool:
    """Whether ``value`` comes back from JSON as it was."""
    if isinstance(value, list):
        return all(plain(item) for item in value)
    return value is None or isinstance(value, str | int | float | bool)


def described(callback: Any, options: Mapping[str, Any]) -> str:
    """Return a callback in words: what it was given, and where its training stands.

    Args:
        callback: A ``MimoseCallback``.
        options: What it was given beside budget and planner.
    """
    planner = getattr(callback.planner, "name", callback.planner)
    given = {"budget": callback.budget, "planner": planner, **options}
    said = ", ".join(f"{name}={value!r}" for name, value in given.items())
    if callback.handle is not None:
        state = f"training with {callback.handle!r}"
    else:
        state = "not training" if callback.summary is None else "trained, see its summary"
    return f"<{type(callback).__name__} {said}: {state}>"


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
    with handle:  # Leaving its context lets go of whatever cannot be brought back.
        _ = handle.last_record  # Closes the step that has just ended.
        return handle.state_dict(), handle.summary()


class Windows:
    """Runs a loop's micro-batches one by one, those of an optimizer's step again if need be.

    If one of them runs out of memory, all so far of that optimizer's step are undone and run again
    with every block recomputed, as :meth:`Handle.run` does with a function that runs them all; so
    are those to come.

    Args:
        handle: The handle.
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._attempts: Iterator[Attempt] = iter(())
        self._attempt: Attempt | None = None
        self._parts: list[Callable[[], Any]] = []

    def run(self, part: Callable[[], T], *, last: bool) -> T:
        """Run one micro-batch's forward and backward pass.

        Args:
            part: Computes the loss and its gradients, again each time it is called.
            last: Whether the optimizer's step is next.

        Returns:
            What ``part`` returned.

        Raises:
            torch.OutOfMemoryError: PyTorch's own error, if it cannot be run again or ran out again.
        """
        if self._attempt is None:
            self._attempts = self._handle.attempts()
            self._begin()
        self._parts.append(part)
        done, result = self._ended(part)
        if not done:
            self._begin()
            for each in self._parts:
                _, result = self._ended(each)
        if last:
            self._close()
        return cast(T, result)

    def forget(self) -> None:
        """Begin anew: the loop broke the optimizer's step off."""
        if self._attempt is not None:
            self._close()

    def _begin(self) -> None:
        self._attempt = next(self._attempts)
        self._attempt.__enter__()

    def _ended(self, part: Callable[[], Any]) -> tuple[bool, Any]:
        """Return whether it ended well, and what it returned."""
        attempt = self._attempt
        assert attempt is not None
        try:
            return True, part()
        except BaseException as error:
            if attempt.__exit__(type(error), error, error.__traceback__):
                return False, None
            self._attempt, self._parts = None, []
            raise

    def _close(self) -> None:
        attempt, self._attempt, self._parts = self._attempt, None, []
        if attempt is not None:
            attempt.__exit__(None, None, None)
