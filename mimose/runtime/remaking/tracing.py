"""Record one forward of a block: its operators, what they make and what of it is saved.

The record is made below autograd by a dispatch mode, once for each size and kind of a block's
arguments. Two things come of it: a :class:`mimose.menu.BlockGraph`, by which planners choose, and the
:class:`Step` of each operator, by which :mod:`mimose.runtime.remaking.recipes` runs it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mimose.devices.base import Device
from mimose.menu import BlockGraph, Operator, Traced
from mimose.runtime.dataflow import tensors_in
from mimose.runtime.remaking import rules
from mimose.solvers.packing import ROUND, round_up


class Shape(NamedTuple):
    """How a tensor lies in its storage."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


class Given(NamedTuple):
    """A storage that was there before the block's call.

    Attributes:
        place: The place of an argument among the leaves of all arguments, or -1.
        owner: The module that holds the parameter or buffer, if it is one.
        name: Its name there.
    """

    place: int
    owner: torch.nn.Module | None = None
    name: str = ""


class Ref(NamedTuple):
    """A tensor argument of an operator: whose storage, and how it lies there."""

    source: int | Given
    shape: Shape


@dataclass(frozen=True, slots=True)
class Step:
    """How an operator runs again.

    Attributes:
        function: What to call.
        args: Its arguments, with a :class:`Ref` for each tensor.
        kwargs: Its keyword arguments, likewise.
        outputs: For each tensor that it returns and that is wanted, its place among the leaves of
            what it returns, the value that it is and how it lay the first time.
        given: What it reads of what was there before the call.
    """

    function: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[tuple[int, int, Shape], ...]
    given: tuple[Given, ...]


class Pack(NamedTuple):
    """A tensor that was saved for backward.

    Attributes:
        value: The value that it shows; -1 if that is none of the block's own, or not to be dropped.
        shape: How it lies.
    """

    value: int
    shape: Shape


@dataclass(frozen=True, slots=True)
class Trace:
    """What one forward of a block has shown.

    Attributes:
        graph: For planners.
        steps: For each operator of the graph how it runs again, None if it cannot.
        packs: What was saved, in that order.
        bytes: Of each value, as the allocator rounds.
        seconds: Of each operator.
    """

    graph: BlockGraph
    steps: tuple[Step | None, ...]
    packs: tuple[Pack, ...]
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def traced(self, block: int) -> Traced:
        """Return what planners are told, for the block of this number."""
        return Traced(block, self.graph, self.bytes, self.seconds)


def shape_of(tensor: torch.Tensor) -> Shape:
    """Return how a tensor lies in its storage."""
    return Shape(tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype)


@dataclass(slots=True)
class _Value:
    """A value in the making: what made it, of how many bytes and of which type."""

    storage: int
    bytes: int
    dtype: torch.dtype


@dataclass(slots=True)
class _Record:
    """An operator in the making."""

    name: str
    inputs: set[int]
    outputs: list[int]
    seconds: tuple[Any, Any] | None
    again: rules.Again | None
    given: list[Given] = field(default_factory=list)
    wanted: list[tuple[int, int, Shape]] = field(default_factory=list)
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


_STRANGE = Given(-1)
_SKIPPED = frozenset(("detach", "alias"))


class Tracer(TorchDispatchMode):
    """Records what runs while it is on.

    Args:
        module: The block.
        arguments: The leaves of its call's arguments.
        device: What tells the time.
    """

    def __init__(
        self, module: torch.nn.Module, arguments: Sequence[Any], device: Device
    ) -> None:
        super().__init__()
        self._device = device
        self._records: list[_Record] = []
        self._values: list[_Value] = []
        self._current: dict[int, int] = {}
        self._references: list[StorageWeakRef] = []
        self._given: dict[int, Given] = {}
        self._changed: set[Given] = set()
        self._packs: list[tuple[int, Shape] | None] = []
        self._told = False
        for owner in module.modules():
            for held in (owner._parameters, owner._buffers):
                for name, tensor in held.items():
                    if tensor is not None and _plain(tensor):
                        self._given.setdefault(_storage(tensor), Given(-1, owner, name))
        for place, leaf in enumerate(arguments):
            if isinstance(leaf, torch.Tensor) and _plain(leaf):
                self._given[_storage(leaf)] = Given(place)

    # -- what is saved

    def note(self, tensor: torch.Tensor) -> None:
        """Note a tensor that is saved for backward, the next one in order."""
        if not _plain(tensor):
            self._packs.append(None)
            return
        self._packs.append((self._current.get(_storage(tensor), -1), shape_of(tensor)))

    # -- what runs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator and record it."""
        kwargs = kwargs or {}
        name = rules.name_of(func)
        if name in _SKIPPED:
            return func(*args, **kwargs)
        start = self._device.now()
        result = func(*args, **kwargs)
        stamps = (start, self._device.now())
        if rules.reads_data(func):
            self._told = True
        given = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        storages = {_storage(t): t for t in given if _plain(t)}
        if func._schema.is_mutable and not self._is_norm(name, func):
            self._change(name, func, args, kwargs, stamps, given)
            return result
        made = [
            (place, t)
            for place, t in enumerate(pytree.tree_leaves(result))
            if isinstance(t, torch.Tensor) and _plain(t) and _storage(t) not in storages
        ]
        made = [(place, t) for place, t in made if not self._shows_known(t)]
        if not made:
            return result
        drop = rules.dropout(func, args, result)
        if drop is not None:
            self._record_dropout(args, result, drop, stamps, given)
            return result
        record = self._start(name, given, stamps, rules.again(func, args, kwargs))
        for place, tensor in made:
            record.wanted.append((place, self._new(tensor, record), shape_of(tensor)))
        self._refer(record)
        return result

    def _shows_known(self, tensor: torch.Tensor) -> bool:
        """Whether an output lies in a storage that is known, or in none."""
        storage = _storage(tensor)
        return storage in self._given or storage in self._current

    def _is_norm(self, name: str, func: Any) -> bool:
        return name == "_native_batch_norm_legit" and func._overloadname == ""

    def _record_dropout(
        self,
        args: Sequence[Any],
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
        self._refer(second)

    def _start(
        self,
        name: str,
        given: Iterable[torch.Tensor],
        stamps: tuple[Any, Any] | None,
        again: rules.Again | None,
    ) -> _Record:
        """Begin the record of an operator that reads ``given``."""
        record = _Record(name.strip("_"), set(), [], stamps, again)
        self._records.append(record)
        for tensor in given:
            source = self._source(tensor)
            if isinstance(source, int):
                record.inputs.add(source)
                if self._values[source].dtype != tensor.dtype:
                    record.again = None
            else:
                record.given.append(source)
                if source is _STRANGE:
                    record.again = None
            if tensor.is_conj() or tensor.is_neg():
                record.again = None
        return record

    def _source(self, tensor: torch.Tensor) -> int | Given:
        if not _plain(tensor):
            return _STRANGE
        storage = _storage(tensor)
        value = self._current.get(storage)
        return self._given.get(storage, _STRANGE) if value is None else value

    def _refer(self, record: _Record) -> None:
        """Replace the tensors of an operator's arguments by what tells them again."""
        if record.again is None:
            return
        record.args = tuple(self._without_tensors(a) for a in record.again.args)
        record.kwargs = {k: self._without_tensors(a) for k, a in record.again.kwargs.items()}
        record.again = rules.Again(record.again.function, (), {})

    def _without_tensors(self, argument: Any) -> Any:
        if isinstance(argument, torch.Tensor):
            return Ref(self._source(argument), shape_of(argument))
        if isinstance(argument, (list, tuple)):
            return [self._without_tensors(a) for a in argument]
        return argument

    def _new(self, tensor: torch.Tensor, record: _Record) -> int:
        """Number the value that an operator has made."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        # The reference keeps the identity from being another storage's later.
        self._references.append(StorageWeakRef(storage))
        value = len(self._values)
        self._values.append(_Value(key, round_up(storage.nbytes(), ROUND), tensor.dtype))
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
        changed = [
            argument
            for schema, argument in _arguments(func, args, kwargs)
            if schema.alias_info is not None and schema.alias_info.is_write
        ]
        functional = rules.in_place(func)
        for tensor in pytree.tree_leaves(changed):
            if not isinstance(tensor, torch.Tensor):
                continue
            source = self._source(tensor)
            if not isinstance(source, int):
                if source is not _STRANGE:
                    self._changed.add(source)
                elif _plain(tensor):
                    # Nobody knows what else shows it: a value that cannot be made again.
                    self._new(tensor, self._start(name, given, stamps, None))
                continue
            again = None
            if functional is not None and tensor is args[0] and _covers(tensor):
                again = rules.again(functional, args, kwargs)
            record = self._start(name, given, stamps, again)
            self._refer(record)
            record.wanted.append((0, self._new(tensor, record), shape_of(tensor)))

    # -- what comes of it

    def finish(self, result: Any) -> Trace:
        """Return the trace of a call that returned ``result``; may wait for the device."""
        final = {value.storage: number for number, value in enumerate(self._values)}
        last = set(final.values())
        fixed = {
            final[_storage(t)]
            for t in tensors_in(result)
            if _plain(t) and _storage(t) in final
        }
        packs = [self._pack(entry, last) for entry in self._packs]
        saved = [pack.value for pack in packs if pack.value >= 0]
        return self._pruned(saved, fixed.intersection(saved), packs)

    def _pack(self, entry: tuple[int, Shape] | None, last: set[int]) -> Pack:
        if entry is None:
            return Pack(-1, _NO_SHAPE)
        value, shape = entry
        usable = value in last and self._values[value].dtype == shape.dtype
        return Pack(value if usable else -1, shape)

    def _pruned(self, saved: list[int], fixed: set[int], packs: list[Pack]) -> Trace:
        """Leave out what nothing that is saved was made from, and number the rest anew."""
        maker = {value: record for record in self._records for value in record.outputs}
        needed: dict[int, _Record] = {}
        pending = list(saved)
        while pending:
            record = maker[pending.pop()]
            if id(record) not in needed:
                needed[id(record)] = record
                pending.extend(record.inputs)
        kept = [record for record in self._records if id(record) in needed]
        numbers: dict[int, int] = {}
        for record in kept:
            for value in record.outputs:
                numbers[value] = len(numbers)
        operators, steps, seconds = [], [], []
        for record in kept:
            step = self._step(record, numbers)
            operators.append(
                Operator(
                    record.name,
                    tuple(sorted(numbers[v] for v in record.inputs)),
                    tuple(numbers[v] for v in record.outputs),
                    step is not None,
                )
            )
            steps.append(step)
            stamps = record.seconds
            seconds.append(0.0 if stamps is None else self._device.seconds_between(*stamps))
        renumbered = [p if p.value < 0 else p._replace(value=numbers[p.value]) for p in packs]
        uses = tuple(p.value for p in reversed(renumbered) if p.value >= 0)
        graph = BlockGraph(tuple(operators), uses, frozenset(numbers[v] for v in fixed))
        sizes = [0] * len(numbers)
        for old, new in numbers.items():
            sizes[new] = self._values[old].bytes
        return Trace(graph, tuple(steps), tuple(renumbered), tuple(sizes), tuple(seconds))

    def _step(self, record: _Record, numbers: Mapping[int, int]) -> Step | None:
        if record.again is None or self._told:
            return None
        given = tuple(dict.fromkeys(record.given))
        if any(source in self._changed for source in given):
            return None
        outputs = tuple((place, numbers[v], shape) for place, v, shape in record.wanted)
        args = tuple(_renumbered(a, numbers) for a in record.args)
        kwargs = {name: _renumbered(a, numbers) for name, a in record.kwargs.items()}
        return Step(record.again.function, args, kwargs, outputs, given)


_NO_SHAPE = Shape((), (), 0, torch.uint8)


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

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def _renumbered(argument: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(argument, Ref):
        source = argument.source
        return argument if isinstance(source, Given) else Ref(numbers[source], argument.shape)
    if isinstance(argument, list):
        return [_renumbered(a, numbers) for a in argument]
    return argument


def _arguments(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Iterable[tuple[Any, Any]]:
    schema = func._schema.arguments
    yield from zip(schema, args)
    yield from ((a, kwargs[a.name]) for a in schema[len(args) :] if a.name in kwargs)


def _covers(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all there is in its storage, each element once."""
    expected = 1
    for stride, extent in sorted((s, n) for s, n in zip(tensor.stride(), tensor.shape) if n != 1):
        if stride != expected:
            return False
        expected *= extent
    return tensor.nbytes == tensor.untyped_storage().nbytes()


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and type(tensor) in _PLAIN


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
