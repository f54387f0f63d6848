"""How much of a budget on reserved bytes is lost to pieces that nothing fits into, learnt by doing.

What a policy keeps to are allocated bytes, what is enforced are reserved ones. Where no free piece
is large enough and the budget leaves no room for another segment, the allocator waits for the
device, hands its free segments back and tries again. That succeeds, but takes as long as computing
a good many storages again: evicting a little earlier costs less.
"""

from __future__ import annotations

from typing import Protocol

EVERY = 64
"""Operators between two looks at the allocator."""

_FEW = 1
"""Retries in that time that are let pass."""

_SHARE = 1 / 128
"""Of the budget, what is kept free in addition each time that there were more."""

_MOST = 0.3
"""Of the budget, what is kept free at most."""

_BACK = 1 / 4
"""Of such a share, what is given back after a step that evicted and had no retry."""


class Retries(Protocol):
    """The allocator."""

    def alloc_retries(self) -> int:
        """Return how often it has handed segments back to have an allocation succeed."""


class Pieces:
    """Bytes that a policy keeps free below its own budget, for as long as it can evict anything.

    Args:
        device: Whose allocator it is.
        budget_bytes: The budget.

    Attributes:
        spare_bytes: What is kept free.
    """

    def __init__(self, device: Retries, budget_bytes: int) -> None:
        self._device = device
        self._unit = max(1, int(_SHARE * budget_bytes))
        self._most = int(_MOST * budget_bytes)
        self._operators = self._seen = self._at_begin = 0
        self.spare_bytes = 0

    def begin(self) -> None:
        """A step begins."""
        self._operators = 0
        self._seen = self._at_begin = self._device.alloc_retries()

    def operated(self) -> None:
        """An operator has run."""
        self._operators += 1
        if self._operators % EVERY == 0:
            self._look()

    def end(self, num_evictions: int) -> None:
        """The step is over, and so many storages were evicted in it."""
        self._look()
        if num_evictions and self._seen == self._at_begin:
            self.spare_bytes = max(0, self.spare_bytes - int(_BACK * self._unit))

    def _look(self) -> None:
        retries = self._device.alloc_retries()
        if retries - self._seen > _FEW:
            self.spare_bytes = min(self._most, self.spare_bytes + self._unit)
        self._seen = retries
