"""What an explicit schedule comes to, block by block, worked out once."""

from __future__ import annotations

from mimose.plan import Plan
from mimose.schedule import Moment, Schedule


class Program:
    """A schedule, ready to be carried out.

    Attributes:
        schedule: The schedule.
        tree: The tree that comes to the same, if there is one: it is carried out instead.
        moments: Its instructions and what is held around them.
        first: Where each block first runs.
        backward: Where each block's backward is.
        again: Blocks that run more than once.
        steady: Blocks that keep everything from their first run on, and whose input is held until
            their backward: they can run as they are.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.tree = schedule.to_plan()
        self.moments: tuple[Moment, ...] = tuple(schedule.moments())
        self.again = schedule.recomputed
        self.first: dict[int, int] = {}
        self.backward: dict[int, int] = {}
        for place, moment in enumerate(self.moments):
            if moment.first:
                self.first[moment.block] = place
            elif moment.backward:
                self.backward[moment.block] = place
        self.steady = frozenset(filter(self._is_steady, self.first))

    @property
    def saving(self) -> tuple[int, ...]:
        """Blocks that keep everything from their first run on."""
        return tuple(b for b, place in self.first.items() if self.moments[place].saves)

    @property
    def singly(self) -> Plan:
        """The plan that recomputes on its own each block that is not among :attr:`saving`."""
        count = self.schedule.num_blocks
        return Plan.recompute_each(count, set(range(count)).difference(self.saving))

    def _is_steady(self, block: int) -> bool:
        start, end = self.first[block], self.backward[block]
        return self.moments[start].saves and (
            block == 0 or all(block - 1 in m.outputs for m in self.moments[start : end + 1])
        )
