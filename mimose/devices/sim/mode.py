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
from mimose.devices.sim.costs import kernel_seconds, spanned_bytes, tensors
from mimose.devices.sim.gpus import Gpu
from mimose.devices.sim.outcomes import TENSORS, Outcome, sign, work_out
from mimose.devices.sim.workspaces import blas_workspace_bytes

aten = torch.ops.aten

_MOST_OUTCOMES = 200_000
_NO_VALUE = (
    "the model reads a value of type {} that a simulation does not have, since it was computed "
    f"from floating point numbers or from more than {values.MOST_ELEMENTS} elements: "
    "run it on cuda or cpu"
)


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
        copying: While True, copies between host and device go to a stream of their own.
        unread: While True, copies on the host are kept for later and not looked at.
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
        self.passive = self.copying = self.unread = False
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
        if torch.Tag.inplace_view in func.tags:
            return self._reshape
        if any(argument.is_out for argument in func._schema.arguments):
            return self._write_out
        if torch.Tag.data_dependent_output in func.tags:
            return self._select
        if torch.Tag.dynamic_output_shape in func.tags:
            return self._select
        return self._operate

    # -- kinds of operators

    def _view(self, func: Any, args: Any, kwargs: Any) -> Any:
        output = func(*args, **kwargs)
        first = args[0] if args else None
        if type(first) in TENSORS and first.is_meta and values.has_values([first]):
            values.carry(func, args, kwargs, output, view=True)
        return output

    def _reshape(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that changes a tensor's own shape, strides or memory."""
        output = self._growing(func, args, kwargs)
        values.forget((args, kwargs))
        return output

    def _write_out(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that writes to tensors given for it, which it may resize."""
        output = self._growing(func, args, kwargs)
        if any(t.is_meta for t in tensors((args, kwargs))):
            seconds = kernel_seconds(self._gpu, func, args, {}, output)
            self._clock.launch(self._launch_seconds, seconds)
            values.forget(output)
        return output

    def _growing(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that may enlarge storages, which meta ones do without an allocator."""
        before = {id(t): t.untyped_storage().nbytes() for t in tensors((args, kwargs))}
        with self._ignored():
            output = func(*args, **kwargs)
        for tensor in tensors(output):
            num_bytes = tensor.untyped_storage().nbytes()
            if tensor.is_meta and num_bytes > before.get(id(tensor), 0):
                grown = torch.empty(num_bytes, dtype=torch.uint8, device="meta").untyped_storage()
                tensor.set_(grown, tensor.storage_offset(), tensor.shape, tensor.stride())  # type: ignore[call-overload]
        return output

    def foresee(self, func: Any, args: Any, kwargs: Any) -> int | None:
        """Return the bytes that an operator's outputs and workspace will take, where it is known.

        The outcome is worked out if need be and remembered, as when the operator runs.
        """
        if self._handlers.setdefault(func, self._handler_of(func)) != self._operate:
            return None
        signature, given = self._signed(func, args, kwargs)
        if not any(t.is_meta for t in given):
            return None
        outcome = self._outcome(signature, func, args, kwargs, given)
        if outcome is None:
            return None
        return outcome.output_bytes + (outcome.scratch_bytes if self._scratch else 0)

    def _signed(
        self, func: Any, args: Any, kwargs: Any
    ) -> tuple[tuple[Any, ...], list[torch.Tensor]]:
        key: list[Any] = [func, torch.get_default_dtype()]
        given: list[torch.Tensor] = []
        sign(args, key, given)
        if kwargs:
            for name, value in kwargs.items():
                key.append(name)
                sign((value,), key, given)
        return tuple(key), given

    def _outcome(
        self,
        signature: tuple[Any, ...],
        func: Any,
        args: Any,
        kwargs: Any,
        given: list[torch.Tensor],
    ) -> Outcome | None:
        outcome = self._outcomes.get(signature)
        if outcome is not None:
            self.num_known += 1
            return outcome
        with self._ignored():
            outcome = work_out(self._gpu, func, args, kwargs, given)
        if outcome is not None:
            if len(self._outcomes) >= _MOST_OUTCOMES:
                self._outcomes.clear()
            self._outcomes[signature] = outcome
            self.num_unknown += 1
        return outcome

    def _operate(self, func: Any, args: Any, kwargs: Any) -> Any:
        signature, given = self._signed(func, args, kwargs)
        if not given:
            return self._create(func, args, kwargs)
        if not given[0].is_meta and not any(t.is_meta for t in given):
            return func(*args, **kwargs)  # the host's own work
        outcome = self._outcome(signature, func, args, kwargs, given)
        if outcome is None:
            return func(*args, **kwargs)
        self._clock.launch(self._launch_seconds, outcome.seconds)
        result = outcome.made(given)
        if self._scratch:
            if outcome.uses_blas:
                self.take_blas_workspace()
            elif outcome.scratch_bytes:
                self._workspace(outcome.scratch_bytes)
        if outcome.carries or (outcome.mutable and values.has_values(given)):
            values.carry(func, args, kwargs, result)
        return result

    def _create(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator that takes no tensor."""
        output = func(*args, **kwargs)
        filled = func.overloadpacket not in (aten.empty, aten.empty_strided)
        if filled and isinstance(output, torch.Tensor) and output.is_meta:
            seconds = spanned_bytes(output) / self._gpu.attained_bandwidth
            self._clock.launch(self._launch_seconds, seconds + self._gpu.kernel_seconds)
            if output.numel() <= values.MOST_ELEMENTS:
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
            raise RuntimeError(_NO_VALUE.format(tensor.dtype))
        self.reads.append(number)
        return number

    def _index(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Index by positions, or by masks whose values are known: those select as many elements."""
        indices = args[1]
        masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
        if not masks:
            return self._operate(func, args, kwargs)
        if args[0].is_meta and values.value_of(args[0]) is None:
            known = [values.value_of(mask) for mask in masks]
            if all(value is not None for value in known):
                self._clock.synchronize()
                indices = list(_positions(indices))
                self.reads.append(tuple(None if i is None else len(i) for i in indices))
                return self._operate(func, (args[0], indices), kwargs)
        return self._select(func, args, kwargs)

    def _select(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator whose output's shape depends on its inputs' values."""
        given = list(tensors((args, kwargs)))
        if not any(t.is_meta for t in given):
            return func(*args, **kwargs)
        if any(values.value_of(t) is None for t in given):
            try:
                return self._operate(func, args, kwargs)
            except (NotImplementedError, RuntimeError) as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                raise RuntimeError(
                    f"the shape that {func} returns depends on values, which a simulation does not "
                    "have: mask instead of selecting, or run it on cuda or cpu"
                ) from None
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
            return self._to_host(source, dtype, pinned=bool(kwargs.get("pin_memory")))
        output = torch.empty_strided(
            source.shape, _dense_strides(source), dtype=dtype, device="meta"
        )
        self._transfer(source, pinned=bool(kwargs.get("non_blocking")), wait=False)
        if dtype in values.INTEGRAL:
            values.set_value(output, source.to(dtype, copy=True))
        return output

    def _to_host(self, source: torch.Tensor, dtype: torch.dtype, *, pinned: bool) -> torch.Tensor:
        self._transfer(source, pinned=pinned, wait=True)
        if self.unread or _offloading():
            # It comes back as it went, unread: one element stands for all of them.
            return torch.zeros((), dtype=dtype).expand(source.shape)
        value = values.value_of(source)
        if value is None and not dtype.is_floating_point:
            raise RuntimeError(_NO_VALUE.format(source.dtype))
        self.reads.append(tuple(source.shape))
        if value is None:
            return torch.full(source.shape, float("nan"), dtype=dtype)
        return value.to(dtype, copy=True)

    def _copy(self, func: Any, args: Any, kwargs: Any) -> Any:
        target, source = args[:2]
        if target.is_meta == source.is_meta:
            return self._operate(func, args, kwargs)
        if target.is_meta:
            self._transfer(source, pinned=source.is_pinned(), wait=False)
            values.forget(target)
            if target.dtype in values.INTEGRAL and target._base is None:
                values.set_value(target, source.expand(target.shape).to(target.dtype, copy=True))
            return target
        self._transfer(source, pinned=target.is_pinned(), wait=True)
        value = values.value_of(source)
        if value is not None:
            return func(target, value)
        if self.unread or _offloading():
            return target
        if not target.dtype.is_floating_point:
            raise RuntimeError(_NO_VALUE.format(source.dtype))
        return target.fill_(float("nan"))

    def _transfer(self, tensor: torch.Tensor, *, pinned: bool, wait: bool) -> None:
        gpu = self._gpu
        num_bytes = tensor.numel() * tensor.element_size()  # one on the host may be a stand-in
        if self.copying:
            # What overlaps is pinned.
            self._clock.copy(num_bytes / gpu.copy_bandwidth)
            return
        rate = gpu.copy_bandwidth if pinned else gpu.pageable_copy_bandwidth
        self._clock.launch(self._launch_seconds, num_bytes / rate)
        if wait:
            self._clock.synchronize()

    # -- workspaces

    def take_blas_workspace(self) -> None:
        """Take what cuBLAS's kernels share, once."""
        if self._scratch and not self._has_blas_workspace:
            self._keep(blas_workspace_bytes(self._gpu))
            self._has_blas_workspace = True


def _positions(indices: Any) -> Iterator[torch.Tensor | None]:
    """Yield the indices, each mask with known values as the positions that it selects."""
    for index in indices:
        if index is None or index.dtype not in (torch.bool, torch.uint8):
            yield index
            continue
        value = values.value_of(index)
        assert value is not None
        for positions in value.nonzero(as_tuple=True):
            yield torch.empty(positions.shape, dtype=torch.int64, device="meta")


def _offloading() -> bool:
    """Return whether a saved tensor is being packed, by hooks other than a checkpoint's own."""
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    hooks = None if top is None else top(False)
    return hooks is not None and hooks[0].__module__ != "torch.utils.checkpoint"


def _value_of_argument(argument: Any) -> Any:
    """Return a tensor's values, and anything else as it is."""
    return values.value_of(argument) if isinstance(argument, torch.Tensor) else argument


def _dense_strides(tensor: torch.Tensor) -> Iterator[int] | tuple[int, ...]:
    """Return the strides that a copy of ``tensor`` has: its own, if they leave no gaps."""
    return torch.empty_like(tensor, device="cpu").stride() if tensor.numel() else tensor.stride()
