"""When, after the last block, nobody holds any more what blocks were given and have returned.

A recomputed block holds its input until its backward, so no level of memory tells when its caller
lets go of it; where the block is kept, that memory is free from then on. So whenever a module is
called after the last block, the number of references tells what is still held. What the block has
returned says itself when it goes.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable
from functools import partial
from threading import get_ident
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from mimose.runtime.calls import Key
from mimose.runtime.levels import Levels
from mimose.runtime.wrappers import COMPILED_CALL, BlockForward

Place = tuple[Key, int]
"""A call, and a place among its flattened arguments."""


class Peaks(NamedTuple):
    """The highest levels between the last block's forward and the end of the model's, in order.

    Attributes:
        returning: As long as its caller held all that the last block returned and saves; None
            where it lets go of nothing.
        holding: Until all inputs of blocks were let go of that are by the end.
        after: From then on; as high as ``holding`` where that was not before the end.
    """

    returning: int | None
    holding: int
    after: int


class _Moment(NamedTuple):
    """One look.

    Attributes:
        peak: The highest level since the one before.
        references: How many there were of each input.
        whole: Whether nothing that the last block has returned was gone.
    """

    peak: int
    references: list[int]
    whole: bool


class Afterwards:
    """Watches one forward pass from the end of each block's call to the next block's.

    Args:
        levels: What measures.

    Attributes:
        early: Of the inputs those that their callers had let go of when the next block was called.
    """

    def __init__(self, levels: Levels) -> None:
        self._levels = levels
        self.early: frozenset[Place] = frozenset()
        self._given: dict[Place, weakref.ref[torch.Tensor]] = {}
        self._new: list[Place] = []
        self._passed_on: dict[Place, int] = {}
        self._returned: list[weakref.ref[torch.Tensor]] = []
        self._whole = True
        self._moments: list[_Moment] = []
        self._thread = 0
        self._handle: RemovableHandle | None = None

    def note(self, key: Key, place: int, tensor: torch.Tensor) -> None:
        """Note what a block's call is given, and may be the last to hold."""
        self._given[key, place] = weakref.ref(tensor)
        self._new.append((key, place))

    def watch(self, returned: Iterable[torch.Tensor]) -> None:
        """Look at every call of a module from now on, and when a block's results go.

        Args:
            returned: Those results that the block's backward needs, too.
        """
        self.stop()
        self._moments.clear()
        self._whole = True
        self._thread = get_ident()
        own = weakref.ref(self)
        self._returned = [weakref.ref(tensor, partial(_let_go, own)) for tensor in returned]
        self._handle = register_module_forward_pre_hook(partial(_called, own))

    def go_on(self) -> None:
        """Note that the next block is called."""
        self.stop()
        self._passed_on.update((one, _references(self._given[one])) for one in self._new)
        self._new.clear()

    def stop(self) -> None:
        """Look no more."""
        handle, self._handle = self._handle, None
        self._returned = []
        if handle is not None:
            handle.remove()

    def look(self) -> None:
        """Note what is held now, and the peak since the last time."""
        if self._handle is None or get_ident() != self._thread:
            return
        peak = self._levels.look().peak_allocated
        if peak is None:
            self.stop()
            return
        references = [_references(reference) for reference in self._given.values()]
        self._moments.append(_Moment(peak, references, self._whole))

    def let_go(self) -> None:
        """Note that something that the last block has returned is about to be gone."""
        if self._whole:
            self.look()
            self._whole = False

    def end(self) -> Peaks | None:
        """Return the peaks, now that the model's forward is over; None if nothing was watched."""
        self.look()
        self.early = frozenset(
            one for one, then in self._passed_on.items() if then <= _references(self._given[one])
        )
        if self._handle is None:
            return None
        self.stop()
        moments = self._moments
        peaks = [moment.peak for moment in moments]
        start = 0 if self._whole else sum(moment.whole for moment in moments[:-1])
        end = moments[-1].references
        place = start + 1
        while any(now > then for now, then in zip(moments[place - 1].references, end)):
            place += 1
        holding = max(peaks[start:place])
        return Peaks(max(peaks[:start], default=None), holding, max(peaks[place:], default=holding))


def has_compiled_parts(model: nn.Module) -> bool:
    """Whether a module beside the blocks is compiled, with the hooks that are there meanwhile."""
    return any(
        "_orig_mod" in module._modules
        or not isinstance(vars(module).get(COMPILED_CALL), BlockForward | None)
        for module in model.modules()
    )


def _references(reference: weakref.ref[torch.Tensor]) -> int:
    tensor = reference()
    return 0 if tensor is None else sys.getrefcount(tensor)


def _called(own: weakref.ref[Afterwards], module: nn.Module, args: Any) -> None:
    if torch.compiler.is_compiling():
        return
    afterwards = own()
    if afterwards is not None:
        afterwards.look()


def _let_go(own: weakref.ref[Afterwards], tensor: weakref.ref[torch.Tensor]) -> None:
    afterwards = own()
    if afterwards is not None:
        afterwards.let_go()
