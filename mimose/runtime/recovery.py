"""Undo the forward and backward pass of a step that ran out of memory.

A failed optimizer step is half applied and is never undone: only what came before it is.
"""

from __future__ import annotations

import gc
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from mimose.devices.base import Device
from mimose.runtime.surroundings import Kept, Key, Surroundings


@dataclass(frozen=True, slots=True)
class _Copy:
    """A tensor as it was: the tensor, its version counter and a copy of its values."""

    tensor: torch.Tensor
    version: int
    values: torch.Tensor | None

    @property
    def is_equal(self) -> bool:
        return self.values is None or torch.equal(self.tensor.to(self.values.device), self.values)


class Undo:
    """What must be known at the start of a step to undo its forward and backward pass.

    Forward passes change the random state and some buffers (batch norm's statistics), and maybe
    attributes of the modules. Copies of buffers are host memory: they must not fill the budget that
    they guard. A copy is good for as long as the version counter stays; batch norm's kernels leave
    it, and so which other buffers change without it is learned in the first step, from values.

    Gradients are not copied. Those that are there when a step begins can be brought back only if
    they are zeros, as ``zero_grad(set_to_none=False)`` leaves them.

    Attributes:
        possible: Whether the step that was last saved can be undone.
    """

    def __init__(self, model: nn.Module, device: Device) -> None:
        self._device = device
        self._surroundings = Surroundings(model, with_parameters=True)
        self._norms: list[nn.Module] = []
        self._kept = Kept()
        self._copies: dict[Key, _Copy] = {}
        self._large: list[tuple[str, torch.Tensor, int]] = []
        self._silent: set[Key] | None = None  # Not learned yet.
        self._restored = False
        self._rng: Any = None
        self._with_grad: list[nn.Parameter] = []
        self.possible = True

    def save(self, *, grads_are_zero: bool = False) -> None:
        """Note the state before a step's forward pass.

        Args:
            grads_are_zero: Whether gradients that exist are known to be zeros; otherwise they are
                looked at.
        """
        self._rng = self._device.rng_state()
        self._look()
        self._with_grad = [p for p in self._surroundings.parameters if p.grad is not None]
        self.possible = grads_are_zero or not any(
            bool(p.grad.any()) for p in self._with_grad if p.grad is not None
        )
        self._kept = self._surroundings.save((), {})
        # Of a step that was undone no buffer shows whether it changes.
        if self._silent is None and self._copies and not self._restored:
            with torch.no_grad(), self._device.host_memory():
                self._silent = {
                    key
                    for key, copy in self._copies.items()
                    if copy.tensor._version == copy.version and not copy.is_equal
                }
        tensors = dict(self._surroundings.changeable())
        self._large = [(key[1], t, t._version) for key, t in self._surroundings.large()]
        silent, counting = self._silent or (), self._counting()
        good = {
            key: old
            for key, tensor in tensors.items()
            if (old := self._copies.get(key)) is not None
            and old.tensor is tensor
            and old.version == tensor._version
            and key not in silent
            and key[0] not in counting
        }
        if len(good) < len(tensors):
            with torch.no_grad(), self._device.host_memory():
                good = {key: good.get(key) or _copy(tensor) for key, tensor in tensors.items()}
        self._copies = good
        self._restored = False

    def restore(self) -> None:
        """Bring back the state at :meth:`save`: random state, buffers, no gradient of the step."""
        self._restored = True
        self._look()
        had_grad = set(map(id, self._with_grad))
        counting = self._counting()
        with torch.no_grad():
            for parameter in self._surroundings.parameters:
                if id(parameter) in had_grad and parameter.grad is not None:
                    parameter.grad.zero_()
                else:
                    parameter.grad = None
            self._kept.put_back()
            for key, copy in self._copies.items():
                told = key in (self._silent or ()) or key[0] in counting
                if copy.values is None:
                    continue
                if told or self._silent is None or copy.tensor._version != copy.version:
                    copy.tensor.copy_(copy.values)
                elif not copy.is_equal:
                    self._silent.add(key)
                    warnings.warn(
                        f"a step that ran out of memory is run again, and buffer {key[1]} changes "
                        "in a way that PyTorch does not count (through .data, say), so that this "
                        "step may change it twice: change buffers under torch.no_grad()",
                        UserWarning,
                        stacklevel=2,
                    )
        for name, tensor, version in self._large:
            if tensor._version != version:
                warnings.warn(
                    f"a step that ran out of memory is run again, and it has changed {name}, a "
                    "large tensor in a module's attributes, in place, so that this step may change "
                    "it twice: register it as a buffer",
                    UserWarning,
                    stacklevel=2,
                )
        self._device.set_rng_state(self._rng)

    def _look(self) -> None:
        if self._surroundings.look():
            self._norms = [m for m in self._surroundings.modules if isinstance(m, _NormBase)]

    def _counting(self) -> set[int]:
        """Return the identities of the buffers of normalisations that are in training."""
        return {id(m._buffers) for m in self._norms if m.training}


def _copy(tensor: torch.Tensor) -> _Copy:
    values = None if tensor.is_meta else tensor.detach().to("cpu", copy=True)
    return _Copy(tensor, tensor._version, values)


def collect_garbage(device: Device) -> bool:
    """Collect Python's garbage; return whether that freed memory of the device.

    Tensors in reference cycles (a caught error and its frames, a module that knows its parent) stay
    allocated until then, which may be at any time. It takes some 100 ms: for rare occasions.
    """
    before = device.allocated_bytes()
    gc.collect()
    return device.allocated_bytes() < before


def drop_frames(error: BaseException) -> None:
    """Let go of the tensors that the frames of a caught error keep alive."""
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        current = pending.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        _clear(current.__traceback__)
        pending += [current.__cause__, current.__context__]


def _clear(frames: TracebackType | None) -> None:
    if frames is not None:
        traceback.clear_frames(frames)


def add_to_message(error: torch.OutOfMemoryError, parts: Iterable[str]) -> None:
    """Append sentences to the error's text; its class and its single argument stay as they are.

    Tools that look for PyTorch's out-of-memory errors (Accelerate's batch-size finder) match on
    both.
    """
    error.args = (" ".join([str(error.args[0]) if error.args else "", *parts]).strip(),)
