"""How each device copies storages to the host's memory and back beside its operators.

Host memory lies outside of the budget: on ``cuda`` it is pinned, on ``cpu`` and ``sim`` it is on
the host's account. Nothing here frees memory that a copy reads or fills; whoever calls keeps it
until the transfer is over or has been waited for.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from ctypes import memmove
from time import perf_counter
from typing import Any

import torch

from mimose.devices.base import Device
from mimose.runtime.eviction.copies import Channel

_PROBE_BYTES = 16 << 20
_UINT8 = torch.uint8


class SimChannel:
    """The streams of copies of a simulated GPU; a transfer is the moment at which it is over.

    Args:
        device: The device.
    """

    def __init__(self, device: Any) -> None:
        self.bandwidth: float = device.gpu.copy_bandwidth
        self.latency: float = device.gpu.launch_seconds
        self._device = device
        self._waited = 0.0

    def send(self, data: torch.UntypedStorage) -> tuple[torch.Tensor, float]:
        """Start copying to the host."""
        with self._device.host_memory():
            host = torch.empty(data.nbytes(), dtype=_UINT8, device="meta")
        return host, self._device.start_copy(data.nbytes(), incoming=False)

    def fetch(self, host: torch.Tensor) -> tuple[torch.UntypedStorage, float]:
        """Start copying from the host."""
        data = torch.empty(host.numel(), dtype=_UINT8, device="meta").untyped_storage()
        return data, self._device.start_copy(host.numel(), incoming=True)

    def is_done(self, transfer: float) -> bool:
        """Return whether the kernels submitted so far end no earlier."""
        return bool(transfer <= self._device.clock.now())

    def wait(self, transfer: float) -> None:
        """Let kernels from here on wait."""
        self._waited += self._device.wait_for_copy(transfer)

    def waited_seconds(self) -> float:
        """Return how long kernels have waited."""
        waited, self._waited = self._waited, 0.0
        return waited


class CpuChannel:
    """A thread for either direction that copies memory; a transfer is a future.

    The copying itself does not hold the interpreter's lock. The memory on both sides is allocated
    by the calling thread, whose account it goes to.

    Args:
        device: The device.
    """

    latency = 50e-6  # Two switches of threads.

    def __init__(self, device: Device) -> None:
        self._device = device
        self._senders = ThreadPoolExecutor(1, "mimose-to-host")
        self._fetchers = ThreadPoolExecutor(1, "mimose-from-host")
        self._waited = 0.0
        self.bandwidth = self._measured()

    def send(self, data: torch.UntypedStorage) -> tuple[torch.Tensor, Future[Any]]:
        """Start copying to the host."""
        num_bytes = data.nbytes()
        with self._device.host_memory():
            host = torch.empty(num_bytes, dtype=_UINT8)
        return host, self._senders.submit(memmove, host.data_ptr(), data.data_ptr(), num_bytes)

    def fetch(self, host: torch.Tensor) -> tuple[torch.UntypedStorage, Future[Any]]:
        """Start copying from the host."""
        data = torch.empty(host.numel(), dtype=_UINT8).untyped_storage()
        transfer = self._fetchers.submit(memmove, data.data_ptr(), host.data_ptr(), data.nbytes())
        return data, transfer

    def is_done(self, transfer: Future[Any]) -> bool:
        """Return whether the copy is there."""
        return transfer.done()

    def wait(self, transfer: Future[Any]) -> None:
        """Wait for the copy."""
        start = perf_counter()
        transfer.result()
        self._waited += perf_counter() - start

    def waited_seconds(self) -> float:
        """Return how long was waited."""
        waited, self._waited = self._waited, 0.0
        return waited

    def _measured(self) -> float:
        with self._device.host_memory():
            source = torch.zeros(_PROBE_BYTES, dtype=_UINT8)
            target = torch.zeros(_PROBE_BYTES, dtype=_UINT8)
        start = perf_counter()
        memmove(target.data_ptr(), source.data_ptr(), _PROBE_BYTES)
        return _PROBE_BYTES / (perf_counter() - start)


class CudaChannel:
    """Two streams of a GPU beside the one that computes; a transfer is an event in one of them.

    Whatever is freed after a :meth:`wait` is used anew only by kernels of the computing stream that
    come after it, so the allocator need not be told of the other streams. The host does not wait.
    Pinned memory is PyTorch's, which keeps and reuses it.

    Args:
        device: The device.
    """

    latency = 20e-6  # Submitting a copy and the events around it.

    def __init__(self, device: Device) -> None:
        self._torch_device = device.torch_device
        self._outward = torch.cuda.Stream(self._torch_device)
        self._inward = torch.cuda.Stream(self._torch_device)
        # Pairs of events around waits whose length is not known yet.
        self._waits: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        self.bandwidth = self._measured()

    def send(self, data: torch.UntypedStorage) -> tuple[torch.Tensor, torch.cuda.Event]:
        """Start copying to the host, once the kernels so far are done."""
        host = torch.empty(data.nbytes(), dtype=_UINT8, pin_memory=True)
        return host, self._copy(host, _as_bytes(data), self._outward)

    def fetch(self, host: torch.Tensor) -> tuple[torch.UntypedStorage, torch.cuda.Event]:
        """Start copying from the host, once the kernels so far are done."""
        # From the computing stream's memory, which kernels before may use still: the copy waits.
        data = torch.empty(host.numel(), dtype=_UINT8, device=self._torch_device)
        return data.untyped_storage(), self._copy(data, host, self._inward)

    def is_done(self, transfer: torch.cuda.Event) -> bool:
        """Return whether the copy is there, as far as the host knows."""
        return transfer.query()

    def wait(self, transfer: torch.cuda.Event) -> None:
        """Let kernels from here on wait."""
        stream = torch.cuda.current_stream(self._torch_device)
        if transfer.query():
            # Done, as the host sees it; the computing stream is ordered behind it all the same.
            stream.wait_event(transfer)
            return
        before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        before.record(stream)
        stream.wait_event(transfer)
        after.record(stream)
        self._waits.append((before, after))

    def waited_seconds(self) -> float:
        """Return how long the computing stream has waited; waits for the last of it."""
        waits, self._waits = self._waits, []
        if waits:
            waits[-1][1].synchronize()
        return sum(before.elapsed_time(after) for before, after in waits) / 1e3

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, stream: torch.cuda.Stream
    ) -> torch.cuda.Event:
        stream.wait_stream(torch.cuda.current_stream(self._torch_device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return stream.record_event()

    def _measured(self) -> float:
        """Return what one copy of pinned memory attains."""
        host = torch.empty(_PROBE_BYTES, dtype=_UINT8, pin_memory=True)
        data = torch.empty(_PROBE_BYTES, dtype=_UINT8, device=self._torch_device)
        stream = torch.cuda.current_stream(self._torch_device)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        data.copy_(host, non_blocking=True)
        begin.record(stream)
        data.copy_(host, non_blocking=True)
        end.record(stream)
        end.synchronize()
        return _PROBE_BYTES / (float(begin.elapsed_time(end)) / 1e3)


def channel_of(device: Device) -> Channel:
    """Return how a device copies."""
    if device.kind == "sim":
        return SimChannel(device)
    return CudaChannel(device) if device.kind == "cuda" else CpuChannel(device)


def _as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    with torch._C._DisableTorchDispatch():
        tensor = torch.empty(0, dtype=_UINT8, device=storage.device)
        return tensor.set_(storage, 0, (storage.nbytes(),), (1,))
