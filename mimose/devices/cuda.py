"""The device ``cuda``: an NVIDIA GPU with PyTorch's caching allocator.

PyTorch keeps one pair of peaks (allocated, reserved) a process. With ``reset_peaks`` the device
resets them at every mark, keeps the run-wide peaks itself, and every figure is exact. Without it
the statistics are left to their owner: a peak is known exactly only if the process-wide one rose,
and otherwise bounded by it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from mimose.devices.base import Mark, StepMemory
from mimose.devices.tensors import copy_batch, copy_model
from mimose.records import Work
from mimose.units import format_bytes

T = TypeVar("T")


@dataclass(slots=True)
class _Reading:
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    num_alloc_retries: int


class CudaDevice:
    """One GPU of the process.

    Args:
        index: Which one.
        reset_peaks: Whether the process's peak statistics may be reset.

    Raises:
        ValueError: If there is no such GPU, or if PyTorch's allocator is not its own.
    """

    kind = "cuda"
    label = "measured on cuda"

    def __init__(self, index: int = 0, *, reset_peaks: bool = False) -> None:
        if not torch.cuda.is_available():
            raise ValueError(
                "there is no CUDA device here, or this PyTorch is built without CUDA: "
                "use the device 'cpu'"
            )
        if index >= torch.cuda.device_count():
            raise ValueError(
                f"there is no device 'cuda:{index}': this machine has {torch.cuda.device_count()}"
            )
        self.torch_device = torch.device("cuda", index)
        self._reset_peaks = reset_peaks
        self._previous_fraction: float | None = None
        torch.cuda.init()
        if reset_peaks:
            torch.cuda.reset_peak_memory_stats(self.torch_device)
        first = self._read()
        # What has been folded in of peaks that were reset since: in the run, in the step.
        self._run = (first.peak_allocated, first.peak_reserved)
        self._step = (first.allocated, first.reserved)
        self._at_begin = self._at_mark = first

    def close(self) -> None:
        """Restore the memory fraction that was set before."""
        self.enforce(None)

    # -- memory

    def allocated_bytes(self) -> int:
        """Return the bytes allocated now."""
        return self._read().allocated

    def reserved_bytes(self) -> int:
        """Return the bytes reserved now."""
        return self._read().reserved

    def peak_allocated_bytes(self) -> int:
        """Return the highest allocated bytes since the device was opened.

        Without ``reset_peaks``: since the process's statistics were last reset.
        """
        return max(self._run[0], self._read().peak_allocated)

    def peak_reserved_bytes(self) -> int:
        """Return the highest reserved bytes, likewise."""
        return max(self._run[1], self._read().peak_reserved)

    def largest_free_block_bytes(self) -> int:
        """Return the largest block that could be handed out without reserving more."""
        blocks = (b for s in self._segments() for b in s["blocks"] if b["state"] == "inactive")
        return max((b["size"] for b in blocks), default=0)

    def has_expandable_segments(self) -> bool:
        """Return whether segments grow and shrink by pages; False while nothing is reserved."""
        return any(s.get("is_expandable", False) for s in self._segments())

    def _segments(self) -> list[dict[str, Any]]:
        index = self.torch_device.index
        return [s for s in torch.cuda.memory_snapshot() if s["device"] == index]

    def enforce(self, budget_bytes: int | None) -> None:
        """Make reserving more than ``budget_bytes`` fail, by the process's memory fraction.

        None restores the fraction from before.

        Raises:
            ValueError: If more is reserved already, with the cache emptied.
        """
        device = self.torch_device
        if budget_bytes is None:
            if self._previous_fraction is not None:
                torch.cuda.set_per_process_memory_fraction(self._previous_fraction, device)
                self._previous_fraction = None
            return
        self.release_cache()
        reserved = self.reserved_bytes()
        if reserved > budget_bytes:
            raise ValueError(
                f"{format_bytes(reserved)} is in use on the device already, more than the "
                f"budget of {format_bytes(budget_bytes)}: give a larger budget"
            )
        if self._previous_fraction is None:
            # Added in torch 2.8; a fraction set before is not known without it.
            read = getattr(torch.cuda, "get_per_process_memory_fraction", None)
            self._previous_fraction = 1.0 if read is None else float(read(device))
        total = torch.cuda.get_device_properties(device).total_memory
        # PyTorch rounds fraction * total down: half a byte more keeps the budget whole.
        fraction = min(1.0, (budget_bytes + 0.5) / total)
        torch.cuda.set_per_process_memory_fraction(fraction, device)

    def release_cache(self) -> None:
        """Hand wholly unused segments back to the GPU."""
        with torch.cuda.device(self.torch_device):
            torch.cuda.empty_cache()

    def begin_step(self) -> None:
        """Start a step's own peaks and counters."""
        reading = self._read()
        self._fold(reading)
        self._step = (reading.allocated, reading.reserved)
        self._at_begin = self._at_mark = reading

    def mark(self) -> Mark:
        """Read, and start the next segment of the step."""
        reading = self._read()
        known = self._reset_peaks or reading.peak_allocated > self._at_mark.peak_allocated
        self._fold(reading)
        self._at_mark = reading
        return Mark(reading.allocated, reading.peak_allocated if known else None)

    def end_step(self) -> StepMemory:
        """Return the figures since :meth:`begin_step`."""
        begin, end = self._at_begin, self._read()
        retries = end.num_alloc_retries - begin.num_alloc_retries
        if self._reset_peaks:
            return StepMemory(
                peak_allocated=max(self._step[0], end.peak_allocated),
                peak_reserved=max(self._step[1], end.peak_reserved),
                num_alloc_retries=retries,
            )
        # Segments go back only when the cache is emptied, so without a retry reserved bytes rise
        # from begin to end. Allocated bytes are never above them.
        risen = end.peak_reserved > begin.peak_reserved or retries
        reserved = end.peak_reserved if risen else max(begin.reserved, end.reserved)
        exact = end.peak_allocated > begin.peak_allocated
        bound = end.peak_allocated if exact else min(end.peak_allocated, reserved)
        return StepMemory(
            peak_allocated=bound,
            peak_reserved=reserved,
            num_alloc_retries=retries,
            exact=exact,
        )

    def alloc_retries(self) -> int:
        """Return how many allocations needed free segments handed back, so far."""
        return self._read().num_alloc_retries

    # -- time

    def now(self) -> torch.cuda.Event:
        """Return an event in the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self.torch_device))
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the time between two events; waits for the later one."""
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3

    def synchronize(self) -> None:
        """Wait for the GPU."""
        torch.cuda.synchronize(self.torch_device)

    def charge(self, work: Work, measured_seconds: float) -> float:
        """Return the seconds measured."""
        return measured_seconds

    # -- tensors

    def build(self, function: Callable[[], T]) -> T:
        """Return what ``function`` builds."""
        return function()

    def put(self, batch: Any) -> Any:
        """Return a copy of ``batch`` on the GPU; pinned tensors go without waiting."""
        return copy_batch(batch, self.torch_device)

    def adopt(self, model: torch.nn.Module) -> None:
        """Move parameters, gradients and buffers to the GPU, in place.

        Raises:
            ValueError: If the model has tensors without data.
        """
        copy_model(model, self.torch_device)

    def host_memory(self) -> contextlib.AbstractContextManager[None]:
        """Do nothing: host memory never counts on a GPU."""
        return contextlib.nullcontext()

    def rng_state(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the states of the CPU's generator and the GPU's."""
        return torch.get_rng_state(), torch.cuda.get_rng_state(self.torch_device)

    def set_rng_state(self, state: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Take back what :meth:`rng_state` returned."""
        torch.set_rng_state(state[0])
        torch.cuda.set_rng_state(state[1], self.torch_device)

    def _read(self) -> _Reading:
        # The nested dictionary: flattening it, as memory_allocated() does, takes ten times longer.
        figures = torch.cuda.memory_stats_as_nested_dict(self.torch_device)
        allocated, reserved = figures["allocated_bytes"]["all"], figures["reserved_bytes"]["all"]
        return _Reading(
            allocated=allocated["current"],
            reserved=reserved["current"],
            peak_allocated=allocated["peak"],
            peak_reserved=reserved["peak"],
            num_alloc_retries=figures["num_alloc_retries"],
        )

    def _fold(self, reading: _Reading) -> None:
        peaks = (reading.peak_allocated, reading.peak_reserved)
        self._run = (max(self._run[0], peaks[0]), max(self._run[1], peaks[1]))
        if self._reset_peaks:
            self._step = (max(self._step[0], peaks[0]), max(self._step[1], peaks[1]))
            torch.cuda.reset_peak_memory_stats(self.torch_device)
