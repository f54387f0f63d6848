"""A scheduler's request to end (SIGTERM): like Ctrl-C, except that nothing may make it mean less.

Ctrl-C during a long solve ends the solve only, and the run goes on with the best plan so far. A
scheduler that ends a job means the job.
"""

from __future__ import annotations

import signal
from typing import Any, NoReturn

_asked = False


def install() -> None:
    """Let SIGTERM end the program as Ctrl-C does; call it in the main thread."""
    signal.signal(signal.SIGTERM, _on_signal)


def asked() -> bool:
    """Return whether the program was asked to end."""
    return _asked


def check() -> None:
    """Raise if the program was asked to end and something has swallowed that.

    Raises:
        KeyboardInterrupt: If so.
    """
    if _asked:
        raise KeyboardInterrupt


def _on_signal(number: int, frame: Any) -> NoReturn:
    global _asked
    _asked = True
    raise KeyboardInterrupt
