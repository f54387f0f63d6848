"""What a step under a tensor-level policy took, and what a simulated host is charged for it."""

from __future__ import annotations

from mimose.devices.base import Device
from mimose.eviction import EvictionFigures
from mimose.records import Work
from mimose.runtime.eviction.backend import TorchBackend
from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.engine import Engine


class Accounts:
    """The times of one step at a time.

    Args:
        device: The device.
        engine: Whose work it is.
        backend: Its backend.
        copies: Copies on the host, where storages are swapped.

    Attributes:
        seconds: Time within operators and at the end of the step, on this machine's clock.
        bare_seconds: Of that, the operators' own.
    """

    def __init__(
        self, device: Device, engine: Engine, backend: TorchBackend, copies: Copies | None
    ) -> None:
        self._device = device
        self._engine = engine
        self._backend = backend
        self._copies = copies
        self.begin()

    def begin(self) -> None:
        """A step begins."""
        self.seconds = self.bare_seconds = 0.0
        self._charged = (0, 0, 0)
        self._search = self._maintenance = 0.0

    def charge(self) -> None:
        """Let a simulated host take the time of what was searched and kept up to date since."""
        stats = self._engine.stats
        evaluations = stats.evaluations - self._charged[0]
        read = stats.read - self._charged[1]
        accesses = stats.accesses - self._charged[2]
        if evaluations or accesses:
            self._charged = (stats.evaluations, stats.read, stats.accesses)
            charge = self._device.charge
            self._search += charge(Work(evaluations=evaluations), 0.0)
            self._maintenance += charge(Work(metadata=read), 0.0)
            # In neither of the prototype's clocks: it passes within forward and backward.
            charge(Work(upkeep=max(0, accesses - read - evaluations)), 0.0)

    def figures(self) -> EvictionFigures:
        """Return the step's figures."""
        stats, backend, copies = self._engine.stats, self._backend, self._copies
        if copies is not None:
            backend.swap_wait_seconds += copies.channel.waited_seconds()
        if self._device.kind == "sim":
            search, maintenance = self._search, self._maintenance
            overhead = 0.0  # Of the machine that simulates, and not of the one simulated.
        else:
            search, maintenance = stats.search_seconds, stats.maintenance_seconds
            others = self.bare_seconds + backend.rerun_wall_seconds + backend.swap_wait_seconds
            overhead = max(0.0, self.seconds - others - search - maintenance)
        return EvictionFigures(
            num_evictions=stats.num_evictions + stats.num_swaps_out,
            num_dropped=stats.num_evictions,
            num_rematerializations=stats.num_rematerializations,
            num_swaps_out=0 if copies is None else copies.num_out,
            num_swaps_in=0 if copies is None else copies.num_in,
            swapped_bytes=0 if copies is None else copies.moved_bytes,
            num_operators=stats.num_operators,
            operator_seconds=stats.operator_cost,
            recompute_seconds=backend.rerun_seconds,
            search_seconds=search,
            maintenance_seconds=maintenance,
            swap_wait_seconds=backend.swap_wait_seconds,
            overhead_seconds=overhead,
        )
