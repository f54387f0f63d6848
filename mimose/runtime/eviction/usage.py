"""How many bytes are in use, asked before every operator."""

from __future__ import annotations

from collections.abc import Callable

from mimose.devices.base import Device

_FRESH = 256
"""Questions after which a GPU's own figure is read again."""


class Usage:
    """The device's own figure.

    Attributes:
        now: Returns the bytes in use.
        changed: Called with the bytes by which an output, a death or an eviction changes that; None
            where nobody needs to be told.
    """

    changed: Callable[[int], None] | None = None

    def __init__(self, device: Device) -> None:
        self.now: Callable[[], int] = device.allocated_bytes

    def begin(self) -> None:
        """A step begins."""


class TrackedUsage(Usage):
    """For a GPU, whose figure takes long to read: a sum, put right now and then."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._bytes = self._asked = 0
        self.now = self._now
        self.changed = self._change

    def begin(self) -> None:
        """Read the device's figure."""
        self._asked = 0
        self._bytes = self._device.allocated_bytes()

    def _now(self) -> int:
        self._asked += 1
        if self._asked >= _FRESH:
            self.begin()
        return self._bytes

    def _change(self, num_bytes: int) -> None:
        self._bytes += num_bytes


def usage_of(device: Device) -> Usage:
    """Return what tells the bytes in use on a device."""
    return TrackedUsage(device) if device.kind == "cuda" else Usage(device)
