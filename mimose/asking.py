"""What a handle tells: the plan for a batch, the longest one, what it learned, and its figures."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.learning import check_state, state_of
from mimose.planners.base import Planner
from mimose.records import Situation, Size
from mimose.report import Tally
from mimose.runtime.executor import Executor
from mimose.runtime.recovery import collect_garbage
from mimose.runtime.sizes import NoTensorError
from mimose.schedule import AnyPlan
from mimose.units import format_bytes


class Asked:
    """The part of a handle that answers questions and changes no step."""

    model: torch.nn.Module
    planner: Planner
    device: Device
    budget_bytes: int | None
    _executor: Executor
    _tally: Tally
    _cast: str | None

    def _asked(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Size, Situation]:
        raise NotImplementedError

    def _asked_for(
        self, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Size, Situation]:
        try:
            return self._asked(args, kwargs)
        except NoTensorError as error:
            raise ValueError(
                f"handle.{method}() is about a batch, and no tensor was given: pass a batch as the "
                f"model takes it, handle.{method}(**batch) or handle.{method}(inputs)"
            ) from error

    def _close_ended(self) -> None:
        raise NotImplementedError

    @property
    def attached(self) -> bool:
        """Whether the model is still attached by this handle."""
        raise NotImplementedError

    def rebind(self) -> None:
        """Tell the planner the facts about the model again."""
        raise NotImplementedError

    def plan_for(self, *args: Any, **kwargs: Any) -> AnyPlan:
        """Return the plan that ``model(*args, **kwargs)`` would be given now; nothing is run.

        The batch has to be on the device. Outside of autocast the answer is for what the last step
        was cast to; before the first step autocast has to be on if it will be. Before a sheltered
        step the plan is one that measures: for most planners that recomputes every block.

        Raises:
            Infeasible: If the planner knows that no plan fits the budget.
            ValueError: If the model is detached, or no tensor was given.
        """
        self._close_ended()
        size, situation = self._asked_for("plan_for", args, kwargs)
        # On a copy, so that the step under way and the next one know nothing of the question.
        try:
            return copy.deepcopy(self.planner).plan(size, situation).plan
        except Infeasible:
            if not collect_garbage(self.device):
                raise
        size, situation = self._asked(args, kwargs)
        return copy.deepcopy(self.planner).plan(size, situation).plan

    def longest(self, *args: Any, **kwargs: Any) -> int:
        """Return the longest padded length at which a batch like this one fits.

        That is with every block recomputed, and with the margin left that the planner keeps for
        fragmentation. A model may have a maximum length of its own, which is not looked at. For
        images it is an area (height x width). Of autocast the same holds as in :meth:`plan_for`.

        Args:
            *args: Arguments of the model's forward pass: their batch size counts, and every extent
                but the first length.
            **kwargs: Its keyword arguments.

        Returns:
            The length; 0 if not even one of 1 fits.

        Raises:
            ValueError: If the model is detached, no tensor was given, or the planner predicts
                nothing, has no budget or has not seen enough lengths yet.
        """
        self._close_ended()
        size, situation = self._asked_for("longest", args, kwargs)
        longest = getattr(self.planner, "longest", None)
        if longest is None:
            raise ValueError(
                f"the planner {self.planner.name!r} predicts no memory, so it cannot say which "
                "length fits: attach with planner='auto'"
            )
        return int(longest(size, situation))

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned so far, as plain data that JSON can hold.

        A run that loads it needs no sheltered iterations of its own; see :meth:`load_state_dict`.
        """
        self._close_ended()
        return state_of(self)

    def load_state_dict(self, state: Mapping[str, Any], *, strict: bool = True) -> None:
        """Take back what :meth:`state_dict` returned, before the first step of a resumed run.

        Args:
            state: The state.
            strict: Whether to refuse one that was learned of something else (another planner,
                model, set of blocks, dtype or set of trainable parameters). If not, a warning is
                given and learning starts again.

        Raises:
            ValueError: If ``state`` is not such a state, or with ``strict`` one that was learned of
                something else.
        """
        try:
            check_state(self, state)
        except ValueError as error:
            if strict:
                raise
            warnings.warn(f"{error}: what memory steps take is learned anew", stacklevel=2)
            return
        self._cast = state.get("autocast")
        self._executor.load_state_dict(state["executor"])
        self.rebind()
        self.planner.load_state_dict(state["learned"])

    def statistics(self) -> dict[str, float]:
        """Return figures of the steps that have ended since the last call, for logs.

        A step is a forward pass that was planned for, with what follows it: with gradient
        accumulation a micro-batch. Bytes and seconds are the device's (see its ``label``).

        Returns:
            ``num_steps``, ``num_violations`` (steps in which more was reserved than the budget,
            that ran out of memory or were run again, or in which the allocator flushed its cache)
            and ``planning_seconds`` (all together); and as far as there are any
            ``recomputed_blocks`` (a step, on average), ``remade_blocks`` (those that let single
            values go, a step on average), ``peak_allocated_bytes`` (the highest),
            ``predicted_peak_bytes`` (of that same step), ``peak_reserved_bytes`` (the highest),
            ``budget_use`` (peak allocated over budget, the median of the steps that recomputed,
            sheltered ones aside),
            ``highest_budget_use`` (peak reserved over budget, of all steps), ``num_over_budget``
            (steps in which more was reserved than the budget) and ``over_budget_bytes`` (by how
            much at most).
        """
        self._close_ended()
        return self._tally.statistics()

    def summary(self) -> str:
        """Return several lines: what is attached, and what all steps so far came to."""
        self._close_ended()
        names = self._executor.block_names
        budget = "none" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        lines = [
            f"mimose on {type(self.model).__name__} ({self.device.label})",
            f"budget: {budget}",
            f"planner: {self.planner.name}",
            f"blocks: {len(names)}" + (f", {names[0]} to {names[-1]}" if names else ""),
            *self._tally.lines(len(names)),
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        budget = "no budget" if self.budget_bytes is None else format_bytes(self.budget_bytes)
        name = type(self.model).__name__
        blocks = len(self._executor.block_names)
        detached = "" if self.attached else ", detached"
        return f"<mimose {self.planner.name} on {name}: {blocks} blocks, {budget}{detached}>"
