"""The clock of a simulated GPU: a host that runs ahead of a stream, and two streams for copies.

As with CUDA, the host submits operators and goes on; the stream runs one kernel after another; a
synchronisation lets the host wait for it. Copies to the host and from it run beside each other, as
a GPU has an engine for either and PCIe both directions.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable

# Entries of a log are three numbers: host and device seconds, and a position. What the first one is
# when the entry is no kernel:
_SYNCHRONIZE, _COPY, _WAIT_FOR_COPIES, _COPIES_WAIT, _COPY_IN = -1.0, -2.0, -3.0, -4.0, -5.0


class Clock:
    """Four timelines, in seconds since the device was opened.

    Attributes:
        host: When the host is done with what it has been given.
        device: When the compute stream is.
        copies: When the stream of copies is, those to the host and those in no hurry.
        copies_in: When the stream of copies from the host is.
        repeatable: Whether what was logged last can be replayed.
    """

    def __init__(self, synchronize_seconds: float, launch_seconds: float) -> None:
        self.host = self.device = self.copies = self.copies_in = 0.0
        self.repeatable = True
        self._synchronize_seconds = synchronize_seconds
        self._launch_seconds = launch_seconds
        self._log: array[float] | None = None
        self._position: Callable[[], int] = int

    def launch(self, host_seconds: float, device_seconds: float) -> None:
        """Submit a kernel: it starts once the host has submitted it and the stream is free."""
        if self._log is not None:
            self._log.extend((host_seconds, device_seconds, self._position()))
        host = self.host = self.host + host_seconds
        device = self.device
        self.device = (device if device > host else host) + device_seconds

    def work(self, seconds: float) -> None:
        """Let the host work; the streams go on meanwhile."""
        self.host += seconds

    def synchronize(self) -> None:
        """Let the host wait for all streams."""
        self._note(_SYNCHRONIZE, 0.0)
        last = max(self.host, self.device, self.copies, self.copies_in)
        self.host = last + self._synchronize_seconds

    def copy(self, seconds: float, *, incoming: bool = False) -> float:
        """Submit a copy between host and device to a stream of copies; return when it will be done.

        Args:
            seconds: What it takes.
            incoming: It comes from the host, and has the stream for those.
        """
        self._note(_COPY_IN if incoming else _COPY, seconds)
        self.host += self._launch_seconds
        if incoming:
            self.copies_in = max(self.copies_in, self.host) + seconds
            return self.copies_in
        self.copies = max(self.copies, self.host) + seconds
        return self.copies

    def wait_for_copies(self) -> None:
        """Let the compute stream wait for the copies submitted so far."""
        self._note(_WAIT_FOR_COPIES, 0.0)
        self.device = max(self.device, self.copies, self.copies_in)

    def wait_until(self, moment: float) -> float:
        """Let the compute stream wait for one copy, by when that is done; return for how long.

        A step that does so is not repeatable: its moments are its own.
        """
        self.repeatable = False
        waited = max(0.0, moment - self.now())
        self.device = max(self.device, moment)
        return waited

    def let_copies_wait(self) -> None:
        """Let the streams of copies wait for the kernels submitted so far."""
        self._note(_COPIES_WAIT, 0.0)
        self.copies = max(self.copies, self.device)
        self.copies_in = max(self.copies_in, self.device)

    def now(self) -> float:
        """Return when all that the compute stream was given is done, as an event tells."""
        return max(self.host, self.device)

    # -- steps that are remembered

    def start_log(self, position: Callable[[], int] = int) -> array[float]:
        """Start logging, and return the log.

        Args:
            position: Called for each entry, to tell where in another log it belongs.
        """
        self._log = array("d")
        self._position = position
        self.repeatable = True
        return self._log

    def stop_log(self) -> None:
        """Stop logging."""
        self._log = None

    def replay(
        self, log: array[float], start: int, end: int, last_position: float = math.inf
    ) -> None:
        """Let pass what ``log`` holds from ``start`` to ``end``, up to a position."""
        numbers: Iterable[float] = iter(log[start:end])
        host, device = self.host, self.device
        for first, second, position in zip(numbers, numbers, numbers):
            if position > last_position:
                break
            if first >= 0.0:
                host += first
                device = (device if device > host else host) + second
                continue
            self.host, self.device = host, device
            self._repeat(first, second)
            host, device = self.host, self.device
        self.host, self.device = host, device

    def _repeat(self, kind: float, seconds: float) -> None:
        if kind == _SYNCHRONIZE:
            self.synchronize()
        elif kind in (_COPY, _COPY_IN):
            self.copy(seconds, incoming=kind == _COPY_IN)
        elif kind == _WAIT_FOR_COPIES:
            self.wait_for_copies()
        else:
            assert math.isclose(kind, _COPIES_WAIT)
            self.let_copies_wait()

    def _note(self, kind: float, seconds: float) -> None:
        if self._log is not None:
            self._log.extend((kind, seconds, self._position()))
