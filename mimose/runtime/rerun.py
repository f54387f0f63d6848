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
from mimose.runtime.surroundings import Kept, Key, Surroundings

_STATISTICS = frozenset(("running_mean", "running_var", "num_batches_tracked"))
_NODES_LOOKED_AT = 64


@dataclass(frozen=True, slots=True)
class _Saved:
    """One tensor that is changed in place, as it was.

    ``version`` is its version counter then, or None where that does not tell whether it changed.
    ``device`` is the one whose host memory the data is in, or None if it is beside the tensor.
    """

    tensor: torch.Tensor
    version: int | None
    data: torch.Tensor
    device: Device | None = None

    def put_back(self) -> None:
        if self.tensor._version == self.version:
            return
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

    def put_back(self, now: Snapshot | None = None) -> None:
        """Give everything what it held; ``now`` is what it holds, if that is known."""
        self.kept.put_back(None if now is None else now.kept)
        for saved in self.values:
            saved.put_back()

    def present(self) -> Snapshot:
        """Return what the same places hold now."""
        # Putting values back leaves the version counters as they are.
        values = [_save(saved.tensor, silent=True, device=saved.device) for saved in self.values]
        return Snapshot(self.kept.present(), values)

    def clear(self) -> None:
        """Let go of everything."""
        self.kept = Kept()
        self.values = []


def _save(tensor: torch.Tensor, *, silent: bool, device: Device | None = None) -> _Saved:
    version = None if silent else tensor._version
    if device is None:
        return _Saved(tensor, version, tensor.detach().clone())
    with device.host_memory():
        return _Saved(tensor, version, tensor.detach().to("cpu", copy=True), device)


@dataclass(frozen=True, slots=True)
class _Steady:
    """A tensor that has not changed yet, and a copy in the host's memory if there can be one."""

    tensor: weakref.ref[torch.Tensor]
    version: int
    copy: torch.Tensor | None


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
        "_norms",
        "_quiet",
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
        self._changing: set[Key] = set()
        self._steady: dict[Key, _Steady] = {}
        self._quiet: set[Key] = set()
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
        homes = self._surroundings.homes()
        self._steady = {key: known for key, known in self._steady.items() if key[0] in homes}
        # PyTorch's kernels change statistics and leave the version counters as they are.
        self._silent = {id(m._buffers) for m in norms} - self._standard

    def _tensors(self) -> list[tuple[Key, torch.Tensor]]:
        """Return the tensors that may be changed in place, PyTorch's own statistics left out."""
        return [
            (key, tensor)
            for key, tensor in self._surroundings.changeable()
            if key[0] not in self._standard or key[1] not in _STATISTICS
        ]

    def snapshot(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Snapshot:
        """Save all that a run may change and that is to be undone, batch norm included."""
        self._look()
        kept = self._surroundings.save(args, kwargs, containers=True, strong=True)
        norms = [t for m in self._norms for t in m._buffers.values() if t is not None]
        values = [_save(tensor, silent=True) for tensor in norms]
        for key, tensor in self._tensors():
            if not self._is_steady(key, tensor):
                values.append(_save(tensor, silent=key[0] in self._silent))
                continue
            steady = self._steady[key]
            if steady.copy is not None:
                values.append(_Saved(tensor, steady.version, steady.copy))
        self._quiet.clear()  # A run that is undone leaves versions of its own.
        values += [saved for _, saved in self._large()[0]]
        return Snapshot(kept, values)

    def _large(self) -> tuple[list[tuple[Key, _Saved]], list[tuple[Key, torch.Tensor, int]]]:
        """Save the large tensors that may be changed in place.

        Returns:
            Those of which no run has shown that it leaves them, saved, and the versions of the
            others: a copy would take as much memory as an activation, and most are nothing else.
            Of one that is not replaced the first copy stays, in the host's memory.
        """
        saved: list[tuple[Key, _Saved]] = []
        quiet: list[tuple[Key, torch.Tensor, int]] = []
        for key, tensor in self._surroundings.large():
            if key in self._quiet:
                quiet.append((key, tensor, tensor._version))
                steady = self._steady.get(key)
                if steady is not None and steady.tensor() is not tensor:
                    del self._steady[key]  # The copy is of one that has been replaced.
            else:
                saved.append((key, _save(tensor, silent=False, device=self._device)))
        return saved, quiet

    def _is_steady(self, key: Key, tensor: torch.Tensor) -> bool:
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
        before: list[tuple[Key, _Saved]] = []
        steady: list[tuple[Key, torch.Tensor]] = []
        for key, tensor in self._tensors():
            if self._is_steady(key, tensor):
                steady.append((key, tensor))
            else:
                before.append((key, _save(tensor, silent=key[0] in self._silent)))
        large, quiet = self._large()
        yield
        for key, tensor in steady:
            known = self._steady[key]
            if tensor._version == known.version:
                continue
            del self._steady[key]
            self._changing.add(key)
            if known.copy is not None:
                snapshot.values.append(_Saved(tensor, known.version, known.copy))
            elif not tensor.is_meta:
                raise self._too_late(f"its buffer {key[1]}")
        for key, tensor, version in quiet:
            if tensor._version == version:
                continue
            self._quiet.discard(key)
            self._changing.add(key)
            known = self._steady.pop(key, None)
            if known is None or known.version != version or known.copy is None:
                raise self._too_late(f"{key[1]}, a large tensor in its attributes,")
            snapshot.values.append(_Saved(tensor, version, known.copy, self._device))
        for key, saved in large:
            if saved.tensor._version != saved.version:
                snapshot.values.append(saved)
                self._changing.add(key)
                self._steady.pop(key, None)
            elif key not in self._changing:
                self._quiet.add(key)
                if saved.device is not None:
                    reference = weakref.ref(saved.tensor)
                    self._steady[key] = _Steady(reference, saved.tensor._version, saved.data)
        for key, saved in before:
            if saved.tensor._version != saved.version:  # Or it does not tell.
                snapshot.values.append(saved)
                self._changing.add(key)
            elif key not in self._changing:
                self._keep_steady(key, saved.tensor)

    def _too_late(self, what: str) -> RuntimeError:
        return RuntimeError(
            f"block {self.name} changed {what} for the first time while it was to be recomputed: "
            "run this step again"
        )

    def _keep_steady(self, key: Key, tensor: torch.Tensor) -> None:
        copy = None
        if self._device is not None and type(tensor) is torch.Tensor and not tensor.is_meta:
            with self._device.host_memory():
                copy = tensor.detach().to("cpu", copy=True)
        self._steady[key] = _Steady(weakref.ref(tensor), tensor._version, copy)

    @contextmanager
    def _rerun(self, snapshot: Snapshot) -> Iterator[None]:
        """Run the block again as it ran first; afterwards everything is as it was."""
        snapshot.kept.check(self.name)
        present = snapshot.present()
        settings: list[tuple[Any, Any, Any]] = []
        snapshot.put_back(present)
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
    forward: Any = type(norm).forward
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
