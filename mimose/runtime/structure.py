"""Which modules a block is made of, and what code has noted on its parameters.

A forward may swap its submodules, replace a module's dictionary or set attributes of parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_
from typing import Any

import torch
from torch import nn

from mimose.runtime.fingerprint import Fingerprint

# Of PyTorch's compiler and of libraries that part parameters among processes.
_OTHERS = ("_", "ds_")


class Structure:
    """Modules' dictionaries, their submodules, and attributes of parameters, at one moment.

    Args:
        modules: The modules.
        parameters: The parameters whose attributes are looked at.
        contents: Whether the modules' dictionaries may be those of this moment alone, so that their
            contents belong to it.
    """

    __slots__ = (
        "_contents",
        "_empty",
        "_homes",
        "_loose",
        "_modules",
        "_noted",
        "_notes",
        "_parameters",
        "_print",
        "_tables",
    )

    def __init__(
        self,
        modules: list[nn.Module],
        parameters: Iterable[nn.Parameter] = (),
        *,
        contents: bool = False,
    ) -> None:
        self._modules = modules
        self._homes = list(map(vars, modules))
        self._contents = [dict(home) for home in self._homes] if contents else None
        tables = [m._modules for m in modules if isinstance(m._modules, dict)]
        self._tables = [(table, dict(table)) for table in tables]
        self._parameters = list(parameters)
        places = list(map(vars, self._parameters))
        self._notes = [(place, _notes(place)) for place in places]
        # Most are empty, which is seen at once.
        self._loose = any(
            isinstance(value, torch.Tensor) for place in places for value in place.values()
        )
        if self._loose:
            places = []
        self._empty = [place for place in (*tables, *places) if not place]
        self._print = Fingerprint(place for place in (*tables, *places) if place)
        self._noted = places, Fingerprint(places) if any(places) else None

    def stays(self) -> bool:
        """Whether all of it is the same now."""
        return (
            not self._loose and self.homes_stay() and not any(self._empty) and self._print.stays()
        )

    def homes_stay(self) -> bool:
        """Whether the modules have the dictionaries that they had."""
        return all(map(is_, map(vars, self._modules), self._homes))

    def notes_stay(self) -> bool:
        """Whether the parameters have the attributes that they had."""
        places, held = self._noted
        if self._loose:
            return False
        return not any(places) if held is None else held.stays()

    def lasting(self) -> Structure:
        """Return what may be held between steps: no tensors, which would live on by it."""
        if not self._loose:
            return self
        bare = Structure(self._modules)
        bare._loose = True
        return bare

    def present(self) -> Structure:
        """Return what there is now of the same modules and parameters."""
        if self.stays():
            return self
        return Structure(self._modules, self._parameters, contents=not self.homes_stay())

    def put_back(self) -> None:
        """Bring back what there was."""
        if self._contents is None and self.stays():
            return
        for module, home in zip(self._modules, self._homes):
            if vars(module) is not home:
                object.__setattr__(module, "__dict__", home)
        for home, contents in zip(self._homes, self._contents or ()):
            _put_back(home, contents)
        for table, before in self._tables:
            _put_back(table, before)
        for place, before in self._notes:
            for name in _notes(place).keys() - before.keys():
                del place[name]
            place.update(before)


def marked(modules: Iterable[nn.Module]) -> list[nn.Parameter]:
    """Return the parameters of modules whose attributes are the user's own to change.

    Those that other libraries part among processes are left out: what is noted on them goes with
    what they hold, which nobody puts back.
    """
    found = dict.fromkeys(p for m in modules for p in m._parameters.values() if p is not None)
    if any(hasattr(p, "placements") for p in found):
        return []
    return [p for p in found if hasattr(p, "__dict__") and not hasattr(p, "ds_id")]


def _notes(place: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in place.items()
        if not name.startswith(_OTHERS)
        and not (isinstance(value, torch.Tensor) and value.grad_fn is not None)
    }


def _put_back(place: dict[str, Any], before: dict[str, Any]) -> None:
    same = len(place) == len(before) and all(map(is_, place, before))
    if not same or not all(map(is_, place.values(), before.values())):
        place.clear()
        place.update(before)
