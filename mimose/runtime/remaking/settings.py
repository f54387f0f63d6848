"""What a block's modules say that a trace of a call may have gone by: numbers, flags, adapters.

A trace holds the numbers that operators were called with. A dropout's rate on a schedule, say, or an
adapter that is switched off changes those and no shape, so each call looks whether all is as it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

_SCALARS = (bool, int, float, str, type(None))
_MOST = 16
"""Containers with more in them are taken for data."""
_OWN = frozenset(nn.Module().__dict__) - {"training"}


class Settings:
    """Looks at what a block's modules say.

    Args:
        module: The block.

    Attributes:
        sharded: Whether ``fully_shard`` has taken its parameters over, which come and go.
    """

    __slots__ = ("_containers", "_modules", "_scalars", "sharded")

    def __init__(self, module: nn.Module) -> None:
        self._modules = list(module.modules())
        self.sharded = any(
            base.__name__ == "FSDPModule" for m in self._modules for base in type(m).__mro__
        )
        places: list[tuple[dict[str, Any], str]] = []
        seen: set[int] = set()
        for owner in self._modules:
            places += [(vars(owner), name) for name in vars(owner) if name not in _OWN]
            config = vars(owner).get("config")
            if hasattr(config, "__dict__") and id(config) not in seen:
                seen.add(id(config))
                places += [(vars(config), name) for name in vars(config)]
        self._scalars = [(d, n) for d, n in places if isinstance(d[n], _SCALARS)]
        self._containers = [(d, n) for d, n in places if _small(d[n])]

    def now(self) -> tuple[Any, ...]:
        """Return all of it as it is now."""
        return (
            tuple([d.get(name) for d, name in self._scalars]),
            tuple([repr(d.get(name)) for d, name in self._containers]),
            tuple([(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in self._modules]),
        )


def _small(value: Any) -> bool:
    if isinstance(value, Mapping):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    else:
        return False
    return len(parts) <= _MOST and all(isinstance(part, _SCALARS) for part in parts)
