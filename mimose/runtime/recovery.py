"""Undo the forward and backward pass of a step that ran out of memory.

A failed optimizer step is half applied and is never undone: only what came before it is.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch

from mimose.devices.base import Device


class Undo:
    """What must be known at the start of a step to undo its forward and backward pass.

    Forward passes change the random state and some buffers (batch norm's statistics). Which
    buffers change is learned in the first step, so that later steps copy only those; from their
    values, since batch norm's kernels leave the version counters as they are. Copies are host
    memory: they must not fill the budget that they guard.

    Gradients are not copied. Those that are there when a step begins can be brought back only if
    they are zeros, as ``zero_grad(set_to_none=False)`` leaves them.

    Attributes:
        possible: Whether the step that was last saved can be undone.
    """

    def __init__(self, model: torch.nn.Module, device: Device) -> None:
        self._device = device
        self._buffers = [b for b in model.buffers() if b is not None]
        self._parameters = list(model.parameters())
        self._saved: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self._changing: list[torch.Tensor] | None = None
        self._restored = False
        self._rng: Any = None
        self._with_grad: list[torch.nn.Parameter] = []
        self.possible = True

    def save(self, *, grads_are_zero: bool = False) -> None:
        """Note the state before a step's forward pass.

        Args:
            grads_are_zero: Whether gradients that exist are known to be zeros; otherwise they are
                looked at.
        """
        self._rng = self._device.rng_state()
        self._with_grad = [p for p in self._parameters if p.grad is not None]
        self.possible = grads_are_zero or not any(
            bool(p.grad.any()) for p in self._with_grad if p.grad is not None
        )
        with torch.no_grad(), self._device.host_memory():
            # Of a step that was undone no buffer shows whether it changes.
            if self._changing is None and self._saved and not self._restored:
                self._changing = [
                    b
                    for b, version, copy in self._saved
                    if b._version != version or not torch.equal(b.cpu(), copy)
                ]
            buffers = self._buffers if self._changing is None else self._changing
            self._saved = [(b, b._version, b.detach().to("cpu", copy=True)) for b in buffers]
        self._restored = False

    def restore(self) -> None:
        """Bring back the state at :meth:`save`: random state, buffers, no gradient of the step."""
        self._restored = True
        had_grad = set(map(id, self._with_grad))
        with torch.no_grad():
            for buffer, _, copy in self._saved:
                buffer.copy_(copy)
            for parameter in self._parameters:
                if id(parameter) in had_grad and parameter.grad is not None:
                    parameter.grad.zero_()
                else:
                    parameter.grad = None
        self._device.set_rng_state(self._rng)


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
