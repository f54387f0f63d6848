"""Try recipes out where what they make is still there, before it is dropped for the first time.

An operator may not do the same twice although nothing about it says so: sums whose order varies, a
kernel that fills a tensor unseen. So in each graph each value is made again once, beside the one
that is there, and what does not come out the same bit by bit is not dropped.

Nor can all be watched that a forward goes by: a random generator of NumPy's, what an object of
another library says. A recipe made before such a thing changed would be wrong without a word. So
every now and then one value is tried again. That does not undo what was wrong until then, but it
ends it and says so.
"""

from __future__ import annotations

import warnings
from collections import defaultdict

import torch

from mimose.runtime.remaking.recipes import Choice, as_shape, run
from mimose.runtime.remaking.saving import Saving, Taken

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_EVERY = 16
"""Of so many calls of a block with one graph one tries a value again."""
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
    """

    __slots__ = ("_bad", "_calls", "_good", "_kind", "_warned")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._good: dict[str, set[int]] = defaultdict(set)
        self._bad: dict[str, set[int]] = defaultdict(set)
        self._calls: dict[tuple[str, str], int] = {}
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
            same = _comes_out(choice, value, saving, taken)
            if same is not None:
                (good if same else self._bad[digest]).add(value)
        return not self.fail(choice)

    def _audit(self, choice: Choice, saving: Saving, taken: Taken) -> bool:
        """Try one value again, in turn, at some calls; returns whether all is well."""
        digest = choice.trace.graph.digest
        # Blocks begin apart, so that not all of them try in the same step.
        key = digest, saving.name
        count = self._calls.get(key, 5 * len(self._calls) % _EVERY) + 1
        self._calls[key] = count
        if count % _EVERY or not choice.dropped:
            return True
        order = sorted(choice.dropped)
        value = order[count // _EVERY % len(order)]
        if _comes_out(choice, value, saving, taken) is not False:
            return True
        self._bad[digest].add(value)
        # What else was good may have gone the same way: try all of it again.
        self._good[digest].clear()
        if not self._warned:
            self._warned = True
            warnings.warn(_STALE.format(saving.name), UserWarning, stacklevel=2)
        return False


def _comes_out(choice: Choice, value: int, saving: Saving, taken: Taken) -> bool | None:
    """Return whether a value comes out the same; None if that cannot be tried now."""
    try:
        return _same(choice, value, saving, taken)
    except torch.OutOfMemoryError:
        return None
    except Exception:  # Whatever it is, backward must not meet with it.
        return False


def _same(choice: Choice, value: int, saving: Saving, taken: Taken) -> bool:
    there = {leaf: _tensor(saving, place) for leaf, place in choice.leaves[value]}
    given = {source: tensor for source, (tensor, _) in taken.items()}
    given.update((source, _tensor(saving, source.pack)) for source in choice.packed)
    made = run(choice.program(value, frozenset()), (there,), given)[value]
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
