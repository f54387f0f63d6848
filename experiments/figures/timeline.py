"""Allocated memory over the time of a step, operator by operator; off unless asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from mimose.devices.base import Device


@dataclass(slots=True)
class Timeline:
    """What :func:`recording` saw.

    Attributes:
        stamps: The device's time stamps, one a reading.
        allocated: Bytes allocated at each.
    """

    stamps: list[Any] = field(default_factory=list)
    allocated: list[int] = field(default_factory=list)

    def seconds(self, device: Device) -> list[float]:
        """Return when each reading was taken, in seconds after the first."""
        return [device.seconds_between(self.stamps[0], stamp) for stamp in self.stamps]


class _Readings(TorchDispatchMode):
    """Reads memory before each operator and behind it: frees fall between operators."""

    def __init__(self, device: Device, found: Timeline) -> None:
        super().__init__()
        self._device = device
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.read()
        result = func(*args, **(kwargs or {}))
        self.read()
        return result

    def read(self) -> None:
        """Take a reading."""
        self._found.stamps.append(self._device.now())
        self._found.allocated.append(self._device.allocated_bytes())


@contextmanager
def recording(device: Device) -> Iterator[Timeline]:
    """Record what the operators of this thread allocate.

    On a simulated device a reading's time is when all operators submitted so far will be done, and
    costs it nothing. Memory within an operator, such as a kernel's workspace, is not seen. On cuda
    the operators of the backward pass run in another thread: nothing of them is seen.

    Args:
        device: An open device, nothing attached to which is being recorded already.
    """
    found = Timeline()
    readings = _Readings(device, found)
    with readings:
        readings.read()
        yield found
        readings.read()


def thinned(
    seconds: list[float], allocated: list[int], most: int
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return a curve of about ``most`` points: of each stretch its first, lowest and highest.

    Args:
        seconds: When readings were taken, in order.
        allocated: What they were.
        most: Points to return; of fewer readings all.
    """
    if len(seconds) <= most:
        return tuple(seconds), tuple(map(float, allocated))
    width = -(-3 * len(seconds) // most)
    kept: set[int] = {len(seconds) - 1}
    for first in range(0, len(seconds), width):
        stretch = range(first, min(first + width, len(seconds)))
        kept |= {
            first,
            min(stretch, key=allocated.__getitem__),
            max(stretch, key=allocated.__getitem__),
        }
    order = sorted(kept)
    return tuple(seconds[i] for i in order), tuple(float(allocated[i]) for i in order)
