"""Record one forward of a block: its operators, what they make and what of it is saved.

The record is made below autograd by a dispatch mode, once for each size and kind of a block's
arguments. Two things come of it: a :class:`mimose.menu.BlockGraph`, by which planners choose, and
the :class:`Step` of each operator, by which :mod:`mimose.runtime.remaking.recipes` runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mimose.devices.base import Device
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.remaking import rules
from mimose.runtime.remaking.casts import Casts
from mimose.runtime.remaking.draft import Draft, Record, Value
from mimose.runtime.remaking.finishing import trace_of
from mimose.runtime.remaking.reads import Chance, Reads
from mimose.runtime.remaking.trace import (
    Given,
    Ref,
    Trace,
    covers,
    is_plain,
    same_storage,
    shape_of,
    storage_of,
    tensors_among,
)
from mimose.solvers.packing import ROUND, round_up

_SKIPPED = frozenset(("detach", "alias"))
_STRANGE = Given(-1)


class Tracer(TorchDispatchMode):
    """Records what runs while it is on; enter it through :func:`tracing`.

    Args:
        module: The block.
        arguments: The leaves of its call's arguments.
        device: What tells the time.
        casts: Copies of parameters that autocast holds.

    Attributes:
        draft: The record.
    """

    supports_higher_order_operators = True

    def __init__(
        self,
        module: torch.nn.Module,
        arguments: Sequence[Any],
        device: Device,
        casts: Casts | None = None,
    ) -> None:
        super().__init__()
        self.draft = Draft()
        self._device = device
        self._casts = casts or Casts()
        self._current: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._given: dict[int, Given] = {}
        self._chance = Chance()
        kind = device.torch_device.type
        autocast = kind != "meta" and torch.is_autocast_enabled(kind)
        self._cached = (
            torch.get_autocast_dtype(kind)
            if autocast and torch.is_autocast_cache_enabled()
            else None
        )
        for owner in module.modules():
            for held in (owner._parameters, owner._buffers):
                for name, tensor in held.items():
                    if tensor is not None and is_plain(tensor):
                        self._give(tensor, Given(-1, owner, name))
        for place, leaf in enumerate(arguments):
            if isinstance(leaf, torch.Tensor) and is_plain(leaf):
                self._give(leaf, Given(place))

    def _give(self, tensor: torch.Tensor, given: Given) -> None:
        key = storage_of(tensor)
        known = self._given.get(key)
        if known is None or (known.place >= 0 and given.place >= 0):
            self._given.setdefault(key, given)
        else:
            # Two names: another call may find two tensors.
            self._given[key] = _STRANGE
        # Held, so that no other storage comes to be where this one was.
        self.draft.taken[given] = tensor

    def __enter__(self) -> Tracer:
        """Begin to record."""
        self.draft.nodes = -_nodes()
        return super().__enter__()  # type: ignore[no-any-return]

    def __exit__(self, *error: Any) -> None:
        """End."""
        super().__exit__(*error)
        self.draft.nodes += _nodes()

    # -- what is saved

    def note(self, tensor: torch.Tensor) -> None:
        """Note a tensor that is saved for backward, the next one in order."""
        self.draft.marks.append(_nodes())
        with torch._C.DisableTorchFunction():
            if not is_plain(tensor):
                self.draft.packs.append(None)
                return
            source = self._source(tensor)
            value = source if isinstance(source, int) else -1
            self.draft.packs.append((value, storage_of(tensor), shape_of(tensor)))

    # -- what runs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and record it."""
        kwargs = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):
            return self._run_unknown(func, args, kwargs)
        name = rules.name_of(func)
        if name in _SKIPPED:
            return func(*args, **kwargs)
        start = self._device.now()
        result = func(*args, **kwargs)
        stamps = (start, self._device.now())
        with torch._C.DisableTorchFunction():
            if rules.is_view(func) and same_storage(args[0], result):
                return result
            self._record(name, func, args, kwargs, result, stamps)
            if rules.reads_data(func, args, result):
                self.tell()
        return result

    def tell(self) -> None:
        """Note that values of tensors are handed to the program, which may go by them."""
        if self.draft.firm < 0:
            self.draft.firm = len(self.draft.packs)

    def reach(self, tensor: torch.Tensor) -> None:
        """Note that a tensor's memory is handed out, and may be written to unseen."""
        if is_plain(tensor):
            self._overwrite("memory", tensor, [tensor], None)

    def _run_unknown(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator of which nothing is known, not even what it changes."""
        result = func(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            for tensor in pytree.tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor):
                    self.reach(tensor)
        return result

    def _record(
        self,
        name: str,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
        stamps: tuple[Any, Any],
    ) -> None:
        given = tensors_among((args, kwargs))
        storages = {storage_of(t) for t in given if is_plain(t)}
        if func._schema.is_mutable and not rules.is_norm(func):
            self._change(name, func, args, kwargs, stamps, given)
            return
        for tensor in rules.changed_unseen(func, args):
            source = self._source(tensor)
            if isinstance(source, Given):
                self.draft.changed.add(source)
        made = list[tuple[int, torch.Tensor]]()
        leaves = (result,) if isinstance(result, torch.Tensor) else pytree.tree_leaves(result)
        for place, tensor in enumerate(leaves):
            if not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
                continue
            key = storage_of(tensor)
            if not (key in storages or key in self._given or key in self._current):
                storages.add(key)
                made.append((place, tensor))
        if not made:
            return
        drop = rules.dropout(func, args, result)
        if drop is not None:
            self._record_dropout(result, drop, stamps, given)
            return
        record = self._start(name, given, stamps, rules.again(func, args, kwargs))
        for place, tensor in made:
            value = self._new(tensor, record)
            record.wanted.append((place, value, shape_of(tensor)))
            if name == "_to_copy" and tensor.dtype == self._cached:
                self._hold(value, tensor, func, args, kwargs)

    def _hold(self, value: int, copy: torch.Tensor, func: Any, args: Any, kwargs: Any) -> None:
        """Note a copy of a parameter, which autocast holds until it ends."""
        source = self._source(args[0])
        if isinstance(source, Given) and source.owner is not None:
            parameter = source.owner._parameters.get(source.name)
            if parameter is not None and parameter.requires_grad:
                self.draft.fixed.add(value)
                self.draft.copied += 1
                self._casts.add(copy, source, parameter, func, kwargs)

    def _held(self, tensor: torch.Tensor) -> int | None:
        """Return the value of a copy that autocast has held since before this call, if it is."""
        cast = None if self._cached is None else self._casts.find(tensor)
        if cast is None or self.draft.taken.get(cast.source) is not cast.parameter:
            return None
        again = rules.again(cast.function, (cast.parameter,), cast.kwargs)
        record = self._start("to_copy", [cast.parameter], None, again)
        value = self._new(tensor, record)
        record.wanted.append((0, value, shape_of(tensor)))
        self.draft.fixed.add(value)
        self.draft.found += 1
        return value

    def _record_dropout(
        self,
        result: Any,
        again: rules.Again,
        stamps: tuple[Any, Any],
        given: list[torch.Tensor],
    ) -> None:
        output, mask = result[0], result[1]
        first = self._start("dropout_mask", given, None, None)
        first.wanted.append((1, self._new(mask, first), shape_of(mask)))
        second = self._start("dropout", [*given, mask], stamps, again)
        second.wanted.append((0, self._new(output, second), shape_of(output)))

    def _start(
        self,
        name: str,
        given: Iterable[torch.Tensor],
        stamps: tuple[Any, Any] | None,
        again: rules.Again | None,
    ) -> Record:
        """Begin the record of an operator; one that runs again reads what its second form reads."""
        if self.draft.firm >= 0:
            again = None
        record = Record(name.strip("_"), set(), [], stamps, None)
        able = again is not None
        if again is not None:
            given = tensors_among((again.args, again.kwargs))
        for tensor in given:
            source = self._source(tensor)
            if isinstance(source, int):
                record.inputs.add(source)
                if self.draft.values[source].dtype != tensor.dtype:
                    able = False
            else:
                record.given.append(source)
                if source is _STRANGE:
                    able = False
            if tensor.is_conj() or tensor.is_neg():
                able = False
        if again is not None and able:
            record.args = tuple(self._withouttensors_among(a) for a in again.args)
            record.kwargs = {k: self._withouttensors_among(a) for k, a in again.kwargs.items()}
            record.function = again.function
        # Now only: looking at what it reads may record where that comes from.
        self.draft.records.append(record)
        return record

    def _source(self, tensor: torch.Tensor) -> int | Given:
        if not is_plain(tensor):
            return _STRANGE
        key = storage_of(tensor)
        value = self._current.get(key)
        if value is not None:
            return value
        given = self._given.get(key)
        if given is not None:
            return given
        value = self._held(tensor)
        if value is not None:
            return value
        # The reference keeps the identity from being another storage's later.
        self._references.append(StorageWeakRef(tensor.untyped_storage()))
        given = self._given[key] = Given(-1, storage=key)
        return given

    def _withouttensors_among(self, argument: Any) -> Any:
        """Replace the tensors of an operator's argument by what tells them again."""
        if isinstance(argument, torch.Tensor):
            return Ref(self._source(argument), shape_of(argument))
        if isinstance(argument, (list, tuple)):
            return [self._withouttensors_among(a) for a in argument]
        return argument

    def _new(self, tensor: torch.Tensor, record: Record) -> int:
        """Number the value that an operator has made."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        # The reference keeps the identity from being another storage's later.
        self._references.append(StorageWeakRef(storage))
        value = len(self.draft.values)
        self.draft.values.append(Value(key, round_up(storage.nbytes(), ROUND), tensor.dtype))
        self._current[key] = value
        record.outputs.append(value)
        return value

    def _change(
        self,
        name: str,
        func: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        stamps: tuple[Any, Any],
        given: list[torch.Tensor],
    ) -> None:
        """Record an operator that changes tensors: each gets a new value."""
        functional = rules.in_place(func)
        for tensor in tensors_among(rules.changed(func, args, kwargs)):
            again = None
            if functional is not None and tensor is args[0] and covers(tensor):
                again = rules.again(functional, args, kwargs)
            self._overwrite(name, tensor, given, stamps, again)

    def _overwrite(
        self,
        name: str,
        tensor: torch.Tensor,
        given: list[torch.Tensor],
        stamps: tuple[Any, Any] | None,
        again: rules.Again | None = None,
    ) -> None:
        source = self._source(tensor)
        if isinstance(source, Given):
            # Nobody knows when others read it.
            self.draft.changed.add(source)
            return
        record = self._start(name, given, stamps, again)
        record.wanted.append((0, self._new(tensor, record), shape_of(tensor)))

    # -- what comes of it

    def finish(self, result: Any) -> Trace:
        """Return the trace of a call that returned ``result``; may wait for the device."""
        if self._chance.taken():
            self.draft.firm = 0
        outputs = {storage_of(t) for t in tensors_in(result) if is_plain(t)}
        return trace_of(self.draft, outputs, self._device.seconds_between)


def tracing(tracer: Tracer, also: Callable[[torch.Tensor], None] | None = None) -> Any:
    """Return a context that traces and lists what is saved, which is kept as it comes.

    Args:
        tracer: What records.
        also: Called with each tensor that is saved.
    """

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tracer.note(tensor)
        if also is not None:
            also(tensor)
        return tensor.detach()

    stack = ExitStack()
    stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))
    stack.enter_context(recording(tracer))
    return stack


def recording(tracer: Tracer) -> ExitStack:
    """Return a context in which all that runs is recorded."""
    stack = ExitStack()
    stack.enter_context(tracer)
    stack.enter_context(Reads(tracer.tell, tracer.reach))
    return stack


def _nodes() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]
