"""Which storages the live runtime knows, and where the data of each is.

The runtime keeps no storage of the model's alive: it learns by weak references when one dies. (The
Python object of a storage lives as long as the storage itself, whoever holds it.)
"""

from __future__ import annotations

import weakref

import torch

from mimose.runtime.eviction.graph import Tensor


class Holder:
    """The data of one engine storage: one version of one storage of the model's.

    Attributes:
        tensor: The engine's tensor.
        num_bytes: Its size in memory.
        ref: A weak reference to the model's storage; None if that died or has a later version.
        owned: A storage of the runtime's own: of constants, and of data that was made again after
            the model had let go of it.
        constant: It came from outside of the step.
        shielded: Operators that run again get a copy: they may change it without saying so.
        captured: Something that the runtime does not see into may refer to it.
        unwritten: Nothing seen has written to it yet: memory as it was found.
        shared: Somebody has an array of the same memory, and may write to it at any time.
        serial: The operator that last had it as an argument, and ``place``, its place among the
            arguments of that one.
    """

    __slots__ = (
        "captured",
        "constant",
        "num_bytes",
        "owned",
        "place",
        "ref",
        "serial",
        "shared",
        "shielded",
        "tensor",
        "unwritten",
    )

    def __init__(self, tensor: Tensor, num_bytes: int) -> None:
        self.tensor = tensor
        self.num_bytes = num_bytes
        self.ref: StorageRef | None = None
        self.owned: torch.UntypedStorage | None = None
        self.constant = False
        self.shielded = False
        self.captured = False
        self.unwritten = False
        self.shared = False
        self.serial = -1
        self.place = 0

    def storage(self) -> torch.UntypedStorage | None:
        """Return the storage that the data is or would be in; None if there is none."""
        found = self.live()
        return self.owned if found is None else found

    def live(self) -> torch.UntypedStorage | None:
        """Return the model's own storage, if it is alive."""
        found: torch.UntypedStorage | None = None if self.ref is None else self.ref()
        if found is not None:
            # PyTorch may have taken the object over from Python; older versions have to be told
            # that somebody holds it again.
            found._fix_weakref()  # type: ignore[attr-defined]
        return found


class StorageRef(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to a storage of the model's.

    Attributes:
        address: That of the storage.
        holder: Its latest version.
    """

    __slots__ = ("address", "holder")

    address: int
    holder: Holder


class KnownStorages(dict[int, Holder]):
    """The latest version of each live storage, by its address.

    Attributes:
        dead: Holders of storages that died since this list was last emptied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.dead: list[Holder] = []
        self._callback = self._died

    def watch(self, storage: torch.UntypedStorage, address: int, holder: Holder) -> None:
        """Enter a storage."""
        ref = StorageRef(storage, self._callback)
        ref.address = address
        ref.holder = holder
        holder.ref = ref
        self[address] = holder

    def replace(self, old: Holder, new: Holder) -> None:
        """Enter a later version of a storage; the earlier one has none of the model's any more."""
        ref = old.ref
        assert ref is not None
        old.ref = None
        new.ref = ref
        new.owned = old.owned
        old.owned = None
        ref.holder = new
        self[ref.address] = new

    def drop(self, holder: Holder) -> None:
        """Take back the entry of a storage."""
        if holder.ref is not None:
            self.pop(holder.ref.address, None)
            holder.ref = None

    def forget(self) -> None:
        """Forget all storages."""
        for holder in self.values():
            holder.ref = None
        self.clear()
        self.dead.clear()

    def _died(self, ref: StorageRef) -> None:
        # At any moment, garbage collection included: only what cannot disturb anyone.
        holder = ref.holder
        if self.get(ref.address) is holder:
            del self[ref.address]
        if holder.ref is ref:
            holder.ref = None
            self.dead.append(holder)
