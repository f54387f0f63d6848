"""Tensor-level eviction under a real training step: any model, forward and backward.

A dispatch mode sees every operator of both passes. Before one runs, its arguments are brought back
and room is made for what it needs; afterwards its outputs are entered as storages that may be
evicted. Tensors are plain ones throughout: evicting takes the memory out of a live storage and
rematerialising puts memory in again, which all views and all that autograd saved then see at once.

* A storage is one engine storage with one tensor; views are not operators here.
* An operator that changes a storage makes a new *version* of it. The earlier one has lost its data
  and can be made again, in a storage of the runtime's own.
* What comes from outside of the step (parameters, buffers, inputs, gradients that exist) is
  constant. If it is changed in place while recorded operators depend on it, they keep a copy.
* What cannot be replayed stays where it is: the storages are pinned. So are those that somebody
  reaches past the dispatcher, and those whose first contents nobody has seen being written.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from time import perf_counter
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mimose.devices.base import Device
from mimose.eviction import Eviction, EvictionFigures
from mimose.runtime.channels import channel_of
from mimose.runtime.evicting import NoRoomError
from mimose.runtime.eviction import pointers
from mimose.runtime.eviction.accounts import Accounts
from mimose.runtime.eviction.backend import TorchBackend, Vanished, as_in_dispatch
from mimose.runtime.eviction.contents import UNMADE, Contents, resized
from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.delta import Delta
from mimose.runtime.eviction.engine import Engine, NoRoom, Output, Policy, Thrashing
from mimose.runtime.eviction.graph import Tensor
from mimose.runtime.eviction.held import describe
from mimose.runtime.eviction.heuristics import HEURISTICS
from mimose.runtime.eviction.known import Holder, KnownStorages
from mimose.runtime.eviction.leaves import addresses, parts
from mimose.runtime.eviction.lineage import PLAIN, Place, Recipe, Traits, is_plain, tensors_returned
from mimose.runtime.eviction.modes import OperatorMode
from mimose.runtime.eviction.pieces import Pieces
from mimose.runtime.eviction.pointers import Reach, storage_of
from mimose.runtime.eviction.settings import Settings
from mimose.runtime.eviction.shapes import Needs, rounded
from mimose.runtime.eviction.storages import mover_for
from mimose.runtime.eviction.swapping import Swapper
from mimose.runtime.eviction.timing import timer_for
from mimose.runtime.eviction.usage import usage_of
from mimose.runtime.eviction.uses import Uses

_MOST_SHIELDED = 1 << 20
"""Bytes of a constant without gradient up to which operators that run again get a copy of it."""


_ATOMS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout))
"""Types of arguments that are described as they are."""

_UNSEEN = (torch.Tensor, torch.UntypedStorage, dict)


class _Unseen(Exception):  # noqa: N818 - a kind of operator, not a fault
    """An operator has a tensor without a plain storage."""


class EvictionRuntime:
    """Keeps training steps within a budget by evicting storages; one per model, for all its steps.

    It remembers what operators need and cost from one step to the next.

    Args:
        device: The device that the model is on.
        settings: What is evicted, and when.
        budget_bytes: Bound on the device's memory, of which ``settings`` keep a reserve; None for
            no limit, with which nothing is ever evicted.

    Attributes:
        active: Whether a step is under way.
        failed: Whether an operator of the step found no room, or thrashing. Nothing is seen then
            any more, and the step can only be abandoned.

    Raises:
        ValueError: If the library that moves storages cannot be compiled.
    """

    def __init__(self, device: Device, settings: Eviction, budget_bytes: int | None) -> None:
        self.active = self.failed = False
        self._device = device
        self._kind = device.kind
        self._settings = settings
        self._timer = timer_for(device, settings.synchronous)
        self._usage = usage_of(device)
        self._backend = TorchBackend(
            device,
            mover_for(device.torch_device),
            self._timer,
            self._usage.now,
            self._usage.changed,
        )
        swaps = settings.actions != "recompute" and budget_bytes is not None
        self._copies = self._backend.copies = Copies(channel_of(device)) if swaps else None
        uses = Uses() if swaps else None
        policy = policy_of(settings, self._copies, uses)
        self._engine = self._backend.engine = Engine(
            self._backend,
            policy,
            settings.own_budget(budget_bytes),
            trigger=settings.trigger,
            ignore_small=settings.ignore_small,
            thrash_limit=settings.thrash_limit,
        )
        self._swapper: Swapper | None = None
        if self._copies is not None and uses is not None and isinstance(policy, Delta):
            self._swapper = Swapper(
                self._engine,
                policy,
                self._copies,
                uses,
                self._backend.start_copy,
                self._backend.bring_ahead,
                prefetch=settings.prefetch,
            )
        self._pieces: Pieces | None = None
        if settings.system == "delta" and budget_bytes is not None:
            self._pieces = Pieces(device, budget_bytes)
        self._limited = budget_bytes is not None
        self._measures = self._limited and settings.trigger == "threshold"
        # DELTA goes on releasing storages, too, where no free piece of memory is large enough.
        insists = settings.trigger == "oom" or settings.system == "delta"
        self._insists = self._backend.insists = insists
        self._charges = device.kind == "sim"
        self._known = KnownStorages()
        self._needs = Needs(device)
        self._traits: dict[int, Traits] = {}
        self._mode = OperatorMode(self._dispatch)
        self._watcher = self._reached
        self._wary = False
        self._read_settings = Settings(device.kind).read
        self._model: torch.nn.Module | None = None
        self._buffers: set[int] = set()
        self._inputs: set[int] = set()
        self._serial = 0
        self._accounts = Accounts(device, self._engine, self._backend, self._copies)
        self._contents = Contents(self._engine, self._known, self._copies, self._make_room)

    @property
    def num_pinned(self) -> int:
        """Storages of the last step that could not be evicted.

        Something that cannot be replayed made, changed or took them.
        """
        return self._contents.num_pinned

    # -- a step

    def start(
        self, model: torch.nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Begin a step: from here on every operator of this thread is seen.

        Does nothing but take note of the model's buffers if a step is under way: it goes on.

        Args:
            model: The model. Whatever exists by now is constant, its parameters among it.
            args: What its forward pass gets.
            kwargs: Likewise, by name.
        """
        self._model = model
        self._buffers = addresses(list(model.buffers()))
        self._inputs = addresses((args, kwargs))
        if self.active:
            return
        self.failed = False
        engine = self._engine
        engine.expected_cost = max(engine.expected_cost, engine.stats.operator_cost)
        engine.begin()
        self._backend.begin()
        self._usage.begin()
        if self._pieces is not None:
            self._pieces.begin()
        if self._swapper is not None:
            self._swapper.begin()
        self._contents.num_pinned = 0
        self._accounts.begin()
        self._wary = False
        self._mode.install()
        pointers.watch(self._watcher)
        self.active = True

    def stop(self, *, regardless: bool = False) -> EvictionFigures:
        """End the step: every live tensor that was evicted is restored, all else is forgotten.

        Args:
            regardless: Of the budget.

        Raises:
            NoRoom: If the live tensors do not fit together. The step goes on: it can be ended once
                some have gone, or regardless of the budget.
            torch.OutOfMemoryError: If the device has no memory for them; likewise.
            Thrashing: If computing them again costs too much; the step can only be abandoned.
        """
        begun = perf_counter()
        if regardless:
            self._engine.lift()
        self._mode.passive = True
        with as_in_dispatch():
            try:
                self._restore()
            except (NoRoom, torch.OutOfMemoryError) as error:
                if isinstance(error, NoRoom):
                    error.kept = describe(self._known, self._gradients())
                self._mode.passive = False
                raise
            if self._swapper is not None:
                self._swapper.end()
        self._accounts.charge()
        self._accounts.seconds += perf_counter() - begun
        figures = self._accounts.figures()
        if self._pieces is not None:
            self._pieces.end(figures.num_evictions)
            self._engine.spare = self._pieces.spare_bytes
        self._end()
        return figures

    def abandon(self) -> EvictionFigures:
        """Give the step up, after an error or on purpose; return its figures so far.

        What the runtime owns is freed. Nothing is restored: tensors of the step that are still
        referred to and were evicted stay without data, and reading them is an error. Parameters'
        gradients among them are set to None.
        """
        self._discard_gradients()
        if self._swapper is not None:
            self._swapper.abandon()
        figures = self._accounts.figures()
        self._end()
        return figures

    def _discard_gradients(self) -> None:
        """Set gradients to None whose data is gone."""
        for parameter in self._model.parameters() if self._model is not None else ():
            gradient = parameter.grad
            if type(gradient) in PLAIN and gradient.layout is torch.strided:
                holder = self._known.get(storage_of(gradient)._cdata)
                if holder is not None and not holder.tensor.storage.resident:
                    parameter.grad = None

    def _end(self) -> None:
        self.active = False
        self._model = None
        pointers.unwatch(self._watcher)
        self._mode.remove()
        self._known.forget()
        for storage in self._engine.storages:
            # Storages, tensors and operators refer to one another: without the garbage collector.
            for tensor in storage.tensors:
                tensor.children = ()
                tensor.operator = None
            storage.tensors.clear()
            storage.data = None
        self._engine.storages = []
        self._engine.pool.clear()

    def _restore(self) -> None:
        """Bring back what is live."""
        engine = self._engine
        keeping = True
        pinned = {h.tensor for h in self._known.values() if h.tensor.storage.pinned}
        while True:
            self._bury()
            live = [h.tensor for h in self._known.values() if not h.constant]
            here = {t for t in live if t.defined and t.storage.resident}
            try:
                if keeping:  # What is there stays, so that none of it has to be made again.
                    for tensor in here:
                        engine.pin(tensor)
                engine.fetch([t for t in live if t not in here], pin=True)
                engine.fetch(live, pin=True)
                return
            except Vanished:
                continue
            except (NoRoom, torch.OutOfMemoryError):
                for tensor in live:
                    if tensor not in pinned:
                        engine.unpin(tensor)
                if not keeping:
                    raise
                keeping = False

    def _gradients(self) -> set[int]:
        """Return the addresses of the storages of the parameters' gradients."""
        assert self._model is not None
        return addresses([parameter.grad for parameter in self._model.parameters()])

    # -- an operator

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operator of the model."""
        traits = self._traits.get(id(func))  # Its own hash takes Python code.
        if traits is None:
            traits = self._traits[id(func)] = Traits(func)
        if traits.view:
            return func(*args, **kwargs)
        begun = perf_counter()
        if self._known.dead:
            self._bury()
        self._serial += 1
        holders: list[Holder] = []
        try:
            if traits.opaque:
                return self._run_unseen(traits, func, args, kwargs)
            try:
                described = self._described(args, holders)
                named = (
                    {name: self._described((value,), holders)[0] for name, value in kwargs.items()}
                    if kwargs
                    else kwargs
                )
            except _Unseen:
                return self._run_unseen(traits, func, args, kwargs)
            return self._run(traits, func, args, kwargs, described, named, holders)
        except _GIVING_UP as error:
            self._fail(error, str(func))
            raise
        finally:
            self._accounts.seconds += perf_counter() - begun

    def _fail(self, error: BaseException, operator: str | None) -> None:
        """Take note that the step has failed, at an operator or where memory was to be read.

        Raises:
            NoRoomError: In place of the engine's own finding; loops know how to go on after it.
        """
        # What comes from now on (the next batch, if the loop goes on) is no part of the step.
        self.failed = self._mode.passive = True
        if isinstance(error, NoRoom):
            doing = "bringing back a tensor whose memory is read"
            raise NoRoomError.of(error, self._settings, operator, doing) from None

    # -- who reaches past the dispatcher

    def _reached(self, tensor: torch.Tensor, reach: Reach) -> None:
        """Have a tensor's data where it is going to be looked for, from outside of any operator.

        From then on it stays there. Whoever has the address may write to it: what was made from it
        before depends on what it was, and has that made again if need be.
        """
        mode = self._mode
        if mode.passive or mode not in _get_current_dispatch_mode_stack():
            return  # Within an operator, or in another thread.
        mode.passive = True
        try:
            storage = storage_of(tensor)
            holder = self._known.get(storage._cdata)
            if holder is None:
                if reach < Reach.SHARED:
                    return
                holder = self._adopt(tensor, storage)
            with as_in_dispatch():
                self._lay_open(holder, reach)
        except NotImplementedError:
            return  # It has no storage.
        except _GIVING_UP as error:
            self._fail(error, None)
            raise
        finally:
            mode.passive = self.failed

    def _lay_open(self, holder: Holder, reach: Reach) -> None:
        self._bury()
        if holder.constant:
            if reach >= Reach.ADDRESS and holder.tensor.children:
                self._contents.preserve(holder)
            if reach == Reach.SHARED:
                holder.shared = self._wary = True
            return
        parents = [holder.tensor]
        self._request(parents)
        try:
            if self._copies is not None:
                self._await_copies(parents, parents)
        finally:
            self._engine.cancel(parents)
        if reach > Reach.READ:
            later = self._contents.freeze(holder)
            if later is not None and reach != Reach.ADDRESS:
                later.shared = self._wary = True

    def _heed(self, traits: Traits, holders: list[Holder], written: list[int]) -> bool:
        """Look after arguments whose contents are not all the runtime's knowledge.

        Returns:
            Whether somebody may change one of them unseen, after the operator.
        """
        for place, holder in enumerate(holders):
            if holder.unwritten and (place not in written or traits.updates):
                # Whoever has written what is read was not seen: only here it is.
                later = self._contents.freeze(holder)
                assert later is not None
                later.place, later.serial = holder.place, holder.serial
                holders[place] = later
        return any(holder.shared for holder in holders)

    def _described(self, values: Any, holders: list[Holder]) -> tuple[Any, ...]:
        """Return arguments with a place for each tensor, and add their holders to ``holders``."""
        serial, known = self._serial, self._known
        described: list[Any] = []
        for value in values:
            kind = type(value)
            if kind in _ATOMS:  # Asking what they are not takes ten times as long.
                described.append(value)
            elif kind in PLAIN:
                try:
                    storage, shape = storage_of(value), value.shape
                except (NotImplementedError, RuntimeError):  # Sparse, or nested.
                    raise _Unseen from None
                dtype = value.dtype
                if value.is_neg() or (dtype.is_complex and value.is_conj()):
                    raise _Unseen
                holder = known.get(storage._cdata)
                if holder is None:
                    holder = self._adopt(value, storage)
                if holder.serial != serial:
                    holder.serial = serial
                    holder.place = len(holders)
                    holders.append(holder)
                described.append(
                    Place((holder.place, dtype, shape, value.stride(), value.storage_offset()))
                )
            elif kind is list or kind is tuple:
                described.append(self._described(value, holders))
            elif isinstance(value, _UNSEEN):
                if not is_plain(kind):
                    raise _Unseen
                described += self._described((value,), holders)
            else:
                described.append(value)
        return tuple(described)

    def _adopt(self, tensor: torch.Tensor, storage: torch.UntypedStorage) -> Holder:
        """Enter a storage that comes from outside of the step, as a constant."""
        num_bytes, address = storage.nbytes(), storage._cdata
        holder = self._contents.constant(num_bytes)
        holder.shielded = address in self._buffers or (
            num_bytes <= _MOST_SHIELDED
            and address not in self._inputs
            and tensor.is_floating_point()
            and not tensor.requires_grad
        )
        self._known.watch(storage, address, holder)
        return holder

    def _run(
        self,
        traits: Traits,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        described: tuple[Any, ...],
        named: dict[str, Any],
        holders: list[Holder],
    ) -> Any:
        engine, timer, needs = self._engine, self._timer, self._needs
        written = traits.places_written(described, named) if traits.written else []
        shared = self._wary and self._heed(traits, holders, written)
        parents = [holder.tensor for holder in holders]
        for place in written:
            holder = holders[place]
            if holder.constant and (traits.makes or holder.tensor.children):
                self._contents.preserve(holder)
        signature: int | None = None
        need: int | None = 0
        if self._limited:
            try:
                # Its hash alone: the rest would add up to far more than what is remembered.
                signature = hash((func, described, tuple(named.items()) if named else None))
                need = needs.get(signature)
            except TypeError:  # An argument that cannot be hashed.
                need = None
        try:
            engine.request(parents)
        except Vanished:
            self._request(parents)
        try:
            measures = need is None and self._measures
            if need is None:
                need = self._make_room_for_unknown(traits, func, args, kwargs) if measures else 0
            elif need:
                self._make_room(need)
            if self._charges:
                self._accounts.charge()
            if self._copies is not None:
                self._await_copies(parents, [holders[place].tensor for place in written])
            random = generator = None
            if traits.random:
                generator = kwargs.get("generator")
                random = self._device.rng_state() if generator is None else generator.get_state()
            settings = self._read_settings() if self._limited else ()
            before = self._device.mark().allocated if measures else 0
            entered = perf_counter()
            started = timer.start(signature)
            if self._insists and not written:
                output = self._insist(func, args, kwargs, random, generator)
            else:
                output = func(*args, **kwargs)
            cost = timer.stop(started, signature)
            self._accounts.bare_seconds += perf_counter() - entered
        except BaseException:
            engine.cancel(parents)
            raise
        if measures:
            need = self._measured(before)
        fresh, outputs, sources = self._outputs(traits, described, output)
        if measures:
            returned = tensors_returned(output)
            needs.learn(signature, func, args, need, [returned[i] for i in sources])
        if shared and outputs is not None:
            # Made again, they might not be what they were.
            for holder in fresh:
                self._contents.make_constant(holder)
            self._contents.num_pinned += len(fresh)
            outputs = None
        version, room, changed = None, 0, []
        if written:
            changed = [holders[place] for place in written if not holders[place].constant]
        for size, _ in outputs or ():
            room += size
        if len(changed) == 1 and outputs is not None and not resized(changed[0]):
            # Of several, one that is run again would need them all: they stay as they are.
            version = Holder(changed[0].tensor, changed[0].num_bytes)
            fresh.append(version)
            outputs.append((changed[0].tensor.storage.size, None))
            sources.append(-1 - changed[0].place)
        made: list[Tensor] = []
        if outputs:
            if self._limited:
                for parent in parents:
                    data: Holder = parent.storage.data
                    if data.constant and data.owned is None:
                        # It has to last as long as what is made from it.
                        data.owned = data.storage()
            spare = need - room
            recipe = Recipe(
                func,
                described,
                named,
                written,
                sources,
                traits.pointwise,
                random,
                generator,
                spare if spare > 0 else 0,
                signature,
                settings,
            )
            made = engine.complete(parents, outputs, cost, recipe).outputs
            for holder, tensor in zip(fresh, made):
                holder.tensor = tensor
                tensor.storage.data = holder
                if traits.unwritten:
                    holder.unwritten = self._wary = True
                    engine.pin(tensor)
        else:
            engine.cancel(parents)
            engine.stats.num_operators += 1
            engine.stats.operator_cost += cost
        if version is not None:
            self._contents.supersede(changed[0], version)
        elif changed:
            for holder in changed:
                self._contents.freeze(holder)
        if outputs is None and not shared:
            self._contents.capture(holders)
        if self._swapper is not None:
            backward = torch._C._current_graph_task_id() != -1
            self._swapper.operated(func, parents, made, need, backward=backward)
        if self._pieces is not None:
            self._pieces.operated()
            engine.spare = self._pieces.spare_bytes
        return output

    def _make_room_for_unknown(self, traits: Traits, func: Any, args: Any, kwargs: Any) -> int:
        """Make room for a call that is not known, and return what it is taken to need."""
        need = self._needs.work_out(traits, func, args, kwargs)
        try:
            self._make_room(need)
        except NoRoom:
            # A guess that may be too high is no reason to give up: its outputs are no guess.
            least = self._needs.outputs(func, args, kwargs)
            if least >= need:
                raise
            self._make_room(least)
        return need

    def _await_copies(self, read: list[Tensor], written: list[Tensor]) -> None:
        """Let an operator wait for copies that its arguments are in the midst of."""
        copies = self._copies
        assert copies is not None
        if copies.arriving:
            copies.await_arrival([tensor.storage for tensor in read])
        if copies.outgoing and written:
            copies.await_departure([tensor.storage for tensor in written])

    def _make_room(self, num_bytes: int) -> None:
        while True:
            try:
                self._engine.make_room(num_bytes)
                return
            except Vanished:  # The garbage collector, in the midst of it.
                self._bury()

    def _request(self, parents: list[Tensor]) -> None:
        while True:
            try:
                self._engine.request(parents)
                return
            except Vanished:  # The garbage collector, in the midst of it.
                self._bury()

    def _insist(self, func: Any, args: Any, kwargs: Any, random: Any, generator: Any) -> Any:
        """Run an operator; as long as it is out of memory, evict storages and try again."""
        for failures in count(1):
            try:
                return func(*args, **kwargs)
            except torch.OutOfMemoryError:
                if not self._engine.evict_after(failures):
                    raise
            if generator is not None:
                generator.set_state(random)
            elif random is not None:
                self._device.set_rng_state(random)

    def _measured(self, before: int) -> int:
        """Return what an operator took at most, beside what was allocated before it."""
        mark = self._device.mark()
        most = mark.allocated if mark.peak_allocated is None else mark.peak_allocated
        return max(0, most - before)

    def _outputs(
        self, traits: Traits, described: Any, output: Any
    ) -> tuple[list[Holder], list[Output] | None, list[int]]:
        """Enter the storages that an operator made; one that is known is an argument's.

        Returns:
            Their holders, their sizes for the engine (None if the operator cannot be replayed) and
            where each is among the tensors returned.
        """
        known, changed_usage, on_cpu = self._known, self._usage.changed, self._kind == "cpu"
        fresh: list[Holder] = []
        sizes: list[Output] = []
        sources: list[int] = []
        if self._kind == "sim" and traits.dynamic and traits.selects(described):
            # A simulation knows the values of live tensors only.
            self._contents.num_pinned += 1
            return fresh, None, sources
        for position, tensor in enumerate(tensors_returned(output)):
            try:
                if type(tensor) not in PLAIN or tensor.is_nested:
                    raise NotImplementedError
                storage = storage_of(tensor)
            except NotImplementedError:
                for holder in fresh:
                    self._known.drop(holder)
                self._contents.num_pinned += 1
                return [], None, []
            address = storage._cdata
            if address in known:
                continue
            num_bytes = storage.nbytes()
            if not num_bytes or not (on_cpu or self._is_here(tensor)):
                continue
            size = rounded(num_bytes)
            holder = Holder(UNMADE, num_bytes)
            known.watch(storage, address, holder)
            fresh.append(holder)
            sizes.append((size, None))
            sources.append(position)
            if changed_usage is not None:
                changed_usage(size)
        return fresh, sizes, sources

    def _is_here(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is on a device that is not the host's, where data is constant."""
        return tensor.is_meta if self._kind == "sim" else tensor.is_cuda

    def _run_unseen(
        self, traits: Traits, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run an operator that cannot be replayed. What it makes is constant."""
        engine = self._engine
        holders = self._holders_in((args, kwargs))
        if self._wary:
            for holder in [each for each in holders if each.unwritten]:
                self._contents.freeze(holder)
            holders = self._holders_in((args, kwargs))
        written = self._holders_in(traits.values_written(args, kwargs))
        parents = [holder.tensor for holder in holders]
        for holder in written:
            if holder.constant and holder.tensor.children:
                self._contents.preserve(holder)
        self._request(parents)
        if self._copies is not None:
            self._await_copies(parents, [holder.tensor for holder in written])
        try:
            entered = perf_counter()
            started = self._timer.start(None)
            output = func(*args, **kwargs)
            engine.stats.operator_cost += self._timer.stop(started, None)
            engine.stats.num_operators += 1
            self._accounts.bare_seconds += perf_counter() - entered
        finally:
            engine.cancel(parents)
        for holder in written:
            if not holder.constant and (not traits.reshapes or resized(holder)):
                self._contents.freeze(holder)
        if not traits.reshapes:
            self._contents.capture(holders)
        return output

    def _holders_in(self, values: Any) -> list[Holder]:
        """Return the holders of all storages that arguments are known to lie in."""
        holders: dict[int, Holder] = {}
        for leaf in pytree.tree_leaves(values):
            for part in parts(leaf):
                storage = storage_of(part)
                holder = self._known.get(storage._cdata) or self._adopt(part, storage)
                holders[id(holder)] = holder
        return list(holders.values())

    # -- bookkeeping

    def _bury(self) -> None:
        """Tell the engine which storages the model has let go of."""
        dead, engine, changed = self._known.dead, self._engine, self._usage.changed
        while dead:
            tensor = dead.pop().tensor
            if changed is not None and tensor.storage.resident:
                changed(-tensor.storage.size)
            engine.unpin(tensor)
            engine.release(tensor)


_GIVING_UP = (NoRoom, Thrashing, torch.OutOfMemoryError)
"""What a step does not go on after."""


def policy_of(settings: Eviction, copies: Copies | None, uses: Uses | None) -> Policy:
    """Return what chooses storages under these settings."""
    if settings.system == "delta":
        return Delta(
            copies,
            uses,
            filter=settings.filter,
            actions=settings.actions if copies is not None else "recompute",
            prefetch=settings.prefetch,
            sampling=settings.sampling,
        )
    return HEURISTICS[settings.heuristic](sampling=settings.sampling)
