"""The storages that may be evicted right now, in the order in which they became candidates."""

from __future__ import annotations

from math import isqrt
from random import Random

from mimose.runtime.eviction.graph import Storage


class Pool(dict[Storage, None]):
    """Resident, unlocked, unpinned storages; adding and removing take constant time.

    A dictionary without values: it keeps the order of insertion. Locking takes a storage out, and
    releasing its last lock appends it at the end.
    """

    __slots__ = ()

    def sample(self, random: Random) -> list[Storage]:
        """Return about ``2 sqrt(n)`` of the ``n`` storages, in order.

        From the first on, steps are uniform in ``1..sqrt(n)``, as in DTR's prototype (the paper
        speaks of ``sqrt(n)`` candidates).
        """
        everything = list(self)
        longest = isqrt(len(everything))
        if longest < 2:
            return everything
        chosen, at, draw = [], 0, random.random
        while at < len(everything):
            chosen.append(everything[at])
            at += 1 + int(draw() * longest)
        return chosen

    def bytes(self) -> int:
        """Return what the storages take together."""
        return sum(storage.size for storage in self)
