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
    """

    def __init__(self, model: torch.nn.Module, device: Device) -> None:
        self._device = device
        self._buffers = [b for b in model.buffers() if b is not None]
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._saved: list[tuple[torch.Tensor, int, torch.Tensor]] = []
        self._changing: list[torch.Tensor] | None = None
        self._rng: Any = None
        self._had_grads = False

    def save(self, *, grads_resident: bool) -> None:
        """Note the state before a step's forward pass."""
        self._rng = self._device.rng_state()
        self._had_grads = grads_resident
        with torch.no_grad(), self._device.host_memory():
            if self._changing is None and self._saved:
                self._changing = [
                    b
                    for b, version, copy in self._saved
                    if b._version != version or not torch.equal(b.cpu(), copy)
                ]
            buffers = self._buffers if self._changing is None else self._changing
            self._saved = [(b, b._version, b.detach().to("cpu", copy=True)) for b in buffers]

    def restore(self) -> None:
        """Bring back the state at :meth:`save`: random state, buffers, no gradient of the step.

        Gradients that were resident are those that ``zero_grad(set_to_none=False)`` left: zeros.
        """
        with torch.no_grad():
            for buffer, _, copy in self._saved:
                buffer.copy_(copy)
            for parameter in self._parameters:
                if self._had_grads and parameter.grad is not None:
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
