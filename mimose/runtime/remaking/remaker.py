"""Run a model's blocks so that what a plan drops of what they save is made again in backward."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch

from mimose.devices.base import Device
from mimose.menu import BlockGraph
from mimose.plan import Remade
from mimose.runtime.calls import Key
from mimose.runtime.remaking.casts import Casts
from mimose.runtime.remaking.likeness import translated
from mimose.runtime.remaking.offloading import Offloads
from mimose.runtime.remaking.proof import Proofs
from mimose.runtime.remaking.recipes import Choice
from mimose.runtime.remaking.saving import Saving, Taken, take, unchanged, version_of
from mimose.runtime.remaking.settings import Settings
from mimose.runtime.remaking.signature import (
    SETTINGS,
    Signature,
    hooks_in_force,
    leaves_of,
    readable,
    signature_of,
)
from mimose.runtime.remaking.trace import Trace
from mimose.runtime.remaking.tracing import Tracer, recording
from mimose.runtime.wrappers import BlockForward

_MOST_TRACES = 128
"""Of one block."""
_MOST_STRAYS = 3
"""Calls that save something else than their trace says, before a block is left alone."""
_MOST_TRANSLATIONS = 1024
_MOST_TRIES = 8
"""Values of a call that are tried before a plan asks for them."""
_MOST_CHANGES = 8
"""Calls in a row, each with settings never seen before, before a block is left alone."""


class Looked(NamedTuple):
    """A block's call that is about to be made.

    Attributes:
        key: The call.
        wrapper: Its block.
        leaves: What its arguments hold.
        signature: What its trace depends on.
    """

    key: Key
    wrapper: BlockForward
    leaves: list[Any]
    signature: Signature


def before(tracer: Tracer) -> Taken:
    """Return what a call that is to be traced may read of what is there before it."""
    return {given: (t, version_of(t)) for given, t in tracer.draft.taken.items()}


class Remaker:
    """Traces blocks and carries out what plans drop.

    Args:
        device: What the blocks run on.

    Attributes:
        strays: Calls that saved something else than their trace said, and kept all of it.
        missed: Calls whose graph was not the one that the plan was made for, and on which nothing
            of the same names can go.
        offloads: What sends values to the host's memory.
        expected_peak: Bytes that the step is predicted to have allocated at its peak; None if
            nothing is predicted.
    """

    def __init__(self, device: Device) -> None:
        self.expected_peak: int | None = None
        self.strays = self.missed = 0
        self.offloads = Offloads(device)
        self._device = device
        self._kind = device.torch_device.type
        self._casts = Casts()
        self._proofs = Proofs(self._kind, self._has_room)
        self._traces: dict[Key, OrderedDict[Signature, Trace]] = {}
        self._choices: dict[tuple[Any, ...], Choice] = {}
        self._settings: dict[int, Settings] = {}
        self._strayed: Counter[Key] = Counter()
        self._graphs: dict[str, BlockGraph] = {}
        self._translations: dict[tuple[Remade, str], Remade | None] = {}
        self._planned: dict[str, set[int]] = {}
        # Calls that changed their own settings when they were traced last.
        self._unlearned: set[Key] = set()

    def begin(self, planned: Iterable[Remade]) -> None:
        """Begin a step in which a plan drops these."""
        self.offloads.begin()
        self._planned = {}
        for remade in planned:
            self._planned.setdefault(remade.graph, set()).update(remade.dropped)

    def look(
        self,
        key: Key,
        wrapper: BlockForward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Looked | None:
        """Look at a block's call that is about to be made; None if it must be left alone."""
        if (
            not torch.is_grad_enabled()
            or wrapper.compiles
            or wrapper.checkpoints
            or self._strayed.get(key, 0) >= _MOST_STRAYS
            or hooks_in_force()
        ):
            return None
        settings = self._settings_of(wrapper)
        leaves, structure = leaves_of(args, kwargs)
        now = settings.now()
        if settings.opaque or settings.restless >= _MOST_CHANGES or not readable(leaves):
            return None
        return Looked(key, wrapper, leaves, signature_of(leaves, structure, now, self._kind))

    def fits(self, looked: Looked, remade: Remade) -> bool:
        """Whether a plan's choice is one for this call, as far as that is known.

        A block that changes what it goes by at each call has no trace that another one is like.
        """
        trace = self._known(looked)
        fits = (
            looked.key not in self._unlearned
            if trace is None
            else self._chosen(trace, remade) is not None
        )
        if fits:
            return True
        self.missed += 1
        return False

    def run(
        self, looked: Looked, remade: Remade, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Remade | None]:
        """Run a block's call and drop what the plan says.

        The whole of what it saves stays until its forward is over and has been found to be what
        the trace says; then the chosen values go. A call unlike its trace keeps everything.

        Returns:
            What the block returned, and what was dropped, if anything was.
        """
        trace, wrapper = self._known(looked), looked.wrapper
        chosen = None if trace is None else self._chosen(trace, remade)
        if trace is None or chosen is None:
            return self._run_first(looked, remade, args, kwargs)
        done, choice = chosen
        # Before the call: it may put another buffer in the place of one that it has read.
        taken = take(choice.given, looked.leaves, trace.layouts)
        ahead = self._ahead(choice)
        there = take({g for one in ahead for g in one.given}, looked.leaves, trace.layouts)
        saving = Saving(wrapper.name)
        with saving.hooks():
            result = wrapper.inner(*args, **kwargs)
        if (
            taken is None
            or not saving.matches(trace)
            or not unchanged(taken)
            or not self._proofs.hold(choice, saving, taken)
        ):
            self.strays += 1
            self._strayed[looked.key] += 1
            del self._traces[looked.key][looked.signature]
            return result, None
        if there is not None:
            self._proofs.try_ahead(ahead, saving, there)
        saving.drop(choice, taken, self.offloads)
        return result, done

    def _run_first(
        self, looked: Looked, remade: Remade, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Remade | None]:
        """Run a call of a kind that was not traced before."""
        wrapper, tracer = looked.wrapper, self.tracer(looked)
        everything = before(tracer)
        saving = Saving(wrapper.name)
        with saving.hooks(tracer.note), recording(tracer):
            result = wrapper.inner(*args, **kwargs)
        trace = tracer.finish(result)
        known = self.learn(looked, trace)
        return result, self.drop(trace if known else None, remade, saving, everything)

    def drop(
        self, trace: Trace | None, remade: Remade, saving: Saving, everything: Taken
    ) -> Remade | None:
        """Drop what the plan says of what a call has saved that was traced just now.

        Args:
            trace: Its trace; None if that is not to be gone by.
            remade: What the plan says.
            saving: What the call has saved.
            everything: What was there before it.

        Returns:
            What was dropped; None if nothing was.
        """
        chosen = None if trace is None else self._chosen(trace, remade)
        if chosen is None:
            self.missed += 1
            return None
        done, choice = chosen
        taken = {
            source: (tensor.detach(), version)
            for source, (tensor, version) in everything.items()
            if source in choice.given
        }
        if not unchanged(taken) or not self._proofs.hold(choice, saving, taken):
            self.strays += 1
            return None
        self._proofs.try_ahead(self._ahead(choice), saving, everything)
        saving.drop(choice, taken, self.offloads)
        return done

    def tracer(self, looked: Looked) -> Tracer:
        """Return what traces a call."""
        return Tracer(looked.wrapper.module, looked.leaves, self._device, self._casts)

    def learn(self, looked: Looked, trace: Trace) -> bool:
        """Remember a trace; returns False if it is not to be gone by.

        That of a call that changes its own module's settings is not: the next one finds others.
        """
        signature = looked.signature
        if self._settings_of(looked.wrapper).now() != signature[SETTINGS]:
            self._unlearned.add(looked.key)
            return False
        self._unlearned.discard(looked.key)
        self._graphs.setdefault(trace.graph.digest, trace.graph)
        known = self._traces.setdefault(looked.key, OrderedDict())
        known[signature] = trace
        if len(known) > _MOST_TRACES:
            _, oldest = known.popitem(last=False)
            self._choices = {k: c for k, c in self._choices.items() if c.trace is not oldest}
        return True

    def _known(self, looked: Looked) -> Trace | None:
        known = self._traces.get(looked.key)
        trace = None if known is None else known.get(looked.signature)
        if trace is not None and known is not None:
            known.move_to_end(looked.signature)
        return trace

    def _ahead(self, choice: Choice) -> list[Choice]:
        """Return what else of a call's graph is to be tried, one value each.

        First what later calls of the step drop: early in a step there is more room than there. Then
        what a later step may.
        """
        trace = choice.trace
        values = self._proofs.untried(trace.graph, choice.dropped)
        if not values:
            return []
        planned = self._planned.get(trace.graph.digest, ())
        values.sort(key=lambda value: (value not in planned, value))
        return [self._choice(trace, Remade(0, (value,))) for value in values[:_MOST_TRIES]]

    def _choice(self, trace: Trace, remade: Remade) -> Choice:
        # The choice holds the trace, and so keeps its identity from being another one's.
        key = id(trace), remade.dropped, remade.offloaded
        found = self._choices.get(key)
        if found is None:
            found = self._choices[key] = Choice(trace, remade.dropped, remade.offloaded)
        return found

    def _chosen(self, trace: Trace, remade: Remade) -> tuple[Remade, Choice] | None:
        """Return what is to go, on the graph that a call turned out to have; None if nothing can.

        That is what the plan says, or what has the same names where that was made for another
        graph.
        """
        graph = trace.graph
        self._graphs.setdefault(graph.digest, graph)
        meant: Remade | None = remade
        if remade.graph not in ("", graph.digest):
            key = remade, graph.digest
            if key not in self._translations:
                planned = self._graphs.get(remade.graph)
                meant = None if planned is None else translated(remade, planned, graph)
                if len(self._translations) >= _MOST_TRANSLATIONS:
                    self._translations.clear()
                self._translations[key] = meant
            meant = self._translations[key]
        if meant is None:
            return None
        choice = self._choice(trace, meant)
        return (meant, choice) if choice.able and not self._proofs.fail(choice) else None

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes more do not exceed the step's predicted peak."""
        expected = self.expected_peak
        return expected is None or self._device.allocated_bytes() + size <= expected

    def _settings_of(self, wrapper: BlockForward) -> Settings:
        settings = self._settings.get(wrapper.index)
        if settings is None:
            settings = self._settings[wrapper.index] = Settings(wrapper.module)
        return settings
