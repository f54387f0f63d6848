"""What operators do for inputs of one signature, remembered.

PyTorch works out an operator's output shapes on meta mostly in Python, at a quarter of a
millisecond each. The outcome depends on the inputs' shapes, strides and types alone, so that it is
remembered by them; the second time the outputs are allocated directly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mimose.devices.sim.costs import kernel_seconds, tensors
from mimose.devices.sim.gpus import Gpu
from mimose.devices.sim.values import CONSTANTS, INTEGRAL
from mimose.devices.sim.workspaces import scratch_bytes, uses_blas

TENSORS = (torch.Tensor, torch.nn.Parameter)
"""The types of plain tensors."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """An output with memory of its own."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        """Bytes from the first element to the last."""
        if 0 in self.shape:
            return 0
        last = sum((size - 1) * step for size, step in zip(self.shape, self.stride))
        return (last + 1) * self.dtype.itemsize

    def made(self) -> torch.Tensor:
        """Return such a tensor."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device="meta")


@dataclass(frozen=True, slots=True)
class Given:
    """An output that is an argument: the place of a tensor among the flattened ones."""

    place: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an operator does.

    Attributes:
        outputs: A :class:`Fresh` or :class:`Given` for each tensor, other values as they are.
        kind: None for a single output, else the type of their container.
        seconds: Time of its kernel.
        scratch_bytes: Memory that the kernel takes while it runs.
        uses_blas: Whether the kernel is cuBLAS's, which has a workspace.
        carries: Whether an output's values may be worth carrying along.
        mutable: Whether an argument is changed in place.
    """

    outputs: tuple[Any, ...]
    kind: type | None
    seconds: float
    scratch_bytes: int
    uses_blas: bool
    carries: bool
    mutable: bool

    @property
    def output_bytes(self) -> int:
        """What the allocator takes for the outputs: each a multiple of 512 bytes."""
        fresh = (each for each in self.outputs if type(each) is Fresh)
        return sum((each.num_bytes + 511) & -512 for each in fresh)

    def made(self, given: list[torch.Tensor]) -> Any:
        """Return the outputs, for the tensors that were given."""
        if self.kind is None:
            return _made(self.outputs[0], given)
        return self.kind(_made(each, given) for each in self.outputs)


def sign(arguments: Any, key: list[Any], given: list[torch.Tensor]) -> None:
    """Append to ``key`` what an outcome depends on, and to ``given`` the tensors."""
    for argument in arguments:
        kind = type(argument)
        if kind in TENSORS:
            key += (argument.shape, argument.stride(), argument.dtype)
            given.append(argument)
        elif kind is list or kind is tuple:
            key.append(len(argument))
            sign(argument, key, given)
        elif kind is float:
            # Shapes do not depend on it, and an optimizer's change with every step.
            key.append(float)
        elif kind is bool or kind is complex:
            key += (kind, argument)  # 1, True and 1+0j are equal, and their results are not
        elif isinstance(argument, torch.Tensor):
            key += (argument.shape, argument.stride(), argument.dtype)
            given.append(argument)
        else:
            key.append(argument)


def work_out(
    gpu: Gpu, func: Any, args: Any, kwargs: Any, given: list[torch.Tensor]
) -> Outcome | None:
    """Run an operator and return its outcome; None if its output is a view after all."""
    output = func(*args, **kwargs)
    several = isinstance(output, list | tuple)
    outputs = list(output) if several else [output]
    storages = {t.untyped_storage()._cdata for t in given}
    described: list[Any] = []
    for each in outputs:
        if not isinstance(each, torch.Tensor):
            if isinstance(each, list | tuple):
                return None
            described.append(each)
            continue
        place = next((i for i, t in enumerate(given) if t is each), None)
        if place is not None:
            described.append(Given(place))
        elif each.untyped_storage()._cdata in storages or not each.is_meta:
            return None
        else:
            described.append(Fresh(tuple(each.shape), each.stride(), each.dtype))
    return Outcome(
        tuple(described),
        type(output) if several else None,
        kernel_seconds(gpu, func, args, kwargs, output),
        scratch_bytes(func, args),
        uses_blas(func),
        func.overloadpacket in CONSTANTS or any(t.dtype in INTEGRAL for t in tensors(outputs)),
        func._schema.is_mutable,
    )


def _made(described: Any, given: list[torch.Tensor]) -> Any:
    kind = type(described)
    if kind is Fresh:
        return described.made()
    return given[described.place] if kind is Given else described
