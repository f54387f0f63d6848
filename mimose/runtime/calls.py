"""Number a model's block calls: a block is a call, not a module."""

from __future__ import annotations

from collections.abc import Sequence

Key = tuple[int, int]
"""A block's identity: the module's place among the block modules, and which of its calls in the
forward pass (from 0)."""


class CallOrder:
    """The block calls of a model in the order of its forward pass.

    Until a forward pass has been seen each module is taken to be called once, in order of
    registration. Later passes may leave calls out (layer drop); calls never seen before are put in
    behind the one that they followed.

    Attributes:
        keys: The calls; a block's number is its place here.
        exact: Whether a forward pass has been seen.
    """

    __slots__ = ("exact", "keys")

    def __init__(self, num_modules: int) -> None:
        self.keys: list[Key] = [(index, 0) for index in range(num_modules)]
        self.exact = False

    def learn(self, sequence: Sequence[Key]) -> bool:
        """Take in the calls of a finished forward pass; return whether any number changed."""
        if not sequence:
            return False
        if not self.exact:
            self.exact = True
            changed = self.keys != list(sequence)
            self.keys = list(sequence)
            return changed
        known = set(self.keys)
        if known.issuperset(sequence):
            return False
        place = 0
        for key in sequence:
            if key in known:
                place = self.keys.index(key) + 1
            else:
                self.keys.insert(place, key)
                place += 1
        return True

    def numbers(self, num_modules: int) -> list[list[int]]:
        """Return, for each module, the block numbers of its first, second, ... call."""
        by_module: list[dict[int, int]] = [{} for _ in range(num_modules)]
        for number, (index, nth) in enumerate(self.keys):
            by_module[index][nth] = number
        return [[calls[nth] for nth in sorted(calls)] for calls in by_module]
