"""End all processes when one has failed: the others would wait for it in a collective for ever.

A process whose training ends by an exception says so under a key of the default group's store, and
every other one looks at that key twice a second, in a thread and over a connection of its own. No
step waits for that. A process that reads of another's end prints it; its next planned step raises
it, and where no step comes, since it hangs in a collective, it exits after :data:`GRACE_SECONDS`.

What the program catches ends nothing, and a process that is killed says nothing: that is for its
launcher to see.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from types import TracebackType
from typing import Any

import torch.distributed as dist

from mimose.distributed.processes import num_processes, rank

LOOK_SECONDS = 0.5
"""How often the key is looked at."""
GRACE_SECONDS = 3.0
"""How long a process has to end by itself once another has failed, and a failed one is held up
until all the others know."""

_FAILED, _HEARD = "mimose/failed", "mimose/heard"

_lock = threading.Lock()
_alarm: Alarm | None = None
_holders = 0


class Alarm:
    """Tells the other processes that this one has failed, and hears it of them.

    Attributes:
        message: What another process ended by, or None.
    """

    def __init__(self, store: Any) -> None:
        # A connection of its own: one that waits blocks all who share it. The first one is held,
        # since the store goes when nobody does any more.
        self._kept = store
        self._store = store.clone()
        self._rank, self._others = rank(), num_processes() - 1
        self.message: str | None = None
        self._stopped = threading.Event()
        self._previous = sys.excepthook
        self._hook = self._escaped  # One object, to be told apart from a later one.
        sys.excepthook = self._hook
        self._thread = threading.Thread(target=self._watch, name="mimose alarm", daemon=True)
        self._thread.start()
        atexit.register(self.stop)

    def check(self) -> None:
        """Raise what another process ended by.

        Raises:
            RuntimeError: If one has failed.
        """
        if self.message is not None:
            raise RuntimeError(self.message)

    def stop(self) -> None:
        """Look no more, and give the interpreter's hook back."""
        self._stopped.set()
        atexit.unregister(self.stop)
        if sys.excepthook == self._hook:
            sys.excepthook = self._previous
        # The interpreter must not end while the thread is in the store's own code.
        self._thread.join(GRACE_SECONDS)

    def _escaped(
        self, kind: type[BaseException], error: BaseException, frames: TracebackType | None
    ) -> None:
        if self.message is None:
            # Without a store nobody can be told, and the error itself is what has to be seen.
            with contextlib.suppress(Exception):
                self.tell(f"rank {self._rank} ended by {kind.__name__}: {error}")
        self._previous(kind, error, frames)
        if self.message is not None:
            self._print()  # Once more: what has just been shown is that one is gone, not why.

    def tell(self, message: str) -> None:
        """Tell the others, which ends them, unless another process was first.

        Args:
            message: Begins with this process's rank: ``rank 1 ended by ...``.
        """
        heard_before = self._store.compare_set(_FAILED, "", message).decode()
        if heard_before != message:
            self._store.add(_HEARD, 1)
            return  # Another one was first.
        deadline = time.monotonic() + GRACE_SECONDS
        # The store may be this process's, and go with it.
        while self._store.add(_HEARD, 0) < self._others and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS / 10)

    def _watch(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                if not self._store.check([_FAILED]):
                    continue
                message = self._store.get(_FAILED).decode()
            except Exception:
                return  # The store is gone, and so is the process that held it.
            if not message.startswith(f"rank {self._rank} "):
                self._heard(message)
            return

    def _heard(self, message: str) -> None:
        self.message = message
        self._print()
        with contextlib.suppress(Exception):
            self._store.add(_HEARD, 1)
        if self._stopped.wait(GRACE_SECONDS):
            return
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(1)

    def _print(self) -> None:
        print(f"mimose: {self.message}", file=sys.stderr, flush=True)


def join() -> Alarm | None:
    """Return the process's alarm, which :func:`leave` gives up; None if there is one process."""
    global _alarm, _holders
    if num_processes() == 1:
        return None
    with _lock:
        if _alarm is None:
            store = dist.distributed_c10d._get_default_store()
            if not hasattr(store, "clone"):
                return None
            _alarm = Alarm(store)
        _holders += 1
        return _alarm


def leave() -> None:
    """Give the alarm up, unless an exception is on its way out, of which it has to tell."""
    global _alarm, _holders
    with _lock:
        _holders -= 1
        if _holders or _alarm is None or sys.exc_info()[0] is not None:
            return
        _alarm.stop()
        _alarm = None
