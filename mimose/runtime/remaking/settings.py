"""What a block's modules say that a trace of a call may have gone by: numbers, flags, adapters.

A trace holds the numbers that operators were called with. A dropout's rate on a schedule, say, or
an adapter that is switched off changes those and no shape, so each call looks whether all is as it
was. Where to look is found out once, by a survey, and again when there is more than new numbers.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import chain
from operator import attrgetter
from typing import Any

from torch import nn

from mimose.runtime.remaking.kinds import identities, is_scalar
from mimose.runtime.remaking.survey import Survey

_HOOKS = attrgetter("_forward_hooks", "_forward_pre_hooks")


class Settings:
    """Looks at what a block's modules say.

    Args:
        module: The block.

    Attributes:
        opaque: Whether it cannot be traced: ``fully_shard`` has taken its parameters over, which
            come and go, or something within it is compiled.
        restless: How many times in a row something was found that was never so before.
    """

    __slots__ = (
        "_children",
        "_grown",
        "_known",
        "_last",
        "_module",
        "_number",
        "_parameters",
        "_survey",
        "_tables",
        "opaque",
        "restless",
    )

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._known: dict[Hashable, int] = {}
        self._last: Any = None
        self._number = -1
        self._grown = 0
        self.restless = 0
        self._read()

    def now(self) -> int:
        """Return a number that is the same whenever everything is as it was."""
        try:
            current = self._current()
        except (AttributeError, KeyError, ValueError):  # Something is gone.
            self._read()
            current = self._current()
        if not _alike(current[0], self._children):
            self._read()
            current = self._current()
        elif self._last is not None:
            if _alike(current[1], self._last):
                self.restless = 0
                return self._number
            if _leads_on(self._last, current[1]):
                self._read()
                current = self._current()
        self._last = current[1]
        before = len(self._known)
        self._number = self._numbered((self._grown, *current[1]))
        self.restless = self.restless + 1 if len(self._known) > before else 0
        return self._number

    def _numbered(self, state: tuple[Any, ...]) -> int:
        try:
            return self._known.setdefault(_frozen(state), len(self._known))
        except TypeError:  # Cannot be looked up again.
            return self._known.setdefault(object(), len(self._known))

    def _current(self) -> tuple[Any, Any]:
        children, tables, hooks = self._tables
        survey = self._survey
        return (
            (
                children,
                list(map(len, tables)),
                list(map(id, chain.from_iterable([get(o) for get, o in survey.objects]))),
                list(map(identities, survey.lists)),
            ),
            (
                list(chain.from_iterable([get(owner) for get, owner in survey.values])),
                [copy(container) for copy, container in survey.copies],
                list(map(tuple, hooks)),
                [p is not None and p.requires_grad for d in self._parameters for p in d.values()],
            ),
        )

    def _read(self) -> None:
        """Look anew at which modules there are, and at what they have."""
        modules = list(self._module.modules())
        self._survey = Survey(modules)
        self.opaque = self._survey.full or any(map(_is_opaque, modules))
        self._parameters = [m._parameters for m in modules]
        children = [m._modules for m in modules]
        hooks = [hooks for m in modules for hooks in _HOOKS(m)]
        self._tables = children, self._survey.tables, hooks
        self._children = ([dict(c) for c in children], *self._current()[0][1:])
        # Other modules with the same settings are something else.
        self._grown += 1


def _leads_on(last: Any, current: Any) -> bool:
    """Whether what has changed is more than numbers, so that there may be more to look at."""
    if len(last[0]) != len(current[0]):
        return True
    values = ((a, b) for a, b in zip(last[0], current[0]) if a is not b)
    if not all(is_scalar(a) and is_scalar(b) for a, b in values):
        return True
    pairs = zip(last[1], current[1])
    if any(not is_scalar(part) for old, new in pairs if old != new for part in new):
        return True
    return any(not set(new) <= set(old) for old, new in zip(last[2], current[2]))


def _is_opaque(module: nn.Module) -> bool:
    held = vars(module)
    config = held.get("config")
    return (
        any(base.__name__ in _OPAQUE for base in type(module).__mro__)
        or held.get("_compiled_call_impl") is not None
        or any(hasattr(value, "_torchdynamo_orig_callable") for value in held.values())
        # Compiles itself where nobody else has done so.
        or getattr(config, "_attn_implementation", None) == "flex_attention"
    )


_OPAQUE = frozenset(("FSDPModule", "OptimizedModule"))


def _alike(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, TypeError, ValueError):  # Arrays, for one, have no one answer.
        return False


def _frozen(value: Any) -> Hashable:
    """Return something that is equal for equal values of equal types."""
    if isinstance(value, (tuple, list)):
        return tuple(_frozen(part) for part in value)
    hash(value)
    return type(value), value
