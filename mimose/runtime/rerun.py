"""Run a block's forward a second time without changing the model's state a second time.

Batch norm updates its running statistics in every forward; recomputed as it stands it would count
each batch twice (pytorch#96136). Its statistics are frozen during a rerun, which costs nothing.
Anything else that a block changes and that can be seen, buffers, attributes, lists and objects, is
given what it held before the first run, because the result may depend on it, and then what it holds
now.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from mimose.devices.base import Device
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.surroundings import Kept, Surroundings, version_of

_Key = tuple[int, str]
"""Which tensor of a module's: the identity of the dictionary that holds it, and its name there."""

_STATISTICS = frozenset(("running_mean", "running_var", "num_batches_tracked"))
_LARGEST_ATTRIBUTE_BYTES = 1 << 20
_NODES_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class _Saved:
    """One tensor that is changed in place, as it was."""

    tensor: torch.Tensor
    version: int
    data: torch.Tensor

    def put_back(self) -> None:
        # Through .data, so that autograd does not take it for a change by the model.
        self.tensor.data.copy_(self.data)


@dataclass(slots=True)
class Snapshot:
    """What a block's run may change, as it was before.

    Attributes:
        kept: Attributes, lists and objects, by identity.
        values: What tensors held that are changed in place.
        ends_early: Whether a rerun must not end at the last tensor that the block saves.
    """

    kept: Kept = field(default_factory=Kept)
    values: list[_Saved] = field(default_factory=list)
    ends_early: bool = False

    def put_back(self) -> None:
        """Give everything what it held."""
        self.kept.put_back()
        for saved in self.values:
            saved.put_back()

    def present(self) -> Snapshot:
        """Return what the same places hold now."""
        return Snapshot(self.kept.present(), [_save(saved.tensor) for saved in self.values])

    def clear(self) -> None:
        """Let go of everything."""
        self.kept = Kept()
        self.values = []


def _save(tensor: torch.Tensor) -> _Saved:
    return _Saved(tensor, version_of(tensor), tensor.detach().clone())


@dataclass(frozen=True, slots=True)
class _Steady:
    """A tensor that has not changed yet, and a copy of it in the host's memory."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    copy: torch.Tensor


class StepState:
    """What running a block changes in it.

    Args:
        module: The block.
        name: Its name.
        device: Whose memory the copies of tensors that hardly ever change are not to take.
    """

    __slots__ = (
        "_changing",
        "_device",
        "_early",
        "_known",
        "_norms",
        "_silent",
        "_standard",
        "_steady",
        "_surroundings",
        "name",
    )

    def __init__(self, module: nn.Module, name: str = "", device: Device | None = None) -> None:
        self.name = name
        self._device = device
        self._surroundings = Surroundings(module)
        self._known: set[_Key] = set()
        self._changing: set[_Key] = set()
        self._steady: dict[_Key, _Steady] = {}
        self._early: bool | None = None  # Not looked for yet.
        self._look()

    def _look(self) -> None:
        if not self._surroundings.look():
            return
        norms = [
            m
            for m in self._surroundings.modules
            if isinstance(m, _NormBase) and m.track_running_stats
        ]
        self._norms = [m for m in norms if _is_pytorchs(m)]
        self._standard = {id(m._buffers) for m in self._norms}
        # PyTorch's kernels change statistics and leave the version counters as they are.
        self._silent = {id(m._buffers) for m in norms} - self._standard

    def _tensors(self) -> list[tuple[_Key, torch.Tensor]]:
        """Return the tensors that may be changed in place, PyTorch's own statistics left out."""
        found = [
            ((id(buffers), name), tensor)
            for buffers in self._surroundings.buffers
            if buffers
            for name, tensor in buffers.items()
            if tensor is not None and not (id(buffers) in self._standard and name in _STATISTICS)
        ]
        found += [
            (key, tensor)
            for key, tensor in self._surroundings.tensors()
            if tensor.nbytes <= _LARGEST_ATTRIBUTE_BYTES
        ]
        return [(key, tensor) for key, tensor in found if not tensor.is_inference()]

    def snapshot(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Snapshot:
        """Save all that a run may change and that is to be undone, batch norm included."""
        self._look()
        kept = self._surroundings.save(args, kwargs, containers=True, strong=True)
        norms = [t for m in self._norms for t in m._buffers.values() if t is not None]
        values = [_save(tensor) for tensor in norms]
        values += [_save(t) for key, t in self._tensors() if not self._is_steady(key, t)]
        values += [
            _Saved(t, version_of(t), self._steady[key].copy)
            for key, t in self._tensors()
            if self._is_steady(key, t)
        ]
        return Snapshot(kept, values)

    def _is_steady(self, key: _Key, tensor: torch.Tensor) -> bool:
        steady = self._steady.get(key)
        if steady is None:
            return False
        if steady.tensor() is tensor and steady.version == tensor._version:
            return True
        del self._steady[key]
        self._changing.add(key)
        return False

    def run(
        self,
        forward: Callable[..., Any],
        snapshots: dict[int, Snapshot],
        block: int,
        again: bool,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run the block, for the first time or again as it ran first.

        Args:
            forward: Its plain forward.
            snapshots: Where to leave, or to find, what a rerun of ``block`` needs.
            block: The block's number.
            again: Whether it has run.
            args: Its arguments.
            kwargs: Its keyword arguments.
        """
        if again:
            snapshot = snapshots.get(block) or Snapshot()
            with self._rerun(snapshot):
                result = forward(*args, **kwargs)
                if snapshot.ends_early:
                    _save_one_more()
            return result
        snapshot = snapshots[block] = Snapshot()
        with self._first_run(snapshot, args, kwargs):
            result = forward(*args, **kwargs)
            if self._early is None and torch.is_grad_enabled():
                self._early = _ends_in_rrelu(result)
            if self._early:
                snapshot.ends_early = True
                _save_one_more()
        return result

    @contextmanager
    def _first_run(
        self, snapshot: Snapshot, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[None]:
        """Save what a rerun will need, around the first forward."""
        self._look()
        snapshot.kept = self._surroundings.save(args, kwargs)
        before: list[tuple[_Key, _Saved]] = []
        steady: list[tuple[_Key, torch.Tensor]] = []
        for key, tensor in self._tensors():
            if self._is_steady(key, tensor):
                steady.append((key, tensor))
            else:
                before.append((key, _save(tensor)))
        yield
        for key, tensor in steady:
            known = self._steady[key]
            if version_of(tensor) != known.version:
                snapshot.values.append(_Saved(tensor, known.version, known.copy))
                del self._steady[key]
                self._changing.add(key)
        for key, saved in before:
            if key[0] in self._silent or version_of(saved.tensor) != saved.version:
                snapshot.values.append(saved)
                self._changing.add(key)
            elif key not in self._changing:
                self._keep_steady(key, saved.tensor)

    def _keep_steady(self, key: _Key, tensor: torch.Tensor) -> None:
        if self._device is None or tensor.is_meta or type(tensor) is not torch.Tensor:
            return
        with self._device.host_memory():
            copy = tensor.detach().to("cpu", copy=True)
        self._steady[key] = _Steady(weakref.ref(tensor), tensor._version, copy)

    @contextmanager
    def _rerun(self, snapshot: Snapshot) -> Iterator[None]:
        """Run the block again as it ran first; afterwards everything is as it was."""
        snapshot.kept.check(self.name)
        present = snapshot.present()
        settings: list[tuple[Any, Any, Any]] = []
        snapshot.put_back()
        for norm in self._norms:
            settings.append((norm, norm.momentum, norm._buffers.get("num_batches_tracked")))
            norm.momentum = 0.0
            norm._buffers["num_batches_tracked"] = None
        try:
            yield
        finally:
            for norm, momentum, tracked in settings:
                norm.momentum = momentum
                norm._buffers["num_batches_tracked"] = tracked
            present.put_back()


def _is_pytorchs(norm: nn.Module) -> bool:
    """Whether a normalisation runs PyTorch's own forward, which statistics do not go into."""
    forward = type(norm).forward
    return "forward" not in vars(norm) and forward.__module__.startswith("torch.nn.modules.")


def _ends_in_rrelu(result: Any) -> bool:
    """Whether a randomised leaky ReLU is among the last operators that made a result.

    It saves its noise and fills it afterwards, and so is the one operator that a rerun must not
    leave as soon as everything is saved.
    """
    pending = [t.grad_fn for t in tensors_in(result) if t.grad_fn is not None]
    seen: set[Any] = set()
    while pending and len(seen) < _NODES_LOOKED_AT:
        node = pending.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().startswith("Rrelu"):
            return True
        pending += [following for following, _ in node.next_functions]
    return False


def _save_one_more() -> None:
    """Save one tensor more, a number, for a rerun to end at."""
    torch.ones((), requires_grad=True).exp()
