"""What the bus is promised: which storages are to come back, by when, and when there is room.

A storage that is swapped out has to be back when it is used next. On its way it queues behind those
that are used before it, and there has to be memory for it: as long as all that is used earlier
fills the budget, it can only be brought back by evicting something else. Both are foretold from the
step before, which did the same operators. All times are of the model's own operators and leave out
what that step waited: a wait is no time in which a transfer is hidden.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import inf

from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.graph import Storage, Tensor
from mimose.runtime.eviction.uses import Uses


class _Course:
    """One step as its operators went by.

    Attributes:
        seconds: The model's own time after each of them.
        made: Bytes made up to each of them.
        lives: For each storage: its bytes, the operators that made it and that read it last.
    """

    __slots__ = ("lives", "made", "seconds")

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.made: list[int] = []
        self.lives: list[list[int]] = []

    def least_from(self, resident: int) -> list[int]:
        """Return for each operator the most that is in use from there on, negated, ascending.

        Nothing is evicted: each storage lies in memory until it was read last.

        Args:
            resident: Bytes in use when the step began.
        """
        changes = [0] * (len(self.seconds) + 1)
        for size, begun, ended in self.lives:
            changes[begun] += size
            changes[ended + 1] -= size
        in_use = list(accumulate(changes[:-1], initial=resident))[1:]
        return [-most for most in accumulate(reversed(in_use), max)][::-1]


class Promises:
    """The way back of all that is away, and what one storage more would make of it.

    Args:
        copies: The copies on the host.
        uses: When storages are used.

    Attributes:
        room: Bytes that storages may take, with what operators need kept free.
    """

    def __init__(self, copies: Copies, uses: Uses) -> None:
        self._copies = copies
        self._uses = uses
        self._this = _Course()
        self._seconds: list[float] = []
        self._made: list[int] = []
        self._negated: list[int] = []
        self._resident = self.room = 0
        self.begin(0, whole=False)

    def begin(self, resident: int, *, whole: bool) -> None:
        """A step begins.

        Args:
            resident: Bytes in use.
            whole: Whether the step before is to be learnt from.
        """
        this = self._this
        if whole and this.seconds:
            self._seconds, self._made = this.seconds, this.made
            self._negated = this.least_from(self._resident)
        self._this = _Course()
        self._resident = resident
        self._numbers: dict[Storage, list[int]] = {}
        self._dropped: dict[Storage, None] = {}
        self._due: list[float] = []
        self._state: tuple[int, ...] = ()

    def note(self, parents: Iterable[Tensor], outputs: Sequence[Tensor], work: float) -> None:
        """Note an operator of the model's own, done when these have taken ``work`` seconds."""
        this, numbers = self._this, self._numbers
        position = len(this.seconds)
        for parent in parents:
            found = numbers.get(parent.storage)
            if found is not None:
                found[2] = position
        made = this.made[-1] if this.made else 0
        for output in outputs:
            storage = output.storage
            if storage not in numbers:
                made += storage.size
                numbers[storage] = life = [storage.size, position, position]
                this.lives.append(life)
        this.seconds.append(work)
        this.made.append(made)

    def drop(self, storage: Storage) -> None:
        """Note that a storage is going to be computed again when it is used."""
        self._dropped[storage] = None

    def fits(self) -> bool:
        """Return whether all of the step will fit, nothing of it elsewhere.

        False where that is not known.
        """
        here = self._here()
        return here is not None and -self._negated[here] <= self._limit(here, 0)

    def seconds_until_room(self, spared: int) -> float:
        """Return in how long the step will fit for good with ``spared`` bytes of it elsewhere.

        0 where that is not known.
        """
        here = self._here()
        if here is None:
            return 0.0
        limit = self._limit(here, spared)
        seconds = self._seconds
        # The operator before the first from which on it fits.
        until = bisect_left(self._negated, -limit, here + 1) - 1
        passed = seconds[here]
        pace = self._this.seconds[here] / passed if passed > 0 else 1.0
        return (seconds[until] - passed) * pace

    def _here(self) -> int | None:
        """Return the number of the last operator, if the step before had the same so far."""
        here = len(self._this.seconds) - 1
        return here if self._uses.known and 0 <= here < len(self._seconds) else None

    def _limit(self, here: int, spared: int) -> float:
        """Return the bytes of the step before that are within the budget in this one."""
        scale = self._this.made[here] / self._made[here] if self._made[here] else 1.0
        return (self.room + spared) / (scale or 1.0)

    def stays(self, size: int, until: float) -> bool:
        """Return whether there is room for one of what is away from now on until it is wanted.

        Where there is not, it would be sent away again, or others in its stead. What else is away
        takes room from when it is due. :meth:`look` comes first.

        Args:
            size: Its bytes.
            until: Seconds until it is wanted.
        """
        begun = 0.0
        for due, later in zip([*self._due, until], self._later):
            end = min(due, until)
            if end > begun and self.seconds_until_room(later - size) > begun:
                return False
            if due >= until:
                break
            begun = due
        return True

    def look(self, now: float, work: float) -> None:
        """Take stock of what is away.

        Args:
            now: The time.
            work: What the model's operators have taken.
        """
        copies, until = self._copies, self._uses.seconds_until
        for storage in [s for s in self._dropped if not s.missing or not s.references]:
            del self._dropped[storage]
        entries = sorted(
            [(until(storage, work), storage.size, True) for storage in copies.away]
            + [(until(storage, work), storage.size, False) for storage in self._dropped],
        )
        self._due = [due for due, _, _ in entries]
        self._later = list(accumulate((size for _, size, _ in reversed(entries)), initial=0))[::-1]
        # Transfers in the order of use: before each, the seconds of those before it, and how far
        # their beginnings are put off by the transfers under way and by want of room.
        self._before, self._put_off = [0.0], [copies.seconds_in_queue(now)]
        self._late = 0.0
        taken, put_off = 0.0, self._put_off[0]
        behind = []
        for place, (due, size, on_host) in enumerate(entries):
            if on_host:
                opens = self.seconds_until_room(self._later[place + 1])
                put_off = max(put_off, opens - taken)
                taken += copies.seconds(size)
                self._late = max(self._late, taken + put_off - due)
            behind.append(taken - due if on_host else -inf)
            self._before.append(taken)
            self._put_off.append(put_off)
        # The least that is to spare of those from each on, negated, if nothing puts them off.
        self._behind = list(accumulate(reversed(behind), max, initial=-inf))[::-1]

    def seconds_late(self, storage: Storage, work: float) -> float:
        """Return how much longer operators would wait in all if a storage were away, too.

        :meth:`look` comes first.
        """
        own = self._copies.seconds(storage.size)
        due = self._uses.seconds_until(storage, work)
        place = bisect_left(self._due, due)
        before = self._before[place]
        opens = self.seconds_until_room(self._later[place])
        put_off = own + max(self._put_off[place], opens - before)
        worst = put_off + max(before - due, self._behind[place])
        return max(0.0, worst - self._late)
