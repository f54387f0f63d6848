"""What storages hold: constants, versions of what is changed in place, and what has to stay.

An operator that changes a storage makes a new version of it, and the earlier one has lost its data.
What cannot be made again is constant from then on, and what may be referred to unseen is pinned.
"""

from __future__ import annotations

from collections.abc import Callable

from mimose.runtime.eviction.backend import copied
from mimose.runtime.eviction.copies import Copies
from mimose.runtime.eviction.engine import Engine
from mimose.runtime.eviction.graph import Storage, Tensor
from mimose.runtime.eviction.known import Holder, KnownStorages
from mimose.runtime.eviction.shapes import rounded

UNMADE = Tensor(Storage(0, -1), None)
"""What a holder has before the engine knows of it."""


class Contents:
    """The versions of one runtime's storages.

    Args:
        engine: The engine.
        known: The storages known.
        copies: Copies on the host, where storages are swapped.
        make_room: Evicts until so many bytes are free.

    Attributes:
        num_pinned: Storages of the step that cannot be evicted, since something that cannot be
            replayed made, changed or took them.
    """

    def __init__(
        self,
        engine: Engine,
        known: KnownStorages,
        copies: Copies | None,
        make_room: Callable[[int], None],
    ) -> None:
        self._engine = engine
        self._known = known
        self._copies = copies
        self._make_room = make_room
        self.num_pinned = 0

    def constant(self, num_bytes: int) -> Holder:
        """Return the holder of a new constant of so many bytes."""
        return self.make_constant(Holder(UNMADE, num_bytes))

    def make_constant(self, holder: Holder) -> Holder:
        """Enter a storage as a constant, and return its holder."""
        holder.tensor = self._engine.constant(rounded(holder.num_bytes))
        holder.tensor.storage.data = holder
        holder.constant = True
        return holder

    def preserve(self, holder: Holder) -> None:
        """Keep a copy of a constant that is going to be changed, for what was made from it."""
        engine = self._engine
        self._make_room(rounded(holder.num_bytes))
        storage = holder.storage()
        assert storage is not None
        kept = Holder(holder.tensor, holder.num_bytes)
        kept.constant = True
        kept.shielded = holder.shielded
        kept.owned = copied(storage)
        holder.tensor.storage.data = kept
        holder.owned = None
        holder.tensor = engine.constant(rounded(holder.num_bytes))
        holder.tensor.storage.data = holder

    def supersede(self, earlier: Holder, later: Holder) -> None:
        """Let a storage go over to a later version; the earlier one has no data from now on."""
        engine = self._engine
        self._known.replace(earlier, later)
        tensor = earlier.tensor
        engine.unpin(tensor)
        if self._copies is not None:
            self._copies.forget(tensor.storage)
        engine.surrender(tensor.storage)
        engine.release(tensor)
        if earlier.captured:
            later.captured = True
            engine.pin(later.tensor)

    def freeze(self, holder: Holder) -> Holder | None:
        """Let a storage go over to a version that cannot be made again, and stays; return it.

        None if the storage has died, as that of a tensor does which is given another one.
        """
        storage = holder.storage()
        if storage is None:
            return None
        self.num_pinned += 1
        later = self.constant(storage.nbytes())
        self.supersede(holder, later)
        return later

    def capture(self, holders: list[Holder]) -> None:
        """Keep storages for good that something may refer to unseen."""
        for holder in holders:
            if holder.ref is not None and not holder.constant and not holder.captured:
                holder.captured = True
                self.num_pinned += 1
                self._engine.pin(holder.tensor)


def resized(holder: Holder) -> bool:
    """Return whether a storage has died, or has been given another size."""
    storage = holder.storage()
    return storage is None or storage.nbytes() != holder.num_bytes
