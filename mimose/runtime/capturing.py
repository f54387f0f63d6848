"""What transformers captures inside a block: its plain pass must leave none of it behind.

Since version 5 attentions and hidden states that are asked for (``output_attentions=True``) need
not be returned by the layers. Forward hooks on modules inside them append them to lists, and the
model's output gets those. Of a block that runs twice it would get each twice, and what the first
run left there would hold that run's activations.
"""

from __future__ import annotations

import sys
from typing import Any


class Captured:
    """The lists that outputs are being captured in, if any are, and what is added to them.

    Where transformers is not loaded, captures nothing now or does so by other means, there are
    none.
    """

    __slots__ = ("_lists",)

    def __init__(self) -> None:
        self._lists = [(found, len(found)) for found in _lists()]

    def added(self) -> list[Any]:
        """Return what was captured since this was made."""
        return [item for found, length in self._lists for item in found[length:]]

    def drop(self) -> None:
        """Take it out again."""
        for found, length in self._lists:
            del found[length:]


def _lists() -> list[list[Any]]:
    # Looked up, never imported: no part of this depends on transformers.
    module = sys.modules.get("transformers.utils.output_capturing")
    get = getattr(getattr(module, "_active_collector", None), "get", None)
    active = get() if callable(get) else None
    return [v for v in active.values() if isinstance(v, list)] if isinstance(active, dict) else []
