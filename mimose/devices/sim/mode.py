"""Runs operators on meta tensors as a GPU would: memory counted, time charged, results remembered.

Whatever an operator allocates while its outcome is worked out counts nowhere
(:mod:`mimose.devices.sim.outcomes`): those are no real kernel's temporaries. Worked out or
remembered, it ends in the same allocations in the same order: cold and remembered runs agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mimose.devices.sim import values
from mimose.devices.sim.clock import Clock
from mimose.devices.sim.costs import spanned_bytes, tensors
from mimose.devices.sim.gpus import Gpu
from mimose.devices.sim.outcomes import TENSORS, Outcome, sign, work_out
from mimose.devices.sim.workspaces import blas_workspace_bytes

aten = torch.ops.aten


class Simulation(TorchDispatchMode):
    """The dispatch mode of an open simulated device.

    Args:
        gpu: The GPU.
        clock: Its clock.
        ignored: Enters a scope in which allocations count nowhere.
        workspace: Takes and gives back bytes; raises ``torch.OutOfMemoryError``.
        keep: Takes bytes for as long as the device is open; likewise.
        scratch: Whether kernels take the memory that CUDA's do.

    Attributes:
        passive: While True, operators run as they are and take no time.
        reads: The values that the program read since this list was last emptied.
        num_known: Operators whose outcome was remembered, and ``num_unknown``, those that had to
            be worked out.
    """

    def __init__(
        self,
        gpu: Gpu,
        clock: Clock,
        ignored: Callable[[], contextlib.AbstractContextManager[None]],
        workspace: Callable[[int], None],
        keep: Callable[[int], None],
        scratch: bool = True,
    ) -> None:
        super().__init__()
        self.passive = False
        self.reads: list[Any] = []
        self.num_known = self.num_unknown = 0
        self._gpu = gpu
        self._clock = clock
        self._ignored = ignored
        self._workspace = workspace
        self._keep = keep
        self._outcomes: dict[tuple[Any, ...], Outcome] = {}
        self._handlers: dict[Any, Callable[..., Any]] = {}
        self._scratch = scratch
        self._has_blas_workspace = False
        self._launch_seconds = gpu.launch_seconds
        self._special: dict[Any, Callable[..., Any]] = {
            aten._local_scalar_dense.default: self._read,
            aten._to_copy.default: self._to_copy,
            aten.copy_.default: self._copy,
            aten.equal.default: self._equal,
            aten.index.Tensor: self._index,
        }

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator."""
        kwargs = kwargs or {}
        if self.passive:
            return func(*args, **kwargs)
        handler = self._handlers.get(func)
        if handler is None:
            handler = self._handlers[func] = self._handler_of(func)
        return handler(func, args, kwargs)

    def _handler_of(self, func: Any) -> Callable[..., Any]:
        if func in self._special:
            return self._special[func]
        returns = func._schema.returns
        if returns and all(r.alias_info is not None and not r.alias_info.is_write for r in returns):
            return self._view
        if torch.Tag.data_dependent_output in func.tags:
            return self._select
        if torch.Tag.dynamic_output_shape in func.tags:
            return self._select
        return self._operate

    # -- kinds of operators

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        output = func(*args, **kwargs)
        if (
            args
            and type(args[0]) in TENSORS
            and args[0].dtype in values.INTEGRAL
            and args[0].is_meta
        ):
            values.carry(func, args, kwargs, output)
        return output

    def _operate(self, func: Any, args: Any, kwargs: Any) -> Any:
        key: list[Any] = [func]
        given: list[torch.Tensor] = []
        sign(args, key, given)
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                sign((value,), key, given)
        if not given:
            return self._create(func, args, kwargs)
        if not given[0].is_meta and not any(t.is_meta for t in given):
            return func(*args, **kwargs)  # the host's own work
        signature = tuple(key)
        outcome = self._outcomes.get(signature)
        if outcome is None:
            with self._ignored():
                outcome = work_out(self._gpu, func, args, kwargs, given)
            if outcome is None:
                return func(*args, **kwargs)
            self._outcomes[signature] = outcome
            self.num_unknown += 1
        else:
            self.num_known += 1
        self._clock.launch(self._launch_seconds, outcome.seconds)
        result = outcome.made(given)
        if self._scratch:
            if outcome.uses_blas:
                self._take_blas_workspace()
            elif outcome.scratch_bytes:
                self._workspace(outcome.scratch_bytes)
        if outcome.integral:
            values.carry(func, args, kwargs, result)
        return result

    def _create(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that takes no tensor."""
        output = func(*args, **kwargs)
        filled = func.overloadpacket not in (aten.empty, aten.empty_strided)
        if filled and isinstance(output, torch.Tensor) and output.is_meta:
            seconds = spanned_bytes(output) / self._gpu.attained_bandwidth
            self._clock.launch(self._launch_seconds, seconds + self._gpu.kernel_seconds)
            if output.dtype in values.INTEGRAL and output.numel() <= values.MOST_ELEMENTS:
                values.carry(func, args, kwargs, output)
        return output

    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Hand a tensor's value to the program, which waits for the device meanwhile."""
        tensor = args[0]
        if not tensor.is_meta:
            return func(*args, **kwargs)
        self._clock.synchronize()
        value = values.value_of(tensor)
        if value is not None:
            number = value.item()
        elif tensor.dtype.is_floating_point:
            number = float("nan")
        else:
            raise RuntimeError(
                f"the model reads a value of type {tensor.dtype} that was computed from floating "
                "point numbers, which a simulation does not have: run it on cuda or cpu"
            )
        self.reads.append(number)
        return number

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        masks = [i for i in args[1] if i is not None and i.dtype in (torch.bool, torch.uint8)]
        return (self._select if masks else self._operate)(func, args, kwargs)

    def _select(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator whose output's shape depends on its inputs' values."""
        given = list(tensors((args, kwargs)))
        if not any(t.is_meta for t in given):
            return func(*args, **kwargs)
        if any(values.value_of(t) is None for t in given):
            raise RuntimeError(
                f"the shape that {func} returns depends on values, which a simulation does not "
                "have: mask instead of selecting, or run it on cuda or cpu"
            )
        self._clock.synchronize()
        replaced, named = pytree.tree_map(_value_of_argument, (args, kwargs))
        output = func(*replaced, **named)
        self.reads.append(tuple(output.shape))
        placed = torch.empty_like(output, device="meta")
        values.set_value(placed, output)
        return placed

    def _equal(self, func: Any, args: Any, kwargs: Any) -> Any:
        first, second = args
        if not first.is_meta and not second.is_meta:
            return func(first, second)
        self._clock.synchronize()
        known = [values.value_of(t) for t in (first, second)]
        same: bool = first.shape == second.shape and (
            any(value is None for value in known) or torch.equal(*known)
        )
        self.reads.append(same)
        return same

    # -- copies between host and device

    def _to_copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        source = args[0]
        target = torch.device(kwargs.get("device") or source.device)
        if source.is_meta == (target.type == "meta"):
            return self._operate(func, args, kwargs)
        dtype = kwargs.get("dtype") or source.dtype
        if source.is_meta:
            self._transfer(source, pinned=bool(kwargs.get("pin_memory")), wait=True)
            value = values.value_of(source)
            if value is not None:
                return value.to(dtype)
            # Its values are unknown anyway: one element stands for all of them.
            return torch.zeros((), dtype=dtype).expand(source.shape)
        output = torch.empty_strided(
            source.shape, _dense_strides(source), dtype=dtype, device="meta"
        )
        self._transfer(source, pinned=bool(kwargs.get("non_blocking")), wait=False)
        values.set_value(output, source.to(dtype, copy=True))
        return output

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[:2]
        if target.is_meta == source.is_meta:
            return self._operate(func, args, kwargs)
        if target.is_meta:
            self._transfer(source, pinned=source.is_pinned(), wait=False)
            values.set_value(target, source.expand(target.shape).to(target.dtype, copy=True))
            return target
        self._transfer(source, pinned=target.is_pinned(), wait=True)
        value = values.value_of(source)
        return target if value is None else func(target, value)

    def _transfer(self, tensor: torch.Tensor, *, pinned: bool, wait: bool) -> None:
        gpu = self._gpu
        rate = gpu.copy_bandwidth if pinned else gpu.pageable_copy_bandwidth
        self._clock.launch(self._launch_seconds, spanned_bytes(tensor) / rate)
        if wait:
            self._clock.synchronize()

    # -- workspaces

    def _take_blas_workspace(self) -> None:
        if not self._has_blas_workspace:
            self._keep(blas_workspace_bytes(self._gpu))
            self._has_blas_workspace = True


def _value_of_argument(argument: Any) -> Any:
    """Return a tensor's values, and anything else as it is."""
    return values.value_of(argument) if isinstance(argument, torch.Tensor) else argument


def _dense_strides(tensor: torch.Tensor) -> Iterator[int] | tuple[int, ...]:
    """Return the strides that a copy of ``tensor`` has: its own, if they leave no gaps."""
    return torch.empty_like(tensor, device="cpu").stride() if tensor.numel() else tensor.stride()
