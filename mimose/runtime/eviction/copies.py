"""Copies of storages in the host's memory: which there are, which are under way, what they cost.

A storage is copied to the host at most once for as long as its contents last. Its memory is freed
only when that copy is whole; one that is used again before simply stays, and its copy remains
valid. What starts and awaits the copies is a channel of the device's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from mimose.runtime.eviction.graph import Storage


class Channel(Protocol):
    """How a device copies memory beside its operators, to the host and back.

    What a transfer is, and the host's memory, is the channel's own; data is the backend's.

    Attributes:
        bandwidth: Bytes a second, either way.
        latency: Seconds that a copy takes besides.
    """

    bandwidth: float
    latency: float

    def send(self, data: Any) -> tuple[Any, Any]:
        """Start copying memory to the host; return the host's memory and the transfer."""

    def fetch(self, host: Any) -> tuple[Any, Any]:
        """Take memory on the device and start copying into it; return it and the transfer."""

    def is_done(self, transfer: Any) -> bool:
        """Return whether operators from here on would not have to wait for a transfer."""

    def wait(self, transfer: Any) -> None:
        """Let operators from here on wait for a transfer."""

    def waited_seconds(self) -> float:
        """Return how long operators have waited for transfers since this was last called."""


class _Copy:
    """A storage's copy on the host.

    Attributes:
        host: The host's memory.
        size: Its bytes.
        ready: When it is expected to be whole.
        transfer: What fills it; None once it is whole.
        data: The memory that it is copied from, kept until then.
    """

    __slots__ = ("data", "host", "ready", "size", "transfer")

    def __init__(self, host: Any, size: int, ready: float, transfer: Any, data: Any) -> None:
        self.host = host
        self.size = size
        self.ready = ready
        self.transfer = transfer
        self.data = data


class Copies:
    """The copies of one step's storages.

    Args:
        channel: Makes them.

    Attributes:
        outgoing: Storages on their way to the host, in order.
        arriving: Storages on their way back, in order; see :meth:`await_arrival`.
        away: Storages that are on the host only.
        outgoing_bytes: Bytes on their way to the host.
        arriving_bytes: Bytes on their way back.
        away_bytes: Bytes of storages that are on the host only.
        num_out: Storages copied to the host.
        num_in: Storages brought back.
        moved_bytes: Bytes copied, both ways.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.begin()

    def begin(self) -> None:
        """Forget everything: a step begins."""
        self._copies: dict[Storage, _Copy] = {}
        self.outgoing: dict[Storage, _Copy] = {}
        # The transfer, the memory that it fills, which nobody may free meanwhile, and when it is
        # expected to be over.
        self.arriving: dict[Storage, tuple[Any, Any, float]] = {}
        self.away: dict[Storage, None] = {}
        self.outgoing_bytes = self.arriving_bytes = self.away_bytes = 0
        self.num_out = self.num_in = self.moved_bytes = 0
        self._out_until = self._in_until = float("-inf")

    def end(self) -> None:
        """Let what follows wait for all transfers, and give all copies up."""
        self.await_departure(list(self.outgoing))
        self.await_arrival(list(self.arriving))
        self._copies.clear()
        self.away.clear()
        self.away_bytes = 0

    # -- what they would cost

    def seconds(self, size: int) -> float:
        """Return what a copy takes."""
        return self.channel.latency + size / self.channel.bandwidth

    def has(self, storage: Storage) -> bool:
        """Return whether a storage has a copy, or will have."""
        return storage in self._copies

    def seconds_out(self, storage: Storage, now: float) -> float:
        """Return how long it takes until a storage has a whole copy, begun now at the latest.

        One that is on its way back has to arrive first.
        """
        arriving = self.arriving.get(storage)
        if arriving is not None:
            return max(0.0, arriving[2] - now)
        copy = self._copies.get(storage)
        if copy is not None:
            return 0.0 if copy.transfer is None else max(0.0, copy.ready - now)
        return max(0.0, self._out_until - now) + self.seconds(storage.size)

    def seconds_in_queue(self, now: float) -> float:
        """Return how long it takes until all that is on its way back has arrived."""
        return max(0.0, self._in_until - now) if self.arriving else 0.0

    # -- making them

    def start(self, storage: Storage, data: Any, now: float) -> None:
        """Start copying a storage, whose memory is ``data``, to the host."""
        self._out_until = max(self._out_until, now) + self.seconds(storage.size)
        host, transfer = self.channel.send(data)
        copy = _Copy(host, storage.size, self._out_until, transfer, data)
        self._copies[storage] = self.outgoing[storage] = copy
        self.outgoing_bytes += copy.size
        self.num_out += 1
        self.moved_bytes += copy.size

    def send_away(self, storage: Storage, data: Any, now: float) -> None:
        """Let what follows wait until a storage has a whole copy: its memory can be freed then."""
        self.await_arrival((storage,))
        if storage not in self._copies:
            self.start(storage, data, now)
        self.await_departure((storage,))
        self.away[storage] = None
        self.away_bytes += storage.size

    def bring_back(self, storage: Storage, receive: Callable[[Any], Any], now: float) -> None:
        """Start copying a storage from the host, where its copy stays.

        Args:
            storage: The storage.
            receive: Takes the new memory, and returns what keeps it.
            now: The time.
        """
        copy = self._copies[storage]
        data, transfer = self.channel.fetch(copy.host)
        self._in_until = max(self._in_until, now) + self.seconds(storage.size)
        self.arriving[storage] = transfer, receive(data), self._in_until
        self.arriving_bytes += storage.size
        del self.away[storage]
        self.away_bytes -= storage.size
        self.num_in += 1
        self.moved_bytes += storage.size

    def await_arrival(self, storages: Iterable[Storage]) -> None:
        """Let what follows, which uses some storages, wait for those on their way back."""
        for storage in storages:
            found = self.arriving.pop(storage, None)
            if found is not None:
                self.channel.wait(found[0])
                self.arriving_bytes -= storage.size

    def await_departure(self, storages: Iterable[Storage]) -> None:
        """Let what follows, which changes or frees storages, wait for copies that read them."""
        for storage in storages:
            copy = self.outgoing.pop(storage, None)
            if copy is not None:
                self.channel.wait(copy.transfer)
                self._left(copy)

    def forget(self, storage: Storage) -> None:
        """Give a storage's copy up: its contents, or the storage itself, are no more.

        What follows waits for its transfers, which use memory that is going to be freed.
        """
        self.await_arrival((storage,))
        self.await_departure((storage,))
        if self._copies.pop(storage, None) is not None and storage in self.away:
            del self.away[storage]
            self.away_bytes -= storage.size

    def poll(self) -> None:
        """Let go of the memory of transfers that are over."""
        is_done = self.channel.is_done
        while self.outgoing:
            storage, copy = next(iter(self.outgoing.items()))
            if not is_done(copy.transfer):
                break
            del self.outgoing[storage]
            self._left(copy)
        while self.arriving:
            storage = next(iter(self.arriving))
            if not is_done(self.arriving[storage][0]):
                break
            self.await_arrival((storage,))

    def _left(self, copy: _Copy) -> None:
        copy.transfer = copy.data = None
        self.outgoing_bytes -= copy.size
