"""Try recipes out where what they make is still there, before it is dropped for the first time.

An operator may not do the same twice although nothing about it says so: sums whose order varies, a
kernel that fills a tensor unseen. So in each graph each value is made again once, beside the one
that is there, and what does not come out the same bit by bit is not dropped.

Nor can all be watched that a forward goes by: a random generator of NumPy's, what an object of
another library says. A recipe made before such a thing changed would be wrong without a word. So
every now and then one value is tried again, where there is room for it. That does not undo what was
wrong until then, but it ends it and says so.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable

import torch

from mimose.menu import BlockGraph
from mimose.runtime.remaking.recipes import Choice, as_shape, run
from mimose.runtime.remaking.saving import Saving, Taken, unchanged

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EVERY = 16
"""Of so many calls of a block with one graph one tries a value again."""
_MOST_IN_VAIN = 256
"""Values in a row for which there was no room, before none is tried ahead of its plan."""
_PATIENCE = 4
"""After so many times as many it does even where that takes more than the step was to."""
_STALE = (
    "mimose: since some step what block {} computes depends on something that has changed and was "
    "not seen, or that differs each time: what is made again for its backward does not come out "
    "the same any more, and gradients since that step may be wrong. From here on it is kept. Pass "
    "what changes as an argument of the block or keep it as an attribute of its module; "
    'planner="mimose" recomputes whole blocks instead.'
)


class Proofs:
    """What was tried out already.

    Args:
        kind: The kind of device; where tensors hold nothing there is nothing to try.
        has_room: Whether so many bytes may be taken for a moment.
    """

    __slots__ = ("_bad", "_calls", "_good", "_has_room", "_in_vain", "_kind", "_warned")

    def __init__(self, kind: str, has_room: Callable[[int], bool]) -> None:
        self._kind = kind
        self._has_room = has_room
        self._good: dict[str, set[int]] = defaultdict(set)
        self._bad: dict[str, set[int]] = defaultdict(set)
        # For how many values since the last try there was no room.
        self._in_vain: dict[str, int] = defaultdict(int)
        # How often one was tried again, and how many calls there were since.
        self._calls: dict[tuple[str, str], tuple[int, int]] = {}
        self._warned = False

    def fail(self, choice: Choice) -> bool:
        """Whether some of it was tried out and did not come out the same."""
        bad = self._bad.get(choice.trace.graph.digest)
        return bad is not None and not bad.isdisjoint(choice.dropped)

    def hold(self, choice: Choice, saving: Saving, taken: Taken) -> bool:
        """Whether all of it comes out the same; tries what was not tried, or at times some again.

        Args:
            choice: What is to be dropped.
            saving: What a call that has just run has saved.
            taken: What was there before the call.
        """
        digest = choice.trace.graph.digest
        good = self._good[digest]
        if self._kind == "meta":
            return True
        if choice.dropped <= good:
            return self._audit(choice, saving, taken)
        for value in choice.dropped - good:
            # From the others, which are there, too: each is tried by itself, in the least room.
            same = _comes_out(choice, value, saving, taken, choice.dropped - {value})
            self._settle(digest, value, same)
        return not self.fail(choice)

    def untried(self, graph: BlockGraph, dropped: frozenset[int]) -> list[int]:
        """Return what of a graph could be dropped besides ``dropped`` and was not tried."""
        digest = graph.digest
        if self._kind == "meta" or self._in_vain.get(digest, 0) >= _MOST_IN_VAIN:
            return []
        tried = dropped.union(self._good.get(digest, ()), self._bad.get(digest, ()))
        values = [value for value in graph.droppable() if value not in tried]
        if not values:
            self._in_vain[digest] = _MOST_IN_VAIN  # All is known: do not ask again.
        return values

    def try_ahead(self, choices: Iterable[Choice], saving: Saving, taken: Taken) -> None:
        """Try single values before a plan asks for them, where there is room.

        Args:
            choices: One for each value.
            saving: What a call that has just run has saved.
            taken: What was there before the call.
        """
        for choice in choices:
            digest, (value,) = choice.trace.graph.digest, choice.dropped
            self._in_vain[digest] += 1
            there = {given: taken[given] for given in choice.given if given in taken}
            if len(there) < len(choice.given) or not unchanged(there):
                continue
            if self._has_room(_bytes(choice, value)):
                self._settle(digest, value, _comes_out(choice, value, saving, there))

    def _settle(self, digest: str, value: int, same: bool | None) -> None:
        if same is not None:
            (self._good if same else self._bad)[digest].add(value)
            self._in_vain[digest] = 0

    def _audit(self, choice: Choice, saving: Saving, taken: Taken) -> bool:
        """Try one value again, in turn, at some calls; returns whether all is well."""
        digest = choice.trace.graph.digest
        # Blocks begin apart, so that not all of them try in the same step.
        key = digest, saving.name
        turns, since = self._calls.get(key, (0, 5 * len(self._calls) % _EVERY))
        since += 1
        order = sorted(choice.dropped)
        if since < _EVERY or not order:
            self._calls[key] = turns, since
            return True
        value = order[turns % len(order)]
        if since < _PATIENCE * _EVERY and not self._has_room(_bytes(choice, value)):
            self._calls[key] = turns, since  # At the next call, then.
            return True
        self._calls[key] = turns + 1, 0
        if _comes_out(choice, value, saving, taken) is not False:
            return True
        self._bad[digest].add(value)
        # What else was good may have gone the same way: try all of it again.
        self._good[digest].clear()
        if not self._warned:
            self._warned = True
            warnings.warn(_STALE.format(saving.name), UserWarning, stacklevel=2)
        return False


def _bytes(choice: Choice, value: int) -> int:
    """Return what trying a value out takes at most."""
    sizes = choice.trace.bytes
    there = most = 0
    program = choice.program(value, frozenset())
    for step, released in zip(program.steps, program.releases):
        there += sum(sizes[made] for _, made, _ in step.outputs)
        most = max(most, there)
        there -= sum(sizes[gone] for gone in released)
    return most


def _comes_out(
    choice: Choice,
    value: int,
    saving: Saving,
    taken: Taken,
    given: frozenset[int] = frozenset(),
) -> bool | None:
    """Return whether a value comes out the same; None if that cannot be tried now.

    It is made as in backward, but for the dropped values ``given``, which are taken as they are.
    """
    try:
        return _same(choice, value, saving, taken, given)
    except torch.OutOfMemoryError:
        return None
    except Exception:  # Whatever it is, backward must not meet with it.
        return False


def _same(choice: Choice, value: int, saving: Saving, taken: Taken, known: frozenset[int]) -> bool:
    places = {leaf: place for one in (value, *known) for leaf, place in choice.leaves[one]}
    places.update((one, choice.first[one]) for one in known)
    there = {one: _tensor(saving, place) for one, place in places.items()}
    given = {source: tensor for source, (tensor, _) in taken.items()}
    given.update((source, _tensor(saving, source.pack)) for source in choice.packed)
    made = run(choice.program(value, known), (there,), given)[value]
    return all(
        _equal(as_shape(made, choice.trace.packs[place].shape), _tensor(saving, place))
        for place, of in choice.packs
        if of == value
    )


def _tensor(saving: Saving, place: int) -> torch.Tensor:
    tensor = saving.slots[place].tensor
    assert tensor is not None, "nothing is gone yet"
    return tensor


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    bits = _BITS[one.dtype.itemsize]
    return torch.equal(one.view(bits), other.view(bits))
