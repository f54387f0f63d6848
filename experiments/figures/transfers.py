"""Of the storages that a forward pass leaves for backward: time to make them, time to move them.

DELTA (arXiv 2203.15980) reports that recomputing a tensor is often cheaper than swapping it. Here
each such storage's own operators are timed on the device's clock, and its transfer is its bytes
over the bus's bandwidth.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mimose.devices.sim.device import SimDevice
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.session import Session


@dataclass(slots=True)
class Kept:
    """A storage that forward made and backward found.

    Attributes:
        num_bytes: Its size.
        seconds: Time of the operators that wrote it.
    """

    num_bytes: int
    seconds: float


class _Watch(TorchDispatchMode):
    """Times operators and keeps account of the storages that they write, not of the tensors."""

    def __init__(self, device: SimDevice) -> None:
        super().__init__()
        self._now = device.clock.now
        self._alive: dict[int, tuple[Any, Kept]] = {}
        self.begun = False
        self.kept: list[Kept] | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self.begun and self.kept is None and torch._C._current_graph_task_id() != -1:
            self.kept = [
                kept for reference, kept in self._alive.values() if reference() is not None
            ]
        if not self.begun or self.kept is not None:
            return func(*args, **(kwargs or {}))
        read = {storage._cdata for storage in _storages((args, kwargs))}
        started = self._now()
        output = func(*args, **(kwargs or {}))
        seconds = self._now() - started
        for storage in _storages(output):
            address = storage._cdata
            reference, kept = self._alive.get(address, (None, None))
            if kept is not None and reference is not None and reference() is not None:
                kept.seconds += 0.0 if func.is_view else seconds
            elif address not in read:
                made = Kept(storage.nbytes(), seconds)
                self._alive[address] = weakref.ref(storage), made
        return output


def kept_for_backward(session: Session, batch: Batch) -> list[Kept]:
    """Take a step and return what its forward pass left for backward."""
    device = session.handle.device
    assert isinstance(device, SimDevice)
    watch = _Watch(device)

    def begin(*_: object) -> None:
        watch.begun = True

    hook = session.handle.model.register_forward_pre_hook(begin)
    try:
        with watch:
            session.take(batch)
    finally:
        hook.remove()
    assert watch.kept is not None
    return [kept for kept in watch.kept if kept.num_bytes]


def _storages(values: Any) -> list[torch.UntypedStorage]:
    leaves = pytree.tree_leaves(values)
    return [leaf.untyped_storage() for leaf in leaves if isinstance(leaf, torch.Tensor)]
