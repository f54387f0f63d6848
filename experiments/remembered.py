"""Simulated steps that were taken before, to be replayed; see :mod:`mimose.devices.sim.steps`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from mimose.devices.sim.values import value_of
from mimose.eviction import Eviction
from mimose.plan import Plan

if TYPE_CHECKING:
    from mimose.devices.sim.device import SimDevice
    from mimose.devices.sim.steps import StepLog
    from mimose.handle import Handle

FORWARD, BACKWARD, OPTIMIZER, REST = range(4)
"""The parts of a step, which end where the handle takes its time stamps."""


class StepMemory:
    """Steps by what decides them. Several runs may share one, whatever their planner and budget.

    Attributes:
        num_replayed: Steps that were replayed.
        num_taken: Steps that were taken in full.
    """

    def __init__(self) -> None:
        self.num_replayed = self.num_taken = 0
        self._known: dict[Hashable, tuple[StepLog, Plan]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def find(self, key: Hashable) -> tuple[StepLog, Plan] | None:
        """Return a step and the plan that it carried out, if one is known."""
        return self._known.get(key)

    def keep(self, key: Hashable, log: StepLog, plan: Plan) -> None:
        """Remember a step that was just taken, if it may be replayed."""
        self.num_taken += 1
        if log.replayable and log.num_parts == REST + 1:
            self._known[key] = log, plan


def key_of(handle: Handle, scope: Hashable, tensors: Mapping[str, torch.Tensor]) -> Hashable | None:
    """Return what decides the handle's open step; None if it is one that is not remembered.

    Args:
        handle: A handle whose step has begun.
        scope: What the model, its optimizer and the loop are.
        tensors: The batch, on the device.
    """
    step = handle.open_step
    if step is None or step.decision.collect:
        return None
    situation, plan = step.situation, step.decision.plan
    if isinstance(plan, Eviction):
        return None  # It decides by memory and time as they are.
    shapes = tuple(
        (name, tuple(t.shape), t.dtype, _truth(t)) for name, t in sorted(tensors.items())
    )
    return (
        scope,
        plan,
        handle.bearing_on(plan),
        situation.grads_resident,
        situation.optimizer_ready,
        situation.signature,
        shapes,
    )


def _truth(tensor: torch.Tensor) -> tuple[bool, bool] | None:
    """Return whether all and any values are true: what models ask of a mask."""
    value = value_of(tensor)
    return None if value is None else (bool(value.all()), bool(value.any()))


class Replay:
    """A remembered step, carried out once more on the open step of a handle."""

    def __init__(self, device: SimDevice, handle: Handle, known: tuple[StepLog, Plan]) -> None:
        self._device = device
        self._handle = handle
        self._log, self._plan = known

    def passes(self) -> None:
        """Replay forward and backward.

        Raises:
            torch.OutOfMemoryError: As the step itself would.
        """
        self._handle.stand_in(self._plan, self._part(FORWARD), self._part(BACKWARD))

    def optimizer(self) -> None:
        """Replay the optimizer's step; raises likewise."""
        self._handle.stand_in_optimizer(self._part(OPTIMIZER))

    def rest(self) -> None:
        """Replay what comes after the step: clearing the gradients."""
        self._part(REST)()

    def _part(self, number: int) -> Any:
        return lambda: self._device.replay(self._log, number)
