"""The device ``sim:NAME``: the same models, planners and executor on a GPU that is not there.

Tensors live on PyTorch's ``meta`` device, without data. Their memory is counted by the model of
the CUDA caching allocator, with the budget enforced (:mod:`mimose.devices.modelled`); a clock is
charged for every operator (:mod:`mimose.devices.sim.clock`). What is simulated is one process on
one GPU: losses do not exist, memory and time do.

The dispatch mode that does it belongs to the thread that opened the device: train in that one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch

from mimose.devices.modelled import ModelledDevice, labelled
from mimose.devices.sim.clock import Clock
from mimose.devices.sim.gpus import Gpu, load_gpu
from mimose.devices.sim.kernels import CudaKernels
from mimose.devices.sim.mode import Simulation
from mimose.devices.sim.steps import StepLog
from mimose.devices.tensors import copy_batch, move_model
from mimose.records import Work
from mimose.units import format_bytes

T = TypeVar("T")

_SMALL_REQUEST = 1 << 20
"""Bytes up to which a request is served from the pool of small segments."""


class SimDevice(ModelledDevice):
    """A simulated GPU. One can be open in a process at a time.

    Args:
        gpu: A :class:`Gpu`, or what :func:`load_gpu` takes.
        cuda_kernels: Whether dropout and attention take CUDA's fused kernels, and kernels the
            scratch memory of CUDA's; without, what the CPU does, so that a simulation can be held
            against a run on the device ``cpu``.
        expandable: Whether its allocator has expandable segments.

    Attributes:
        gpu: The GPU.
        clock: Its clock.

    Raises:
        ValueError: If there is no such GPU, or if one is open already.
    """

    kind = "sim"

    def __init__(
        self, gpu: Gpu | str, *, cuda_kernels: bool = True, expandable: bool = False
    ) -> None:
        self.gpu = load_gpu(gpu) if isinstance(gpu, str) else gpu
        self.label = labelled(f"simulated {self.gpu.name}", expandable)
        super().__init__(torch.device("meta"), f"Simulated {self.gpu.name}", expandable=expandable)
        self.clock = Clock(self.gpu.synchronize_seconds, self.gpu.launch_seconds)
        self._kernels = CudaKernels(self.gpu) if cuda_kernels else None
        self._thread = threading.get_ident()
        self._kept: list[torch.Tensor] = []
        self._log: StepLog | None = None
        self._simulation = Simulation(
            self.gpu, self.clock, self._ignored, self._workspace, self._keep, scratch=cuda_kernels
        )
        self._simulation.__enter__()
        self.enforce(None)

    @property
    def capacity_bytes(self) -> int:
        """What the allocator can reserve: the GPU's memory without CUDA's own share."""
        return self.gpu.memory_bytes - self.gpu.context_bytes

    def close(self) -> None:
        """Give PyTorch back its allocator and kernels. Figures stay readable."""
        if threading.get_ident() != self._thread:
            raise ValueError("close a simulated device in the thread that opened it")
        if self._final is None:
            self._kept.clear()
            self._simulation.__exit__(None, None, None)
            if self._kernels is not None:
                self._kernels.close()
        super().close()

    def enforce(self, budget_bytes: int | None) -> None:
        """Make reserving more than ``budget_bytes`` fail; None leaves what the GPU has.

        Raises:
            ValueError: If the GPU has less, or if more is reserved already.
        """
        self.refuse_beyond(budget_bytes)
        super().enforce(self.capacity_bytes if budget_bytes is None else budget_bytes)

    def refuse_beyond(self, budget_bytes: int | None) -> None:
        """Refuse a budget that the GPU cannot give.

        Raises:
            ValueError: If it is more than the GPU has.
        """
        if budget_bytes is not None and budget_bytes > self.capacity_bytes:
            raise ValueError(
                f"a budget of {format_bytes(budget_bytes)} is more than the "
                f"{format_bytes(self.capacity_bytes)} that {self.gpu.title} has for PyTorch: give "
                "a smaller budget or simulate a larger GPU"
            )

    # -- time

    def now(self) -> float:
        """Return when everything submitted so far will be done, in simulated seconds."""
        if self._log is not None:
            self._log.cut()
        return self.clock.now()

    def seconds_between(self, start: float, end: float) -> float:
        """Return the simulated time between two stamps."""
        return end - start

    def synchronize(self) -> None:
        """Let the simulated host wait for the device."""
        self.clock.synchronize()

    def charge(self, work: Work, measured_seconds: float) -> float:
        """Return what counted work costs the host, and let its clock pass by it."""
        price = self.gpu.host_unit_seconds
        seconds = (
            work.lookups * price["lookup"]
            + work.estimates * price["estimate"]
            + work.candidates * price["candidate"]
            + work.updates * price["update"]
            + work.evaluations * price["evaluation"]
            + work.metadata * price["metadata"]
            + work.upkeep * price["upkeep"]
        )
        self.clock.work(seconds)
        return seconds

    # -- tensors

    def build(self, function: Callable[[], T]) -> T:
        """Return what ``function`` builds, if possible on meta and without anything counted.

        A model whose constructor needs values is built on the CPU; :meth:`adopt` takes both.
        """
        self._simulation.passive = True
        try:
            try:
                with self._ignored(), torch.device("meta"):
                    return function()
            except (NotImplementedError, RuntimeError):
                with self._ignored():
                    return function()
        finally:
            self._simulation.passive = False

    def put(self, batch: Any) -> Any:
        """Return a copy of ``batch`` on meta; small integers keep their values."""
        return copy_batch(batch, self.torch_device)

    def adopt(self, model: torch.nn.Module) -> None:
        """Give every parameter, gradient and buffer memory that counts, ties kept.

        Parameters that are not on meta yet are replaced: make the optimizer afterwards. The
        workspace of matrix products is taken, too: as a part of what is resident, it is nothing
        that a step is measured to need.
        """
        self._simulation.passive = True
        try:
            move_model(model, self.torch_device)
            self._simulation.take_blas_workspace()
        finally:
            self._simulation.passive = False

    @contextlib.contextmanager
    def copy_stream(self) -> Iterator[None]:
        """Copies between host and device inside run beside the kernels that follow, pinned.

        They start once the kernels before them are done; :meth:`wait_for_copies` orders later
        kernels behind them.
        """
        self.clock.let_copies_wait()
        self._simulation.copying = True
        try:
            yield
        finally:
            self._simulation.copying = False

    def wait_for_copies(self) -> None:
        """Let kernels from here on wait for the copies so far."""
        self.clock.wait_for_copies()

    def start_copy(self, num_bytes: int, *, incoming: bool) -> float:
        """Copy pinned memory to the host, or from it if ``incoming``, beside the kernels to come.

        It starts once the kernels before it are done, and the copies before it that go the same
        way. Returns what :meth:`wait_for_copy` takes.
        """
        self.clock.let_copies_wait()
        return self.clock.copy(num_bytes / self.gpu.copy_bandwidth, incoming=incoming)

    def wait_for_copy(self, copy: float) -> float:
        """Let kernels from here on wait for one copy; return the seconds that they do."""
        return self.clock.wait_until(copy)

    @contextlib.contextmanager
    def host_memory(self) -> Iterator[None]:
        """Allocations inside go to the host's account; copies are kept there, not read."""
        if threading.get_ident() != self._thread:
            # Operators of other threads (one that loads data) are not simulated: what holds for
            # the device's own thread meanwhile must not change.
            with super().host_memory():
                yield
            return
        before, self._simulation.unread = self._simulation.unread, True
        try:
            with super().host_memory():
                yield
        finally:
            self._simulation.unread = before

    def rng_state(self) -> None:
        """Return nothing: no random number is ever drawn."""

    def set_rng_state(self, state: None) -> None:
        """Do nothing."""

    def foresee(self, func: Any, args: Any, kwargs: Any) -> int | None:
        """Return the bytes that an operator will take, outputs and workspace; None if unknown."""
        return self._simulation.foresee(func, args, kwargs)

    # -- steps that are remembered

    def start_log(self) -> StepLog:
        """Start logging a step: its allocations and kernels, in parts between time stamps."""
        self._simulation.reads = []
        log = StepLog(self._library, self.clock, self._simulation.reads)
        log.start(self._opened())
        self._log = log
        return log

    def stop_log(self) -> None:
        """Stop logging; the log then says whether it may be replayed."""
        log, self._log = self._log, None
        if log is not None:
            log.stop(self._opened())
            self.clock.stop_log()

    def replay(self, log: StepLog, part: int) -> None:
        """Repeat one part of a logged step; the parts follow one another.

        Raises:
            torch.OutOfMemoryError: As the step itself would; what the replay held is freed.
        """
        failed = log.replay(self._opened(), self.clock, part)
        if failed is not None:
            # Its text tells of the moment of failure. No name for it: the frame would keep itself.
            try:
                raise self._out_of_memory(failed)
            finally:
                log.abandon(self._opened())

    # -- memory that kernels take

    @contextlib.contextmanager
    def _ignored(self) -> Iterator[None]:
        self._library.mimose_enter_ignored()
        try:
            yield
        finally:
            self._library.mimose_leave_ignored()

    def _workspace(self, num_bytes: int) -> None:
        if not self._library.mimose_workspace(self._opened(), num_bytes):
            raise self._out_of_memory(num_bytes)

    def _keep(self, num_bytes: int) -> None:
        self._kept.append(torch.empty(num_bytes, dtype=torch.uint8, device="meta"))

    def _out_of_memory(self, request: int) -> torch.OutOfMemoryError:
        figures = self.stats()
        why = ""
        if figures.largest_free_block >= request:
            small = request <= _SMALL_REQUEST
            why = (
                f", in the {'large' if small else 'small'} pool: requests of "
                f"{'up to' if small else 'more than'} {format_bytes(_SMALL_REQUEST)} are served "
                f"from the {'small' if small else 'large'} one"
            )
        return torch.OutOfMemoryError(
            f"Simulated {self.gpu.name} out of memory. Tried to allocate {format_bytes(request)}, "
            f"with {format_bytes(figures.allocated)} allocated and "
            f"{format_bytes(figures.reserved)} reserved; the largest free block is "
            f"{format_bytes(figures.largest_free_block)}{why}."
        )
