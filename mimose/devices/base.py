"""What a device is: where tensors live, what memory is in use, what the budget is, what time it is.

Counting rule: bytes are those of the device's caching allocator. ``allocated`` bytes belong to
live tensors (rounded as the allocator rounds), ``reserved`` bytes are held from the device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch

from mimose.records import Work

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Mark:
    """A reading at one moment.

    Attributes:
        allocated: Bytes allocated now.
        peak_allocated: Highest allocated bytes since the previous mark of the step, or None where
            the device cannot tell without disturbing a user's own peak statistics.
    """

    allocated: int
    peak_allocated: int | None


@dataclass(frozen=True, slots=True)
class StepMemory:
    """Figures of one step, from ``begin_step`` to ``end_step``.

    ``exact`` is False where ``peak_allocated`` is only an upper bound.
    """

    peak_allocated: int
    peak_reserved: int
    num_alloc_retries: int
    exact: bool = True


class Device(Protocol):
    """A device.

    Implementations: :mod:`mimose.devices.cpu`, :mod:`mimose.devices.cuda` and
    :mod:`mimose.devices.sim.device`.

    Attributes:
        kind: ``cpu``, ``cuda`` or ``sim``.
        label: What every figure carries, e.g. ``measured on cpu``.
        torch_device: Where tensors live.
    """

    kind: str
    label: str
    torch_device: torch.device

    def close(self) -> None:
        """Undo everything the device installed and lift the budget."""

    # -- memory
    def allocated_bytes(self) -> int:
        """Bytes that live tensors take now."""

    def reserved_bytes(self) -> int:
        """Bytes held from the device now."""

    def peak_allocated_bytes(self) -> int:
        """Highest allocated bytes since the device was opened (run-wide, never reset)."""

    def peak_reserved_bytes(self) -> int:
        """Highest reserved bytes since the device was opened, likewise."""

    def largest_free_block_bytes(self) -> int:
        """Largest block that could be handed out without reserving more."""

    def has_expandable_segments(self) -> bool:
        """Return whether segments grow and shrink by pages."""

    def enforce(self, budget_bytes: int | None) -> None:
        """Make reserving more than ``budget_bytes`` fail with ``torch.OutOfMemoryError``.

        Empties the cache first; None lifts the limit.

        Raises:
            ValueError: If more than the budget is reserved already.
        """

    def release_cache(self) -> None:
        """Hand wholly unused segments back to the device."""

    def begin_step(self) -> None:
        """Start a step's own peaks and counters."""

    def mark(self) -> Mark:
        """Read, and start the next segment of the step."""

    def end_step(self) -> StepMemory:
        """Return the figures since ``begin_step``."""

    def alloc_retries(self) -> int:
        """Allocations so far that succeeded only after free segments were handed back."""

    # -- time
    def now(self) -> Any:
        """Return an opaque time stamp in the order of the device's work (no synchronising)."""

    def seconds_between(self, start: Any, end: Any) -> float:
        """Return the time between two stamps (may synchronise)."""

    def synchronize(self) -> None:
        """Wait until the device has finished its work."""

    def charge(self, work: Work, measured_seconds: float) -> float:
        """Return the seconds that planning took.

        Where time is real they have passed already and are those measured. A simulated device
        lets its host's clock pass by what the counted work costs instead.

        Args:
            work: The work, counted.
            measured_seconds: What it took on this machine.
        """

    # -- tensors
    def build(self, function: Callable[[], T]) -> T:
        """Return what ``function`` builds: a model that :meth:`adopt` is to take."""

    def put(self, batch: Any) -> Any:
        """Return a copy of ``batch`` (tensors in lists, tuples, mappings) on the device.

        Always copies, so that the batch counts as resident.
        """

    def adopt(self, model: torch.nn.Module) -> None:
        """Move parameters and buffers into the device's memory once, ties kept."""

    def host_memory(self) -> AbstractContextManager[None]:
        """Allocations of this thread inside the context go to the host's account."""

    def rng_state(self) -> Any:
        """Return the states of all generators that a step draws from."""

    def set_rng_state(self, state: Any) -> None:
        """Take back what :meth:`rng_state` returned."""
