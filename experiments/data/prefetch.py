"""Building batches ahead of the training step, in a thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar

T = TypeVar("T")
_END = object()


def prefetch(
    items: Iterator[T],
    depth: int = 4,
    context: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> Iterator[T]:
    """Yield ``items`` in their order while a thread computes the next few.

    The thread starts with the first item asked for and ends with the last, or when the iterator
    is closed. An exception of ``items`` is raised here, at the item that it replaces.

    Args:
        items: What to compute ahead; used by the thread alone from now on.
        depth: How many finished items may wait.
        context: Entered in the thread around the computation of every item, for example to book
            its allocations as the host's.
    """
    ready: queue.Queue[object] = queue.Queue(maxsize=depth)
    failures: list[BaseException] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                with context():
                    item = next(items, _END)
                if item is _END:
                    break
                ready.put(item)
        except BaseException as error:
            failures.append(error)
        ready.put(_END)

    thread = threading.Thread(target=work, name="batch-prefetch", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not _END:
            yield item  # type: ignore[misc]
        if failures:
            raise failures[0]
    finally:
        stop.set()
        while thread.is_alive():  # it may wait for room: make some
            try:
                ready.get_nowait()
            except queue.Empty:
                thread.join(0.01)
