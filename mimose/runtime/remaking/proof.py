"""Try recipes out where what they make is still there, before it is dropped for the first time.

An operator may not do the same twice although nothing about it says so: sums whose order varies, a
kernel that fills a tensor unseen. So in each graph each value is made again once, beside the one
that is there, and what does not come out the same bit by bit is not dropped.
"""

from __future__ import annotations

from collections import defaultdict

import torch

from mimose.runtime.remaking.recipes import Choice, as_shape, run
from mimose.runtime.remaking.saving import Saving, Taken

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Proofs:
    """What was tried out already.

    Args:
        kind: The kind of device; where tensors hold nothing there is nothing to try.
    """

    __slots__ = ("_bad", "_good", "_kind")

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._good: dict[str, set[int]] = defaultdict(set)
        self._bad: dict[str, set[int]] = defaultdict(set)

    def fail(self, choice: Choice) -> bool:
        """Whether some of it was tried out and did not come out the same."""
        bad = self._bad.get(choice.trace.graph.digest)
        return bad is not None and not bad.isdisjoint(choice.dropped)

    def hold(self, choice: Choice, saving: Saving, taken: Taken) -> bool:
        """Whether all of it comes out the same; tries out what was not tried before.

        Args:
            choice: What is to be dropped.
            saving: What a call that has just run has saved.
            taken: What was there before the call.
        """
        digest = choice.trace.graph.digest
        good = self._good[digest]
        if choice.dropped <= good or self._kind == "meta":
            return True
        for value in choice.dropped - good:
            try:
                same = _same(choice, value, saving, taken)
            except torch.OutOfMemoryError:
                continue  # Another time.
            except Exception:  # Whatever it is, backward must not meet with it.
                same = False
            (good if same else self._bad[digest]).add(value)
        return not self.fail(choice)


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
