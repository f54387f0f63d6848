"""Run a block's forward a second time without changing the model's state a second time.

Batch norm updates its running statistics in every forward; recomputed as it stands it would count
each batch twice (pytorch#96136). Its statistics are frozen during a rerun, which costs nothing.
Any other buffer that a block changes is given the value that it had before the first run, because
the result may depend on it, and then its present value back.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase


@dataclass(frozen=True, slots=True)
class _Saved:
    """One buffer as it was: the tensor object, its version and a copy of its data."""

    owner: nn.Module
    name: str
    tensor: torch.Tensor | None
    version: int
    data: torch.Tensor | None

    @property
    def changed(self) -> bool:
        now = self.owner._buffers.get(self.name)
        return now is not self.tensor or (now is not None and now._version != self.version)

    def put_back(self) -> None:
        self.owner._buffers[self.name] = self.tensor
        if self.tensor is not None and self.data is not None:
            # Through .data, so that autograd does not take it for a change by the model.
            self.tensor.data.copy_(self.data)


Snapshot = list[_Saved]


def _save(owner: nn.Module, name: str) -> _Saved:
    tensor = owner._buffers.get(name)
    if tensor is None:
        return _Saved(owner, name, None, 0, None)
    return _Saved(owner, name, tensor, tensor._version, tensor.detach().clone())


def put_back(snapshot: Snapshot) -> None:
    """Give every buffer of ``snapshot`` the value saved in it."""
    for saved in snapshot:
        saved.put_back()


class StepState:
    """The buffers of a block's modules.

    Attributes:
        stateless: The block has no buffers at all: it can be run again as it is.
    """

    __slots__ = ("_buffers", "_changing", "_norm_buffers", "_norms", "name", "stateless")

    def __init__(self, module: nn.Module, name: str = "") -> None:
        self.name = name
        self._norms = [
            m for m in module.modules() if isinstance(m, _NormBase) and m.track_running_stats
        ]
        statistics = {id(m) for m in self._norms}
        self._norm_buffers = [(m, key) for m in self._norms for key in m._buffers]
        self._buffers = [
            (m, key) for m in module.modules() if id(m) not in statistics for key in m._buffers
        ]
        self._changing: list[tuple[nn.Module, str]] | None = None
        self.stateless = not self._norms and not self._buffers

    def snapshot(self) -> Snapshot:
        """Save every buffer that the block may change, batch norm's included."""
        return [_save(*slot) for slot in [*self._norm_buffers, *self._candidates()]]

    def _candidates(self) -> list[tuple[nn.Module, str]]:
        return self._buffers if self._changing is None else self._changing

    @contextmanager
    def first_run(self, snapshots: dict[int, Snapshot], block: int) -> Iterator[None]:
        """Save what a rerun of ``block`` will need, around its first forward."""
        before = [_save(*slot) for slot in self._candidates()]
        steady = [] if self._changing is None else self._versions()
        yield
        for owner, name, tensor, version in steady:
            now = owner._buffers.get(name)
            if now is not tensor or (now is not None and now._version != version):
                self._changing = None
                raise RuntimeError(
                    f"block {self.name} changed its buffer {name} for the first time while it was "
                    "to be recomputed: run this step again"
                )
        changed = [saved for saved in before if saved.changed]
        if self._changing is None:
            self._changing = [(saved.owner, saved.name) for saved in changed]
        if changed:
            snapshots[block] = changed

    def _versions(self) -> list[tuple[nn.Module, str, torch.Tensor | None, int]]:
        changing = {(id(owner), name) for owner, name in self._changing or ()}
        return [
            (owner, name, tensor, 0 if tensor is None else tensor._version)
            for owner, name in self._buffers
            if (id(owner), name) not in changing
            for tensor in [owner._buffers.get(name)]
        ]

    @contextmanager
    def rerun(self, snapshot: Snapshot | None) -> Iterator[None]:
        """Run the block again as it ran first; afterwards every buffer is as it was."""
        present = [_save(saved.owner, saved.name) for saved in snapshot or ()]
        settings: list[tuple[Any, Any, Any]] = []
        for norm in self._norms:
            settings.append((norm, norm.momentum, norm._buffers.get("num_batches_tracked")))
            norm.momentum = 0.0
            norm._buffers["num_batches_tracked"] = None
        put_back(snapshot or [])
        try:
            yield
        finally:
            for norm, momentum, tracked in settings:
                norm.momentum = momentum
                norm._buffers["num_batches_tracked"] = tracked
            put_back(present)
