"""Whose time and FLOPs they are: a collecting step, cut into parts by moments in the device's work.

The parts are those of :class:`mimose.records.BlockSample` (a block's plain forward, its second run
in backward, its attention core's, the rest of its backward), the collector's own doings, and all
the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from mimose.devices.base import Device
from mimose.runtime.calls import Key

Part = tuple[Literal["forward", "recompute", "core", "backward"], Key]
"""What a block does and which."""

OUTSIDE = ("outside", None)
_COLLECTOR = ("collector", None)


class Ledger:
    """Time stamps, and what begins at each.

    Attributes:
        part: What is going on.
        flops: FLOPs so far by part, if they are counted.
    """

    __slots__ = ("_device", "_stamps", "counts", "flops", "part")

    def __init__(self, device: Device, count: bool) -> None:
        self.part: Any = OUTSIDE
        self.counts = count
        self.flops: Counter[Any] = Counter()
        self._device = device
        self._stamps: list[tuple[Any, Any]] = []

    def begin(self, part: Any) -> Any:
        """Note that ``part`` begins now, and so what went on until now ends; return the stamp."""
        stamp = self._device.now()
        self._stamps.append((stamp, part))
        self.part = part
        return stamp

    def measure(self) -> Any:
        """Note that from now on the collector itself is at work; return the stamp."""
        return self.begin(_COLLECTOR)

    @contextmanager
    def within(self, part: Any) -> Iterator[None]:
        """Note ``part``, and afterwards what went on before it; it may end by an exception."""
        before = self.part
        self.begin(part)
        try:
            yield
        finally:
            self.begin(before)

    def seconds(self) -> Counter[Any]:
        """Return the time of each part; may wait for the device."""
        spent: Counter[Any] = Counter()
        for (start, part), (end, _) in zip(self._stamps, self._stamps[1:]):
            spent[part] += self._device.seconds_between(start, end)  # type: ignore[assignment]
        return spent

    def flops_of(self, *parts: Any) -> int | None:
        """Return the FLOPs of some parts together; None if they were not counted."""
        return sum(self.flops[part] for part in parts) if self.counts else None

    def counting(self) -> AbstractContextManager[Any]:
        """Return a context in which FLOPs are counted, if they are to be."""
        return _FlopCount(self) if self.counts else nullcontext()


class _FlopCount(TorchDispatchMode):
    """Counts FLOPs by PyTorch's own formulas.

    :class:`torch.utils.flop_counter.FlopCounterMode` has one total for each module; here they are
    told apart by moments, and operators are run just as they come.
    """

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operator and count it."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            self._ledger.flops[self._ledger.part] += formula(*args, **kwargs, out_val=result)
        return result
