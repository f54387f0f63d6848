"""Whether containers still hold what they held, told by identity.

A step of a model looks at some hundred dictionaries, none of which is in the processor's caches by
then. One call in C goes through them in half the time that iterating over each takes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from gc import get_referents
from itertools import chain
from operator import is_, itemgetter
from typing import Any


class Fingerprint:
    """What some containers hold at one moment, in their order. It keeps all of it alive.

    Args:
        containers: Dictionaries, lists, sets and deques.
        apart: Whether it matters which of them holds what.
    """

    __slots__ = ("_containers", "_held", "_keys", "_mappings", "_read", "_sizes")

    def __init__(self, containers: Iterable[Any], *, apart: bool = True) -> None:
        self._containers = tuple(containers)
        # Of keys that are all text, what follows sees the values only.
        self._mappings = [c for c in self._containers if isinstance(c, dict)]
        self._keys = list(chain.from_iterable(self._mappings))
        sizes = list(map(len, self._containers))
        self._sizes = sizes if apart else None
        self._read = get_referents
        self._held = get_referents(*self._containers)
        # From Python 3.13 on attributes may be for their object to show, and not its dictionary.
        if len(self._held) < sum(sizes):
            self._read = _values
            self._held = _values(*self._containers)

    def stays(self) -> bool:
        """Whether they hold the same now."""
        containers, held, sizes = self._containers, self._held, self._sizes
        now = self._read(*containers)
        if len(now) != len(held) or not all(map(is_, now, held)):
            return False
        if sizes is not None and list(map(len, containers)) != sizes:
            return False
        keys = list(chain.from_iterable(self._mappings))
        return len(keys) == len(self._keys) and all(map(is_, keys, self._keys))


class AttributePrint:
    """The attributes of some objects at one moment. It keeps them alive.

    Args:
        places: The objects' dictionaries.
        left_out: Names of attributes that do not count, and are not so much as touched.
    """

    __slots__ = ("_getters", "_held", "_places", "_sizes")

    def __init__(self, places: Iterable[dict[str, Any]], left_out: Collection[str]) -> None:
        self._places = list(places)
        self._sizes = list(map(len, self._places))
        self._getters: list[Callable[[dict[str, Any]], tuple[Any, ...]]] = []
        self._held: list[Any] = []
        # Objects of a class share one, which is in the processor's caches after the first.
        shared: dict[tuple[str, ...], Callable[[dict[str, Any]], tuple[Any, ...]]] = {(): _nothing}
        for place in self._places:
            names = tuple(name for name in place if name not in left_out)
            get = shared.get(names)
            if get is None:
                # Of a single name the value would come, and not a tuple.
                get = shared[names] = itemgetter(*names, names[-1])
            self._getters.append(get)
            self._held += get(place)

    def stays(self) -> bool:
        """Whether the objects have the same attributes now."""
        try:
            now = [get(place) for get, place in zip(self._getters, self._places)]
        except KeyError:
            return False
        if not all(map(is_, chain.from_iterable(now), self._held)):
            return False
        return list(map(len, self._places)) == self._sizes


def _nothing(place: dict[str, Any]) -> tuple[Any, ...]:
    return ()


def _values(*containers: Any) -> list[Any]:
    return list(chain.from_iterable(c.values() if isinstance(c, dict) else c for c in containers))
