"""What an operator costs, in the time of its device, and nothing but the operator."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any, Protocol

import torch

from mimose.devices.base import Device


class Timer(Protocol):
    """Measures single operators.

    Attributes:
        now: Returns the time that staleness is measured by.
    """

    now: Callable[[], float]

    def start(self, signature: Any, /) -> float:
        """Return a stamp, right before an operator of this signature (None: unknown)."""

    def stop(self, start: float, signature: Any, /) -> float:
        """Return the operator's cost in seconds, right after it."""


class HostTimer:
    """For a device that has finished when a call returns."""

    def __init__(self) -> None:
        self.now: Callable[[], float] = perf_counter

    def start(self, _: Any) -> float:
        """Return the time now."""
        return perf_counter()

    def stop(self, start: float, _: Any) -> float:
        """Return the time since ``start``."""
        return perf_counter() - start


class SimulatedTimer:
    """For a simulated device.

    Args:
        device: The device.
        synchronous: Let its host wait for it after each operator.
    """

    def __init__(self, device: Any, synchronous: bool) -> None:
        self.now: Callable[[], float] = device.clock.now
        self._clock = device.clock
        self._synchronous = synchronous

    def start(self, _: Any) -> float:
        """Return the simulated time now."""
        return float(self._clock.now())

    def stop(self, start: float, _: Any) -> float:
        """Return the simulated time since ``start``."""
        seconds: float = self._clock.now() - start
        if self._synchronous:
            self._clock.synchronize()
        return seconds


class CudaTimer:
    """For a GPU: waits for it after each operator, or only the first time for each signature.

    Args:
        device: The GPU.
        synchronous: Wait after each operator.
    """

    def __init__(self, device: torch.device, synchronous: bool) -> None:
        self.now: Callable[[], float] = perf_counter
        self._stream = lambda: torch.cuda.current_stream(device)
        self._synchronous = synchronous
        self._known: dict[Any, float] = {}

    def start(self, signature: Any) -> float:
        """Return the time now; waits first where the operator has to be measured."""
        if not self._synchronous and signature not in self._known:
            self._stream().synchronize()
        return perf_counter()

    def stop(self, start: float, signature: Any) -> float:
        """Return the time since ``start``, or what such an operator took the first time."""
        if not self._synchronous:
            known = self._known.get(signature)
            if known is not None:
                return known
        self._stream().synchronize()
        seconds = perf_counter() - start
        if not self._synchronous and signature is not None:
            self._known[signature] = seconds
        return seconds


def timer_for(device: Device, synchronous: bool) -> Timer:
    """Return what measures operators on a device."""
    if device.kind == "sim":
        return SimulatedTimer(device, synchronous)
    if device.kind == "cuda":
        return CudaTimer(device.torch_device, synchronous)
    return HostTimer()
