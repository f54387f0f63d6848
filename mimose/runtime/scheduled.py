"""Carry out an explicit schedule: run blocks again in backward when, and as often as, it says.

In the manner of PyTorch's non-reentrant checkpoint: a block runs under hooks that hand what it
saves for backward to a store, or drop it, and the graph gets numbers instead. The first number that
backward asks of a block has the instructions up to that block's backward carried out. What is
handed back is handed over, so that memory falls as in a plain backward pass. Where the graph is to
stay (``retain_graph=True``) all that the forward pass has left stays, too, and the next backward
pass begins with it.

A block's input is never kept by what the block saves: it is the output of the block before, which
the schedule keeps or has made again. Where the model does more in between than to hand it on (a
*cut*), the input is kept as the model gave it.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.utils import _pytree as pytree

from mimose.devices.base import Device
from mimose.runtime.conditions import CallMemory
from mimose.runtime.dataflow import DataFlow
from mimose.runtime.program import Program
from mimose.runtime.regions import run_block
from mimose.runtime.wrappers import BlockForward
from mimose.schedule import Moment, Schedule


class _EnoughError(Exception):
    """A rerun has saved all that its block saves."""


class _View(NamedTuple):
    """A saved tensor that lies in the block's input."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int


_GONE = object()
_Entry = torch.Tensor | _View | object


class _Call:
    """A block's call, to be made again; it holds no input that another block's output is.

    Tensors are held detached: one that knows its graph, which knows this, would never be freed.
    """

    __slots__ = ("_leaves", "_needs", "_spec", "_versions", "autocast", "random", "target")

    def __init__(self, leaves: Sequence[Any], spec: Any, target: int | None, random: Any) -> None:
        self.target = target
        self.random = random
        self._spec = spec
        self._needs = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
        self._leaves: list[Any] = []
        self._versions: list[tuple[torch.Tensor, int]] = []
        detached: dict[int, torch.Tensor] = {}
        for place, leaf in enumerate(leaves):
            if place == target or not isinstance(leaf, torch.Tensor):
                self._leaves.append(None if place == target else leaf)
                continue
            if id(leaf) not in detached:
                detached[id(leaf)] = leaf.detach()
                self._versions.append((detached[id(leaf)], leaf._version))
            self._leaves.append(detached[id(leaf)])
        kinds = {leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)} | {"cpu"}
        self.autocast = {kind: _autocast(kind) for kind in kinds - {"meta"}}

    def storages(self) -> set[int]:
        """Return the identities of the storages that are held here."""
        return {t.untyped_storage()._cdata for t, _ in self._versions if _is_dense(t)}

    def arguments(self, name: str, given: torch.Tensor | None) -> tuple[Any, Any]:
        """Return the arguments of a rerun, ``given`` for what is not held here.

        Raises:
            RuntimeError: If one was changed in place since.
        """
        if any(tensor._version != version for tensor, version in self._versions):
            raise _changed(name)
        fresh: dict[int, torch.Tensor] = {}
        leaves = list(self._leaves)
        if self.target is not None:
            leaves[self.target] = given
        for place, leaf in enumerate(leaves):
            if isinstance(leaf, torch.Tensor):
                new = fresh.setdefault(id(leaf), leaf.detach())
                leaves[place] = new.requires_grad_() if self._needs[place] else new
        return pytree.tree_unflatten(leaves, self._spec)  # type: ignore[no-any-return]

    def modes(self) -> AbstractContextManager[Any]:
        """Return the modes that the call ran under: with gradients, and autocast or not."""
        stack = ExitStack()
        stack.enter_context(torch.enable_grad())
        for kind, (enabled, dtype, cached) in self.autocast.items():
            if enabled or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype, enabled, cached))
        return stack


class ScheduledPass:
    """A forward pass and its backward pass under a schedule.

    Attributes:
        program: The schedule.
        stuck: Blocks that run as they are although the schedule says otherwise, since they must
            not run twice.
    """

    def __init__(
        self,
        program: Program,
        device: Device,
        flow: DataFlow,
        wrappers: Mapping[int, BlockForward],
    ) -> None:
        self.program = program
        self.stuck: set[int] = set()
        self._device = device
        self._flow = flow
        self._wrappers = wrappers
        self._place = 0
        self._closed = False
        self._going_back = False
        self._calls: dict[int, _Call] = {}
        self._linked: set[int] = set()
        self._outputs: dict[int, tuple[torch.Tensor, int]] = {}
        self._saved: dict[int, list[_Entry]] = {}
        self._counts: dict[int, int] = {}
        self._memory = CallMemory()
        self._kept: _Kept | None = None
        self._handed: tuple[int, weakref.ref[torch.Tensor], int] | None = None

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return self.program.schedule

    # -- forward

    def run(
        self,
        block: int,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        twice: bool,
    ) -> Any:
        """Run a block for the first time, as the model asks for it.

        Args:
            block: Its number.
            wrapper: The block.
            args: Its arguments.
            kwargs: Its keyword arguments.
            twice: Whether it may run again.
        """
        program = self.program
        moment = program.moments[program.first[block]]
        self._drop(moment)
        leaves, spec = pytree.tree_flatten((args, kwargs))
        target = self._link(block, leaves)
        given = None if target is None else leaves[target]
        if target is not None:
            self._linked.add(block)
        if block in program.again and not twice:
            self.stuck.add(block)
        if not twice or (block not in program.again and (given is None or block in program.steady)):
            # All of it stays, its input included.
            again, hooks, entries = False, None, None
        else:
            again = block in program.again
            entries = []
            alive = _storages_of(wrapper.module)
            if again:
                call = _Call(leaves, spec, target, self._device.rng_state())
                self._calls[block] = call
                alive |= call.storages()
            pack = _Pack(entries, moment.saves, given, alive)
            hooks = torch.autograd.graph.saved_tensors_hooks(pack, partial(self._give, block))
        del leaves
        result = _run(wrapper, block, self._memory, args, kwargs, again=again, hooks=hooks)
        if entries is not None:
            self._counts[block] = len(entries)
            if moment.saves:
                self._saved[block] = entries
        self._hold(block, result)
        return result

    def _link(self, block: int, leaves: Sequence[Any]) -> int | None:
        """Return which argument is the output of the block before, if nothing comes in between."""
        link = self._flow.links[block] if block < len(self._flow.links) else None
        handed, self._handed = self._handed, None
        if link is None or handed is None or link.target >= len(leaves):
            return None
        before, reference, version = handed
        given = leaves[link.target]
        if before != block - 1 or given is None or given is not reference():
            return None
        if given._version != version or sum(leaf is given for leaf in leaves) > 1:
            return None
        return link.target

    def _hold(self, block: int, result: Any) -> None:
        """Hold the output of a block that has just run first, as far as the next one takes it."""
        place = self._source(block)
        if place is None:
            return
        leaves = pytree.tree_leaves(result)
        output = leaves[place] if place < len(leaves) else None
        if isinstance(output, torch.Tensor) and _is_dense(output):
            self._outputs[block] = output.detach(), output._version
            self._handed = block, weakref.ref(output), output._version

    def _source(self, block: int) -> int | None:
        """Return the place among a block's outputs of the one that the next block takes."""
        following = block + 1
        link = self._flow.links[following] if following < len(self._flow.links) else None
        return None if link is None else link.source

    # -- backward

    def _give(self, block: int, index: int) -> torch.Tensor:
        """Hand over what a block saved; called by autograd in its backward."""
        if torch._C._current_graph_task_id() != -1 and torch.is_grad_enabled():
            raise RuntimeError(
                "under a schedule a backward pass has no gradients of its own (create_graph=True): "
                "use a plan, as planner rotor makes them"
            )
        if self._place <= self.program.backward[block] and not self._closed:
            self._advance(block)
        entries = self._saved.get(block)
        entry = _GONE if entries is None else entries[index]
        if entries is None or entry is _GONE:
            raise RuntimeError(
                "under a schedule what was saved can be used once in a backward pass, and this is "
                "the second time (saved_tensors read twice): read it once, or use a plan"
            )
        entries[index] = _GONE
        if isinstance(entry, _View):
            return self._input(block).as_strided(entry.size, entry.stride, entry.offset)
        assert isinstance(entry, torch.Tensor), "what is saved is a tensor or lies in one"
        return entry

    def _advance(self, block: int) -> None:
        """Carry out all instructions that precede a block's backward."""
        if not self._going_back and torch._C._current_graph_task_id() != -1:
            self._going_back = True
            if torch._C._autograd._get_current_graph_task_keep_graph():
                self._kept = _Kept(self)
            # The only way to learn that the backward pass has ended, short of patching it.
            torch.autograd.Variable._execution_engine.queue_callback(self.close)
        end = self.program.backward[block]
        for moment in self.program.moments[self._place : end]:
            if not moment.first and not moment.backward:
                self._drop(moment)
                self._run_again(moment)
        self._drop(self.program.moments[end])
        self._place = end + 1

    def _run_again(self, moment: Moment) -> None:
        block = moment.block
        call = self._calls.get(block)
        if call is None:  # The model left it out, or it must not run twice.
            return
        count = self._counts[block]
        ends = moment.leaf or block + 1 not in self._linked
        if ends and (not moment.saves or not count):
            return
        wrapper, device = self._wrappers[block], self._device
        given = None if call.target is None else self._input(block)
        args, kwargs = call.arguments(wrapper.name, given)
        entries: list[_Entry] = []
        alive = _storages_of(wrapper.module) | call.storages()
        pack = _Pack(entries, moment.saves, given, alive, count if ends else None)
        hooks = torch.autograd.graph.saved_tensors_hooks(pack, _never)
        present = device.rng_state()
        device.set_rng_state(call.random)
        result = None
        try:
            with call.modes(), hooks:
                result = run_block(wrapper, block, True, self._memory, args, kwargs)
        except _EnoughError:
            pass
        finally:
            device.set_rng_state(present)
        if len(entries) != count:
            raise RuntimeError(
                f"block {wrapper.name} saved {count} tensors for backward when it first ran and "
                f"{len(entries)} when it ran again: give a plan that keeps the block"
            )
        if moment.saves:
            self._saved[block] = entries
        if not ends:
            place = self._source(block)
            assert place is not None, "what is linked has a source"
            output = pytree.tree_leaves(result)[place]
            self._outputs[block] = output.detach(), output._version

    def _input(self, block: int) -> torch.Tensor:
        tensor, version = self._outputs[block - 1]
        if tensor._version != version:
            raise _changed(self._wrappers[block].name)
        return tensor

    def _drop(self, moment: Moment) -> None:
        """Let go of what the schedule does not hold at a moment."""
        outputs, stuck = self._outputs, self.stuck
        for block in [b for b in outputs if b not in moment.outputs and b not in stuck]:
            del outputs[block]
        for block in [b for b in self._saved if b not in moment.saved]:
            del self._saved[block]
        stage = moment.stage
        if stage is not None:
            for block in [b for b in self._calls if b > stage]:
                del self._calls[block]

    def close(self) -> None:
        """Let go of everything: the backward pass is over. If its graph stays, begin anew."""
        kept, self._kept = self._kept, None
        if kept is not None:
            kept.put_back(self)
            return
        self._closed = True
        for each in (self._outputs, self._saved, self._calls, self._memory):
            each.clear()


class _Kept:
    """What a forward pass has left for more than one backward pass."""

    __slots__ = ("_calls", "_outputs", "_saved", "_seen", "_snapshots")

    def __init__(self, passed: ScheduledPass) -> None:
        memory = passed._memory
        self._outputs = dict(passed._outputs)
        self._saved = {block: list(entries) for block, entries in passed._saved.items()}
        self._calls = dict(passed._calls)
        self._seen, self._snapshots = dict(memory.seen), dict(memory.snapshots)

    def put_back(self, passed: ScheduledPass) -> None:
        memory = passed._memory
        passed._outputs, passed._saved = self._outputs, self._saved
        passed._calls = self._calls
        memory.seen, memory.snapshots = self._seen, self._snapshots
        passed._place, passed._going_back = 0, False


class _Pack:
    """A pack hook: takes what one run of a block saves, and returns numbers for it."""

    __slots__ = ("_alive", "_base", "_dtype", "_entries", "_most", "_saves")

    def __init__(
        self,
        entries: list[_Entry],
        saves: bool,
        given: torch.Tensor | None,
        alive: set[int],
        most: int | None = None,
    ) -> None:
        """Start a run.

        Args:
            entries: Where to put what is saved.
            saves: Whether to keep it.
            given: The block's input, which is not to be kept.
            alive: Identities of storages that exist anyway.
            most: How many tensors the block saves; the run ends with the last one. None to let it
                go on to its end.
        """
        self._entries = entries
        self._saves = saves
        dense = given is not None and _is_dense(given)
        self._base = given.untyped_storage()._cdata if dense and given is not None else 0
        self._dtype = None if given is None else given.dtype
        self._alive = alive
        self._most = most

    def __call__(self, tensor: torch.Tensor) -> int:
        """Take one."""
        index = len(self._entries)
        entry: _Entry = None
        if self._saves:
            storage = tensor.untyped_storage()._cdata if _is_dense(tensor) else 0
            if storage and storage == self._base and tensor.dtype == self._dtype:
                entry = _View(tensor.shape, tensor.stride(), tensor.storage_offset())
            elif storage in self._alive and tensor.is_leaf:
                entry = tensor
            else:
                entry = tensor.detach()
        self._entries.append(entry)
        if self._most is not None and index + 1 == self._most:
            raise _EnoughError
        return index


def _run(
    wrapper: BlockForward,
    block: int,
    memory: CallMemory,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    again: bool,
    hooks: AbstractContextManager[Any] | None,
) -> Any:
    if hooks is None:
        return wrapper.inner(*args, **kwargs)
    with hooks:
        if again:
            return run_block(wrapper, block, False, memory, args, kwargs)
        return wrapper.inner(*args, **kwargs)


def _never(index: int) -> torch.Tensor:
    raise AssertionError("nobody goes back through a rerun")


def _autocast(kind: str) -> tuple[bool, torch.dtype, bool]:
    enabled, dtype = torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)
    return enabled, dtype, torch.is_autocast_cache_enabled()


def _storages_of(module: torch.nn.Module) -> set[int]:
    tensors = (*module.parameters(), *module.buffers())
    return {t.untyped_storage()._cdata for t in tensors if _is_dense(t)}


def _is_dense(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided


def _changed(name: str) -> RuntimeError:
    return RuntimeError(
        f"an argument of block {name} was changed in place after the block had run, so that it "
        "cannot run again: give a plan that keeps the block"
    )
