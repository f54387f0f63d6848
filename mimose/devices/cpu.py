"""The device ``cpu``: real training on the CPU, its memory counted as a GPU's would be.

PyTorch's CPU allocator is replaced by one that hands out ordinary memory while a model of the CUDA
caching allocator keeps the books and enforces the budget (:mod:`mimose.devices.allocator`). Losses
are real, memory is byte-exact and running out of it raises ``torch.OutOfMemoryError``.

What counts: every allocation that passes PyTorch's CPU allocator after the device was opened.
Tensors made earlier and memory-mapped weights do not, so open the device before building the model
or :meth:`CpuDevice.adopt` it, and :meth:`CpuDevice.put` every batch. Never counted: scratch memory
that oneDNN and MKL take by themselves, NumPy's memory, and storages made without a tensor, as
``copy.deepcopy`` does for buffers. A forked process counts nothing and has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from mimose.devices.modelled import ModelledDevice, labelled
from mimose.devices.tensors import copy_batch, copy_model
from mimose.records import Work

T = TypeVar("T")


class CpuDevice(ModelledDevice):
    """The CPU under a budget. One can be open in a process at a time.

    Args:
        expandable: Whether its allocator has expandable segments.

    Raises:
        ValueError: If one is open already, or if the allocator model cannot be built.
    """

    kind = "cpu"
    label = "measured on cpu"

    def __init__(self, *, expandable: bool = False) -> None:
        super().__init__(torch.device("cpu"), "CPU", expandable=expandable)
        self.label = labelled(type(self).label, expandable)

    # -- time

    def now(self) -> float:
        """Return the wall clock, in seconds."""
        return time.perf_counter()

    def seconds_between(self, start: float, end: float) -> float:
        """Return the time between two stamps."""
        return end - start

    def synchronize(self) -> None:
        """Do nothing: the CPU has finished when a call returns."""

    def charge(self, work: Work, measured_seconds: float) -> float:
        """Return the seconds measured."""
        return measured_seconds

    # -- tensors

    def build(self, function: Callable[[], T]) -> T:
        """Return what ``function`` builds."""
        return function()

    def put(self, batch: Any) -> Any:
        """Return a copy of ``batch`` that counts on the device."""
        return copy_batch(batch, self.torch_device)

    def adopt(self, model: torch.nn.Module) -> None:
        """Copy parameters, gradients and buffers into memory that counts, in place.

        Raises:
            ValueError: If the model has tensors without data.
        """
        copy_model(model, self.torch_device)

    def rng_state(self) -> torch.Tensor:
        """Return the state of the CPU's generator."""
        with self.host_memory():
            return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor) -> None:
        """Take back what :meth:`rng_state` returned."""
        with self.host_memory():
            torch.set_rng_state(state)
