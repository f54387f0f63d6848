"""Saved values that are in the host's memory between forward and backward.

They leave beside the operators that follow, and come back, in the order in which backward goes
through the blocks, one block ahead of it. So no more is under way than what two blocks send away.
Host memory lies outside of the budget.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from mimose.devices.base import Device
from mimose.runtime.channels import channel_of
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.eviction.copies import Channel
from mimose.runtime.remaking.trace import Shape, shape_of


class Away:
    """One value in the host's memory.

    Args:
        channel: What copies.
        tensor: A tensor that shows the value's storage.
    """

    __slots__ = ("_channel", "_data", "_host", "_leaving", "_shape", "_transfer", "kind")

    def __init__(self, channel: Channel, tensor: torch.Tensor) -> None:
        self.kind = tensor.device
        self._channel = channel
        self._shape: Shape = shape_of(tensor)
        self._host, self._leaving = channel.send(tensor.untyped_storage())
        self._data: torch.Tensor | None = None
        self._transfer: Any = None

    def has_left(self) -> bool:
        """Whether the copy is whole, so that the device's memory is not needed any more."""
        return self._leaving is None or self._channel.is_done(self._leaving)

    def leave(self) -> None:
        """Let what follows wait until the copy is whole."""
        if self._leaving is not None:
            self._channel.wait(self._leaving)
            self._leaving = None

    def fetch(self) -> None:
        """Start bringing the value back, unless it is there or on its way."""
        if self._data is None:
            self.leave()
            storage, self._transfer = self._channel.fetch(self._host)
            with torch._C._DisableTorchDispatch():
                empty = torch.empty(0, dtype=self._shape.dtype, device=self.kind)
                size, stride, offset, _ = self._shape
                self._data = empty.set_(storage, offset, size, stride)

    def get(self) -> torch.Tensor:
        """Return the value; what follows waits until it is back."""
        self.fetch()
        assert self._data is not None, "it was fetched"
        if self._transfer is not None:
            self._channel.wait(self._transfer)
            self._transfer = None
        return self._data


class Batch:
    """What one call of a block has sent away.

    Args:
        before: What the call before it that sent anything away did.
        finish: Lets go of the memory of all that has been sent away.

    Attributes:
        values: The values.
    """

    __slots__ = ("_before", "_begun", "_finish", "values")

    def __init__(self, before: Batch | None, finish: Callable[[], None]) -> None:
        self.values: dict[int, Away] = {}
        self._before = before
        self._finish = finish
        self._begun = False

    def begin_backward(self) -> None:
        """Bring back what this call sent away and, beside its backward, what the one before did."""
        if self._begun:
            return
        self._begun = True
        self.fetch()
        # What was saved holds each for itself, no longer than it is needed.
        self.values = {}
        if self._before is not None:
            self._before.fetch()
            self._before = None

    def fetch(self) -> None:
        """Start bringing all of it back."""
        self._finish()
        for away in self.values.values():
            away.fetch()


class Offloads:
    """Sends values away, batch by batch.

    Args:
        device: What they are copied from.

    Attributes:
        moved_bytes: Bytes sent away so far.
    """

    def __init__(self, device: Device) -> None:
        self.moved_bytes = 0
        self._device = device
        self._channel: Channel | None = None
        self._last: Batch | None = None
        # What is on its way, batch by batch, with the memory that is copied from.
        self._leaving: deque[list[tuple[Away, torch.Tensor]]] = deque()

    @property
    def channel(self) -> Channel:
        """What copies; made, and its bandwidth measured, when it is first asked for."""
        if self._channel is None:
            self._channel = channel_of(self._device)
        return self._channel

    def begin(self) -> None:
        """Note that a forward pass begins: what comes back earlier belongs to no call before."""
        self._last = None
        self.poll()

    def watch(self, output: Any) -> None:
        """Bring what was sent away last back as soon as a gradient comes to the model's output.

        Its block's own backward would wait for it otherwise.
        """
        last, self._last = self._last, None
        if last is not None:
            for tensor in tensors_in(output):
                if tensor.requires_grad:
                    tensor.register_hook(lambda _: last.fetch())

    def send(self, tensors: dict[int, torch.Tensor]) -> Batch:
        """Send values away, having waited for those of all batches but the last.

        Args:
            tensors: By value, a tensor that shows its storage.
        """
        while len(self._leaving) > 1:
            self._let_go(self._leaving.popleft())
        batch = self._last = Batch(self._last, self.finish)
        leaving = []
        for value, tensor in tensors.items():
            away = batch.values[value] = Away(self.channel, tensor)
            leaving.append((away, tensor))
            self.moved_bytes += tensor.untyped_storage().nbytes()
        self._leaving.append(leaving)
        return batch

    def poll(self) -> None:
        """Let go of the memory of what has left."""
        while self._leaving and all(away.has_left() for away, _ in self._leaving[0]):
            self._let_go(self._leaving.popleft())

    def finish(self) -> None:
        """Let go of all that is on its way."""
        while self._leaving:
            self._let_go(self._leaving.popleft())

    def _let_go(self, leaving: list[tuple[Away, torch.Tensor]]) -> None:
        for away, _ in leaving:
            away.leave()
