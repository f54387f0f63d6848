"""Steps under a tensor-level policy: when the eviction runtime is switched on and off.

It is on from the model's forward pass to the optimizer's step, or to the next forward pass if the
optimizer steps within backward. The runtime itself is :mod:`mimose.runtime.eviction`, which is
loaded by the first such step: it compiles a library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import nn

from mimose.devices.base import Device
from mimose.eviction import Eviction, EvictionFigures
from mimose.runtime.eviction.engine import NoRoom
from mimose.units import format_bytes


class NoRoomError(torch.OutOfMemoryError):
    """Nothing is left to evict, and the policy's own budget would be exceeded all the same."""

    @classmethod
    def of(
        cls,
        error: NoRoom,
        settings: Eviction,
        operator: str | None = None,
        doing: str = "restoring what is still in use",
    ) -> NoRoomError:
        """Return the engine's finding as PyTorch's own error, in a sentence.

        Args:
            error: What the engine found.
            settings: The policy.
            operator: What was to run, if an operator was.
            doing: What was to be done otherwise.
        """
        taken, held = error.usage - error.locked_bytes, error.locked_bytes
        who = f"operator {operator}" if operator else doing
        text = f"{who} needs {format_bytes(error.need, up=True)}"
        text += f" beside {format_bytes(held, up=True)} that it works on" if held else ""
        text += (
            f", and parameters, gradients and other tensors that cannot be evicted take "
            f"{format_bytes(taken, up=True)}, together more than the "
            f"{format_bytes(error.budget)} that {settings.system} has for itself"
        )
        if settings.reserve_bytes:
            total = error.budget + settings.reserve_bytes
            text += (
                f" (a budget of {format_bytes(total)} less a reserve of "
                f"{format_bytes(settings.reserve_bytes)}): give a larger budget or a smaller "
                "reserve"
            )
        else:
            text += ": give a larger budget"
        if error.kept:
            text += (
                f". {error.kept[0].upper()}{error.kept[1:]}: let go of what is not needed (del), "
                "or keep copies elsewhere, and call the optimizer's step again, or detach()"
            )
        return cls(text)


class Runtime(Protocol):
    """What is used of :class:`mimose.runtime.eviction.live.EvictionRuntime`."""

    active: bool
    failed: bool

    def start(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begin a step."""

    def stop(self, *, regardless: bool = False) -> EvictionFigures:
        """End it, with everything that is still in use restored, maybe regardless of the budget.

        After an out-of-memory error or :class:`NoRoom` it goes on.
        """

    def abandon(self) -> EvictionFigures:
        """Give it up, with nothing restored."""


class Evictions:
    """The eviction runtime of one model; it learns operators' sizes and costs, so it is kept.

    Args:
        model: The model.
        device: What memory and time are read from.
        budget_bytes: Bound on reserved bytes, or None.
        make: Makes the runtime.

    Attributes:
        figures: What the policy did in the last step that ended or was given up; None if none was
            since :meth:`forget`.
        stuck: The step that is under way was to end, and what is still in use did not fit.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Device,
        budget_bytes: int | None,
        make: Callable[[Device, Eviction, int | None], Runtime] | None = None,
    ) -> None:
        self.figures: EvictionFigures | None = None
        self.stuck = False
        self._model = model
        self._device = device
        self._budget_bytes = budget_bytes
        self._make = make or _live
        self._settings: Eviction | None = None
        self._runtime: Runtime | None = None

    @property
    def active(self) -> bool:
        """Whether a step is under way."""
        return self._runtime is not None and self._runtime.active

    def forget(self) -> None:
        """Give up a step that is still under way, and let go of the last one's figures."""
        self.abandon()
        self.figures = None

    def start(self, settings: Eviction, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Begin a step; its forward pass comes next."""
        if self._runtime is None or settings != self._settings:
            self._runtime = self._make(self._device, settings, self._budget_bytes)
            self._settings = settings
        self.stuck = False
        self._runtime.start(self._model, args, kwargs)

    def stop(self, *, regardless: bool = False) -> None:
        """End a step that is under way: what is still in use is resident again.

        One that has failed, as its loop was told, is given up.

        Args:
            regardless: Of the budget.

        Raises:
            torch.OutOfMemoryError: If not all of it fits. The step is under way still.
            Thrashing: If restoring it takes too long.
        """
        if self._runtime is None or not self._runtime.active:
            return
        if self._runtime.failed:
            self.abandon()
            return
        try:
            self.figures = self._runtime.stop(regardless=regardless)
            self.stuck = False
        except NoRoom as error:
            self.stuck = True
            assert self._settings is not None
            raise NoRoomError.of(error, self._settings) from None
        except torch.OutOfMemoryError:
            self.stuck = True
            raise
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Give up a step that is under way: what was evicted is lost."""
        self.stuck = False
        if self._runtime is not None and self._runtime.active:
            self.figures = self._runtime.abandon()


def _live(device: Device, settings: Eviction, budget_bytes: int | None) -> Runtime:
    from mimose.runtime.eviction.live import EvictionRuntime

    with torch._C._DisableFuncTorch():  # Its own tensors are no part of a user's transform.
        return EvictionRuntime(device, settings, budget_bytes)
