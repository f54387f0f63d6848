"""Run a model's blocks so that what a plan drops of what they save is made again in backward."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from mimose.devices.base import Device
from mimose.plan import Remade
from mimose.runtime.calls import Key
from mimose.runtime.remaking.offloading import Offloads
from mimose.runtime.remaking.recipes import Choice
from mimose.runtime.remaking.saving import Saving
from mimose.runtime.remaking.settings import Settings
from mimose.runtime.remaking.tracing import Trace, Tracer
from mimose.runtime.wrappers import BlockForward

_MOST_TRACES = 128
"""Of one block."""
_MOST_STRAYS = 3
"""Calls that save something else than their trace says, before a block is left alone."""

Signature = tuple[Any, ...]


class Remaker:
    """Traces blocks and carries out what plans drop.

    Args:
        device: What the blocks run on.

    Attributes:
        strays: Calls that saved something else than their trace said, and kept all of it.
        missed: Calls whose graph was not the one that the plan was made for, likewise.
        offloads: What sends values to the host's memory.
    """

    def __init__(self, device: Device) -> None:
        self.strays = self.missed = 0
        self.offloads = Offloads(device)
        self._device = device
        self._traces: dict[Key, OrderedDict[Signature, Trace]] = {}
        self._choices: dict[tuple[Any, ...], tuple[Trace, Choice]] = {}
        self._settings: dict[int, Settings] = {}
        self._strayed: Counter[Key] = Counter()

    def usable(self, wrapper: BlockForward, key: Key) -> bool:
        """Whether a block's call can be traced, and have some of what it saves dropped."""
        return (
            torch.is_grad_enabled()
            and not wrapper.compiles
            and not wrapper.checkpoints
            and self._strayed[key] < _MOST_STRAYS
            and _no_hooks()
            and not self._settings_of(wrapper).sharded
        )

    def run(
        self,
        key: Key,
        wrapper: BlockForward,
        remade: Remade,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[Any, bool]:
        """Run a block's call and drop what the plan says.

        The whole of what it saves stays until its forward is over and has been found to be what
        the trace says; then the chosen values go. A call unlike its trace keeps everything.

        Returns:
            What the block returned, and whether anything was dropped.
        """
        arguments = pytree.tree_leaves((args, kwargs))
        signature = self._signature(wrapper, args, kwargs, arguments)
        trace = self._known(key, signature)
        if trace is None:
            tracer = Tracer(wrapper.module, arguments, self._device)
            saving = Saving(wrapper.name, tracer.note)
            with saving.hooks(), tracer:
                result = wrapper.inner(*args, **kwargs)
            trace = tracer.finish(result)
            self.learn(key, signature, trace)
        else:
            saving = Saving(wrapper.name)
            with saving.hooks():
                result = wrapper.inner(*args, **kwargs)
        return result, self._drop(key, saving, trace, signature, remade, arguments)

    def tracer(
        self, wrapper: BlockForward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tracer:
        """Return what traces a call that keeps all that it saves."""
        return Tracer(wrapper.module, pytree.tree_leaves((args, kwargs)), self._device)

    def signature(
        self, wrapper: BlockForward, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Signature:
        """Return what a call's trace depends on."""
        return self._signature(wrapper, args, kwargs, pytree.tree_leaves((args, kwargs)))

    def learn(self, key: Key, signature: Signature, trace: Trace) -> None:
        """Remember a trace."""
        known = self._traces.setdefault(key, OrderedDict())
        known[signature] = trace
        if len(known) > _MOST_TRACES:
            _, oldest = known.popitem(last=False)
            self._choices = {k: c for k, c in self._choices.items() if c[0] is not oldest}

    def _known(self, key: Key, signature: Signature) -> Trace | None:
        known = self._traces.get(key)
        trace = None if known is None else known.get(signature)
        if trace is not None and known is not None:
            known.move_to_end(signature)
        return trace

    def _drop(
        self,
        key: Key,
        saving: Saving,
        trace: Trace,
        signature: Signature,
        remade: Remade,
        arguments: list[Any],
    ) -> bool:
        graph = trace.graph
        other = remade.graph not in ("", graph.digest)
        if other or not graph.can_let_go(remade.dropped, remade.offloaded):
            self.missed += 1
            return False
        if not saving.matches(trace):
            self.strays += 1
            self._strayed[key] += 1
            del self._traces[key][signature]
            return False
        saving.drop(self._choice(trace, remade), arguments, self.offloads)
        return True

    def _choice(self, trace: Trace, remade: Remade) -> Choice:
        key = (id(trace), remade.dropped, remade.offloaded)
        found = self._choices.get(key)
        if found is None:
            # The trace beside it keeps its identity from being another one's.
            choice = Choice(trace, remade.dropped, remade.offloaded)
            found = self._choices[key] = trace, choice
        return found[1]

    def _settings_of(self, wrapper: BlockForward) -> Settings:
        settings = self._settings.get(wrapper.index)
        if settings is None:
            settings = self._settings[wrapper.index] = Settings(wrapper.module)
        return settings

    def _signature(
        self,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        arguments: list[Any],
    ) -> Signature:
        spec = pytree.tree_structure((args, kwargs))
        return (
            spec,
            tuple(map(_told, arguments)),
            self._settings_of(wrapper).now(),
            _autocast(self._device.torch_device.type),
        )


def _told(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        if leaf.layout != torch.strided:
            return id(leaf)
        return (
            leaf.shape,
            leaf.stride(),
            leaf.storage_offset(),
            leaf.dtype,
            leaf.device,
            leaf.requires_grad,
        )
    return leaf if isinstance(leaf, (int, float, bool, str, bytes, type(None))) else id(leaf)


def _autocast(kind: str) -> tuple[Any, ...]:
    if kind == "meta" or not torch.is_autocast_enabled(kind):
        return ()
    return torch.get_autocast_dtype(kind), torch.is_autocast_cache_enabled()


def _no_hooks() -> bool:
    """Whether nobody has hooks of their own on what is saved for backward."""
    top: Callable[[bool], Any] | None = getattr(
        torch._C._autograd, "_top_saved_tensors_default_hooks", None
    )
    return top is None or top(False) is None
