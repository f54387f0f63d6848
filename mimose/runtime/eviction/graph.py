"""What the tensor-level runtimes know of a computation: storages, their tensors, their operators.

Nothing here knows of torch. A *storage* is what takes memory and is evicted whole; a *tensor* is a
value that lies in one, either its first or a view of it; an *operator* made tensors from others and
can make them again. Attributes are plain and the classes have slots: a training step has thousands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Storage:
    """Some bytes that are in memory, on the host, or gone until they are computed again.

    Attributes:
        size: Bytes.
        number: The number of its first tensor; tensors are counted from 0 as they are announced.
        tensors: What lies in it, in the order of announcement.
        cost: Cost of its own operators: the sum over the distinct operators that made its tensors.
        accessed: When it was last used as an argument, or first made.
        resident: Its data is in memory.
        on_host: Its data was swapped out and is in the host's memory only.
        missing: Its data is nowhere: evicted, taken away, or not computed yet.
        locks: How many operators hold it right now, pinning included.
        pinned: It stays for good.
        small: It is no candidate, being much smaller than the others.
        references: Outside references. At 0, nobody but the engine can ask for it again.
        condemned: Its last outside reference went while it was locked.
        neighbours: For heuristics: the storages that an operator connects it with; None if unknown.
        component: For heuristics: where it belongs among evicted storages.
        ancestors: For heuristics: cost of the evicted storages it is made from; None if unknown.
        descendants: For heuristics: cost of the evicted storages made from it; None if unknown.
        data: For the backend.
    """

    __slots__ = (
        "accessed",
        "ancestors",
        "component",
        "condemned",
        "cost",
        "data",
        "descendants",
        "locks",
        "missing",
        "neighbours",
        "number",
        "on_host",
        "pinned",
        "references",
        "resident",
        "size",
        "small",
        "tensors",
    )

    def __init__(self, size: int, number: int) -> None:
        self.size = size
        self.number = number
        self.tensors: list[Tensor] = []
        self.cost: float = 0
        self.accessed = float("-inf")
        self.resident = False
        self.on_host = False
        self.missing = True
        self.locks = 0
        self.pinned = False
        self.small = False
        self.references = 0
        self.condemned = False
        self.neighbours: list[Storage] | None = None
        self.component: Any = None
        self.ancestors: float | None = None
        self.descendants: float | None = None
        self.data: Any = None

    def __repr__(self) -> str:
        where = "resident" if self.resident else "on host" if self.on_host else "missing"
        return f"<Storage {self.number}: {self.size} bytes, {where}>"


class Tensor:
    """A value in a storage.

    Attributes:
        storage: Where it lies.
        operator: What made it, and can again; None for a constant.
        defined: It is there, in memory or on the host. A view can be undefined while its storage
            is resident: it needs its own operator again.
        children: The operators that read it; add to it by :meth:`read_by`.
    """

    __slots__ = ("children", "defined", "operator", "storage")

    def __init__(self, storage: Storage, operator: Operator | None) -> None:
        self.storage = storage
        self.operator = operator
        self.defined = False
        self.children: Sequence[Operator] = ()  # A list only once there are any: many have none.

    def read_by(self, operator: Operator) -> None:
        """Note that an operator reads it, if that was not noted last."""
        children = self.children
        if not children:
            self.children = [operator]
        elif children[-1] is not operator:
            children.append(operator)  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return f"<Tensor of {self.storage!r}{'' if self.defined else ', undefined'}>"


class Operator:
    """A computation that can be carried out again.

    Attributes:
        parents: Its arguments, repeated where the same one is passed twice.
        outputs: What it makes.
        cost: What running it once costs, in the unit of the backend's clock.
        size: Bytes that its outputs take; views take none.
        payload: For the backend: how to run it.
    """

    __slots__ = ("cost", "outputs", "parents", "payload", "size")

    def __init__(self, parents: tuple[Tensor, ...], cost: float, payload: Any) -> None:
        self.parents = parents
        self.outputs: list[Tensor] = []
        self.cost = cost
        self.size = 0
        self.payload = payload

    def __repr__(self) -> str:
        return f"<Operator {self.payload!r}>"
