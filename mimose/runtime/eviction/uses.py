"""When a step's storages are used, foretold from the step before.

A training step mostly repeats the one before: the same operators on the same storages, at other
times where the batch has another size. As long as the operators agree, the next use of a storage is
known by its place in that sequence; from the first that differs on it has to be guessed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from math import inf
from typing import Any

from mimose.runtime.eviction.graph import Storage, Tensor

BACKWARD_PACE = 2.0
"""Backward's time over forward's, for guesses: it computes two gradients for each product."""

_MOST_LOOKED_AT = 16
"""Missing storages looked at to find what one of them will be made from."""


class _Sequence:
    """The operators of one step.

    Attributes:
        keys: What each one was.
        seconds: When each one was done, since the step began.
        reads: Which storages each one read, by their places in the order of making.
        uses: For each storage, the places of operators that read it.
    """

    __slots__ = ("keys", "reads", "seconds", "uses")

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.seconds: list[float] = []
        self.reads: list[list[int]] = []
        self.uses: list[list[int]] = []


class Uses:
    """Records a step's operators, and compares them with those of the step before.

    Attributes:
        known: The operators so far have been those of the step before.
        turned: When backward began, in the backend's time; None before.
    """

    def __init__(self) -> None:
        self._last = self._this = _Sequence()
        self.begin(0.0)

    def begin(self, now: float) -> None:
        """A step begins; the one before was whole."""
        self._last, self._this = self._this, _Sequence()
        self.known = bool(self._last.keys)
        self.turned: float | None = None
        self._began = now
        self._made: dict[Storage, tuple[int, float]] = {}
        self._storages: list[Storage] = []
        self._ahead = 0

    def abandon(self) -> None:
        """The step that was begun last is not whole: keep the one before."""
        self._this = self._last

    def note(
        self,
        key: Any,
        parents: Iterable[Tensor],
        outputs: Iterable[Tensor],
        now: float,
        *,
        backward: bool,
    ) -> None:
        """Note that an operator of the model's own has run.

        Args:
            key: What it is; equal for equal ones in any step.
            parents: Its arguments.
            outputs: What it made.
            now: The time.
            backward: Whether it belongs to backward.
        """
        if backward and self.turned is None:
            self.turned = now
        this, last, made = self._this, self._last, self._made
        position = len(this.keys)
        if self.known and (position >= len(last.keys) or last.keys[position] != key):
            self.known = False
        this.keys.append(key)
        this.seconds.append(now - self._began)
        reads = []
        for parent in parents:
            found = made.get(parent.storage)
            if found is not None:
                reads.append(found[0])
                this.uses[found[0]].append(position)
        this.reads.append(reads)
        for output in outputs:
            if output.storage not in made:
                made[output.storage] = len(this.uses), now
                this.uses.append([])
                self._storages.append(output.storage)

    def age(self, storage: Storage) -> int:
        """Return how many storages were made after this one."""
        found = self._made.get(storage)
        return 0 if found is None else len(self._storages) - 1 - found[0]

    def seconds_until(self, storage: Storage, now: float) -> float:
        """Return when a storage is used next: known, infinite if never, or guessed.

        The guess: forward is followed by backward, which takes :data:`BACKWARD_PACE` times as long
        and uses last what was made first. In forward, which goes on for nobody knows how long, that
        is the time since the storage was made, at least.
        """
        found = self._made.get(storage)
        if found is None:
            return inf
        place, when = found
        if self.known and self._this.keys:
            position = len(self._this.keys) - 1
            uses = self._last.uses[place] if place < len(self._last.uses) else []
            following = bisect_right(uses, position)
            if following == len(uses):
                return inf
            return self._seconds_to(uses[following], now)
        if self.turned is None:
            return now - when
        if when > self.turned:
            return inf
        return max(0.0, self.turned + BACKWARD_PACE * (self.turned - when) - now)

    def seconds_ahead(self, now: float) -> float:
        """Return when what :meth:`next_wanted` returned last is wanted; a guess is its next use."""
        if not self.known:
            wanted = self._last_made()
            return inf if wanted is None else self.seconds_until(wanted, now)
        return self._seconds_to(self._ahead, now)

    def _seconds_to(self, position: int, now: float) -> float:
        """Return how long it is until an operator runs that the step before had, too."""
        seconds = self._last.seconds
        passed = seconds[len(self._this.keys) - 1]
        pace = (now - self._began) / passed if passed > 0 else 1.0
        return max(0.0, (seconds[position] - passed) * pace)

    def look_again(self) -> None:
        """Storages left: look for what is wanted from the present on."""
        self._ahead = 0

    def next_wanted(self) -> Storage | None:
        """Return the storage on the host that is used first from here on, if any is.

        Used is also what a missing one will have to be made from.
        """
        if not self.known:
            return self._last_made()
        last, storages = self._last, self._storages
        ahead = max(self._ahead, len(self._this.keys))
        while ahead < len(last.reads):
            for place in last.reads[ahead]:
                wanted = _on_host(storages[place]) if place < len(storages) else None
                if wanted is not None:
                    self._ahead = ahead
                    return wanted
            ahead += 1
        self._ahead = ahead
        return None

    def _last_made(self) -> Storage | None:
        """Return the last storage of forward that is on the host, in backward."""
        if self.turned is None:
            return None
        for storage in reversed(self._storages):
            if storage.on_host and self._made[storage][1] <= self.turned:
                return storage
        return None


def _on_host(storage: Storage) -> Storage | None:
    """Return the storage, or one that it will be made from, if that is on the host."""
    if storage.on_host:
        return storage
    if not storage.missing:
        return None
    stack, seen = [storage], {storage}
    while stack and len(seen) <= _MOST_LOOKED_AT:
        for tensor in stack.pop().tensors:
            for parent in tensor.operator.parents if tensor.operator is not None else ():
                other = parent.storage
                if other.on_host:
                    return other
                if other.missing and other not in seen:
                    seen.add(other)
                    stack.append(other)
    return None
