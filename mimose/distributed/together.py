"""A handle's dealings with the other processes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from mimose.devices.base import Device
from mimose.distributed import alarm
from mimose.distributed.agreeing import agreement
from mimose.distributed.processes import num_processes
from mimose.distributed.wrapping import (
    Buckets,
    check_gathers_alike,
    check_not_sharded_since,
    is_sharded,
)
from mimose.records import Decision


class Together:
    """What a handle does so that its process gets on with the others; of one process, nothing.

    Args:
        given: What was attached, wrapped as it came.
        model: The module within it.
        device: What measures.
        owned: Whether the device was opened after ``given`` was made.
        sync: None, or ``"max"`` for one plan.
        blocks: The model's block modules.

    Attributes:
        several: Whether there are other processes. Then a pass that failed is not run again: they
            would be waiting in the collectives of the first one.
    """

    def __init__(
        self,
        given: torch.nn.Module,
        model: torch.nn.Module,
        device: Device,
        *,
        owned: bool,
        sync: str | None,
        blocks: Sequence[torch.nn.Module],
    ) -> None:
        # Weakly: what a handle leaves behind at its end must not keep its model alive.
        self._model = weakref.ref(model)
        self._device: Any = device
        self._sharded = is_sharded(model)
        self._begun = False
        self.several = num_processes() > 1
        if self.several and self._sharded:
            check_gathers_alike(blocks, agreed=sync is not None)
        self._agreement = agreement(sync, len(blocks), device)
        self._alarm = alarm.join()
        self._buckets: Buckets | None = None
        if owned and device.kind == "cpu" and isinstance(given, DistributedDataParallel):
            self._buckets = Buckets(given)
            self._device.add_foreign(self._buckets.num_bytes)

    def before_step(self) -> None:
        """Look whether all is as it was when a step begins.

        Raises:
            RuntimeError: If another process has failed.
            ValueError: If the model was sharded after it was attached.
        """
        if not self._begun:
            self._begun = True
            model = self._model()
            if model is not None:
                check_not_sharded_since(model, self._sharded)
            self.several = num_processes() > 1
            if self._alarm is None:
                self._alarm = alarm.join()  # The process group may have been made since.
        if self._alarm is not None:
            self._alarm.check()
        if self._buckets is not None and self._buckets.renewed():
            self._device.add_foreign(-self._buckets.num_bytes)
            self._buckets = None

    def decide(self, plan: Callable[[], Decision]) -> Decision:
        """Return what ``plan`` decides, or what all processes agree on.

        Raises:
            Infeasible: If the batch does not fit; with an agreement, that of any process.
        """
        return plan() if self._agreement is None else self._agreement.decide(plan)

    def abstain(self) -> None:
        """Take part in an agreement without a batch.

        Raises:
            Infeasible: If the batch of another process does not fit.
        """
        if self._agreement is not None:
            self._agreement.abstain()

    def release(self) -> None:
        """Let the others be; a second time nothing happens."""
        if self._alarm is not None:
            self._alarm = None
            alarm.leave()
