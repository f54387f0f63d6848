"""What the engine needs done on a real device: running operators again, freeing and moving data."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from time import perf_counter
from typing import Any

import torch

from mimose.devices.base import Device
from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.engine import Engine
from mimose.runtime.eviction.graph import Operator, Storage
from mimose.runtime.eviction.known import Holder
from mimose.runtime.eviction.lineage import Recipe, rebuilt, tensors_returned
from mimose.runtime.eviction.pointers import storage_of
from mimose.runtime.eviction.settings import Settings
from mimose.runtime.eviction.storages import Mover
from mimose.runtime.eviction.timing import Timer

_SCALARS = (int, float, bool)
_SCALAR_BYTES = 512  # A number that stands for a tensor is made one.


class Vanished(Exception):  # noqa: N818 - a moment, not a fault
    """A storage died between the engine's last look and its use."""


class TorchBackend:
    """Operators on tensors of one device.

    Args:
        device: The device.
        mover: Frees and moves the memory of storages.
        timer: Measures what operators cost.
        usage: Returns the bytes in use; whoever gives it hears of changes by ``changed``.
        changed: Called with the bytes by which drops and reruns change what is in use.

    Attributes:
        engine: Whose backend it is.
        copies: Copies of storages on the host, where storages are swapped.
        insists: Evict storages when memory runs out, and try again.
        rerun_seconds: What running operators again took, in the device's time.
        rerun_wall_seconds: The same on this machine's clock, with what goes with it.
        swap_wait_seconds: Time that the model waited for copies.
    """

    engine: Engine
    copies: Copies | None = None
    insists: bool = False

    def __init__(
        self,
        device: Device,
        mover: Mover,
        timer: Timer,
        usage: Callable[[], int],
        changed: Callable[[int], None] | None,
    ) -> None:
        self.now = timer.now
        self.usage = usage
        self.rerun_seconds = self.rerun_wall_seconds = self.swap_wait_seconds = 0.0
        self._device = device
        self._mover = mover
        self._timer = timer
        self._changed = changed
        self._settings = Settings(device.kind)

    def begin(self) -> None:
        """Count from 0."""
        self.rerun_seconds = self.rerun_wall_seconds = self.swap_wait_seconds = 0.0
        if self.copies is not None:
            self.copies.begin()

    def rerun(self, operator: Operator) -> None:
        """Run an operator again, for the outputs that are not there."""
        started = perf_counter()
        recipe: Recipe = operator.payload
        spare = recipe.spare + _SCALAR_BYTES * sum(type(each) in _SCALARS for each in recipe.args)
        if not recipe.pointwise:
            spare += _shielded_bytes(operator)
        if spare:
            self.engine.make_room(operator.size + spare)
        if self.copies is not None and self.copies.arriving:
            self.copies.await_arrival(parent.storage for parent in operator.parents)
        storages, output = self._insisted(operator, recipe)
        self._deliver(operator, recipe, storages, tensors_returned(output))
        self.rerun_wall_seconds += perf_counter() - started

    def _insisted(
        self, operator: Operator, recipe: Recipe
    ) -> tuple[list[torch.UntypedStorage], Any]:
        """Run an operator; where that is wanted, evict storages as long as memory runs out."""
        for failures in count(1):
            try:
                return self._attempt(operator, recipe)
            except torch.OutOfMemoryError:
                if not self.insists or not self.engine.evict_after(failures):
                    raise
        raise AssertionError

    def _attempt(
        self, operator: Operator, recipe: Recipe
    ) -> tuple[list[torch.UntypedStorage], Any]:
        """Return the storages that an operator got, and what it returned."""
        storages = self._arguments(operator, recipe)
        with as_in_dispatch():
            with torch._C._DisableTorchDispatch():
                args = [rebuilt(each, storages) for each in recipe.args]
                kwargs = {name: rebuilt(each, storages) for name, each in recipe.kwargs.items()}
            with self._settings.put_back(recipe.settings), self._generators(recipe):
                cost, output = self._run(recipe, args, kwargs)
        self.rerun_seconds += cost
        return storages, output

    def _arguments(self, operator: Operator, recipe: Recipe) -> list[torch.UntypedStorage]:
        """Return the storages that the operator gets: copies of those that it changes."""
        storages: list[torch.UntypedStorage] = []
        for place, parent in enumerate(operator.parents):
            holder: Holder = parent.storage.data
            storage = holder.storage()
            if storage is None:
                raise Vanished
            if place in recipe.written or (holder.shielded and not recipe.pointwise):
                storage = copied(storage)
            storages.append(storage)
        return storages

    def _run(self, recipe: Recipe, args: Any, kwargs: Any) -> tuple[float, Any]:
        start = self._timer.start(recipe.signature)
        output = recipe.func(*args, **kwargs)
        return self._timer.stop(start, recipe.signature), output

    @contextlib.contextmanager
    def _generators(self, recipe: Recipe) -> Iterator[None]:
        """Put the generators where they were before the operator ran, and then back."""
        if recipe.generator is not None:
            before = recipe.generator.get_state()
            recipe.generator.set_state(recipe.random)
            try:
                yield
            finally:
                recipe.generator.set_state(before)
        elif recipe.random is not None:
            state = self._device.rng_state()
            self._device.set_rng_state(recipe.random)
            try:
                yield
            finally:
                self._device.set_rng_state(state)
        else:
            yield

    def _deliver(
        self,
        operator: Operator,
        recipe: Recipe,
        storages: list[torch.UntypedStorage],
        returned: Sequence[torch.Tensor],
    ) -> None:
        for output, source in zip(operator.outputs, recipe.sources):
            if output.defined:
                continue
            made = storage_of(returned[source]) if source >= 0 else storages[-1 - source]
            holder: Holder = output.storage.data
            if made.nbytes() != holder.num_bytes:
                raise RuntimeError(
                    f"{recipe.func} made {made.nbytes()} bytes when it was run again, and "
                    f"{holder.num_bytes} before: it depends on something beside its arguments"
                )
            live = holder.live()
            if live is None:
                holder.owned = made
            else:
                self._mover.move(live, made)
            if self._changed is not None:
                self._changed(output.storage.size)

    def drop(self, storage: Storage) -> None:
        """Free the data of a storage, wherever it is."""
        if self.copies is not None:
            self.copies.forget(storage)
        if not storage.on_host:
            self._free(storage, storage.data)

    def _free(self, storage: Storage, holder: Holder) -> None:
        live = holder.live()
        if live is not None:
            self._mover.drop(live)
        elif holder.owned is None:
            return  # It died with its tensors.
        holder.owned = None
        if self._changed is not None:
            self._changed(-storage.size)

    # -- moving to the host

    def start_copy(self, storage: Storage) -> None:
        """Start copying the data to the host; it stays where it is for now."""
        assert self.copies is not None
        found = storage.data.storage()
        if found is not None:
            with as_in_dispatch():
                self.copies.start(storage, found, self.now())

    def swap_out(self, storage: Storage) -> None:
        """See to it that the data is on the host, and free it."""
        assert self.copies is not None
        holder: Holder = storage.data
        found = holder.storage()
        if found is None:
            raise Vanished
        with as_in_dispatch():
            self.copies.send_away(storage, found, self.now())
        self._free(storage, holder)

    def swap_in(self, storage: Storage) -> None:
        """Start bringing the data back from the host; whoever uses it waits for it."""
        assert self.copies is not None
        holder: Holder = storage.data

        def receive(made: torch.UntypedStorage) -> torch.UntypedStorage:
            live = holder.live()
            if live is None:
                holder.owned = made
                return made
            self._mover.move(live, made)
            return live

        for failures in count(1):
            try:
                with as_in_dispatch():
                    self.copies.bring_back(storage, receive, self.now())
                break
            except torch.OutOfMemoryError:
                if not self.insists or not self.engine.evict_after(failures):
                    raise
        if self._changed is not None:
            self._changed(storage.size)

    def bring_ahead(self, storage: Storage) -> bool:
        """Start bringing data back that nothing needs yet; return whether there was room.

        Within the budget there may be no piece of memory that is large enough.
        """
        insists, self.insists = self.insists, False
        try:
            self.engine.swap_in(storage)
        except torch.OutOfMemoryError:
            return False
        finally:
            self.insists = insists
        storage.accessed = self.now()
        return True


def _shielded_bytes(operator: Operator) -> int:
    """Return what copies of arguments take that the operator may change without saying so."""
    return sum(p.storage.size for p in operator.parents if p.storage.data.shielded)


def as_bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    """Return the whole of a storage as a tensor."""
    with torch._C._DisableTorchDispatch():
        tensor = torch.empty(0, dtype=torch.uint8, device=storage.device)
        return tensor.set_(storage, 0, (storage.nbytes(),), (1,))


def copied(storage: torch.UntypedStorage) -> torch.UntypedStorage:
    """Return a copy of a storage, which takes as long as any copy."""
    with as_in_dispatch():
        return as_bytes(storage).clone().untyped_storage()


@contextlib.contextmanager
def as_in_dispatch() -> Iterator[None]:
    """What runs inside is neither recorded by autograd nor cast by autocast, nor transformed."""
    with (
        torch.no_grad(),
        torch._C._AutoDispatchBelowAutograd(),
        torch._C._DisableAutocast(),
        torch._C._DisableFuncTorch(),
    ):
        yield
