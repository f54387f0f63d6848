"""What a block's forward can change beside the tensors that it makes.

Attributes of its modules, the lists, dictionaries and sets that they hold, and plain objects, its
own or among its arguments. A second run is to find all of it as the first one did, and to leave it
as it found it.

Contents are told apart by identity and put back in place, so that everyone who holds an object goes
on holding it. Objects of PyTorch's and of other libraries are left alone, and so is what Python code
cannot see.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from operator import is_
from typing import Any

import torch
from torch import nn

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device))
_DEPTH = 4
_MOST_ITEMS = 10_000
_MISSING = object()
# Never put back: `training` alone of what every module has is anybody's to change.
_STANDARD = frozenset(vars(nn.Module())) - {"training"} | {"forward", "_compiled_call_impl"}
_LEFT_ALONE = frozenset(sys.stdlib_module_names) - {"collections", "types", "__main__"} | {
    "accelerate",
    "builtins",
    "deepspeed",
    "lightning",
    "mimose",
    "numpy",
    "peft",
    "pytorch_lightning",
    "torch",
    "transformers",
}


class _Weak:
    """Stands for a tensor that knows its graph: to hold it would hold a graph of another step."""

    __slots__ = ("reference",)

    def __init__(self, tensor: torch.Tensor) -> None:
        self.reference = weakref.ref(tensor)


class _Slots:
    """The attributes of an object without a dictionary."""

    __slots__ = ("names", "owner")

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self.owner = owner
        self.names = names


_Place = dict[str, Any] | list[Any] | set[Any] | deque[Any] | _Slots


class Kept:
    """Contents at one moment.

    Attributes:
        places: What has contents, and what they were.
        versions: Tensors that the arguments' objects hold, and their version counters.
    """

    __slots__ = ("attributes", "places", "versions")

    def __init__(self) -> None:
        self.attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.places: list[tuple[Any, Any]] = []
        self.versions: list[tuple[torch.Tensor, int]] = []

    def present(self) -> Kept:
        """Return the contents that the same places have now."""
        now = Kept()
        now.attributes = [(place, dict(place)) for place, _ in self.attributes]
        now.places = [(place, _contents(place)) for place, _ in self.places]
        return now

    def put_back(self) -> None:
        """Give every place the contents that it had."""
        for attributes, before in self.attributes:
            if not _same(attributes, before):
                _put_back_attributes(attributes, before)
        for place, contents in self.places:
            _put_back(place, contents)

    def check(self, name: str) -> None:
        """Refuse to run block ``name`` again if a tensor of its arguments was changed in place.

        Raises:
            RuntimeError: If one was.
        """
        if any(version_of(tensor) != version for tensor, version in self.versions):
            raise RuntimeError(
                f"a tensor in an object that block {name} was given was changed in place after the "
                "block had begun, so that it cannot run again: write x = x + y for x += y, or name "
                "other blocks"
            )


class _Attributes:
    """One module's attributes, and what of them has contents of its own."""

    __slots__ = ("before", "inner", "place", "tensors")

    def __init__(self, place: dict[str, Any]) -> None:
        self.place = place
        self.before: dict[str, Any] | None = None
        self.inner: list[Any] = []
        self.tensors: list[tuple[str, torch.Tensor]] = []

    def save(self, strong: bool) -> dict[str, Any]:
        before = self.before
        if before is not None and _same(self.place, before):
            return before
        before = dict(self.place)
        own = [(name, value) for name, value in before.items() if name not in _STANDARD]
        self.inner = [value for name, value in own if _may_change(value, name[0] != "_")]
        tensors = [(name, value) for name, value in own if isinstance(value, torch.Tensor)]
        self.tensors = [
            (name, t) for name, t in tensors if t.grad_fn is None and not t.requires_grad
        ]
        # Otherwise a tensor would live on here when the module has let go of it.
        self.before = None if tensors else before
        if not strong:
            for name, tensor in tensors:
                if tensor.grad_fn is not None:
                    before[name] = _Weak(tensor)
        return before


class Surroundings:
    """What a block's modules hold.

    Args:
        module: The block.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._num_children = -1
        self._attributes: list[_Attributes] = []
        self.modules: list[nn.Module] = []
        self.buffers: list[dict[str, Any]] = []

    def look(self) -> bool:
        """Take in modules that were put in since; return whether there may be any."""
        if sum([len(m._modules) for m in self.modules]) == self._num_children:
            return False
        self.modules = list(self._module.modules())
        self._num_children = sum(len(m._modules) for m in self.modules)
        self._attributes = [_Attributes(vars(m)) for m in self.modules]
        self.buffers = [m._buffers for m in self.modules]
        return True

    def save(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        containers: bool = False,
        strong: bool = False,
    ) -> Kept:
        """Return the contents of all there is, before the block runs.

        Args:
            args: The block's arguments, whose objects belong to it.
            kwargs: Its keyword arguments.
            containers: Whether lists and dictionaries among the arguments belong to it, too.
            strong: Whether tensors that know their graphs are held.
        """
        kept = Kept()
        seen: set[int] = set()
        for attributes in self._attributes:
            kept.attributes.append((attributes.place, attributes.save(strong)))
            for value in attributes.inner:
                _walk(value, _DEPTH, kept, seen)
        kept.places += [(buffers, dict(buffers)) for buffers in self.buffers]
        for value in (*args, *kwargs.values()):
            if type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
                _walk_given(value, kept, seen, containers)
        return kept

    def tensors(self) -> Iterator[tuple[tuple[int, str], torch.Tensor]]:
        """Yield the tensors that are plain attributes and know no graph, each with its place."""
        for attributes in self._attributes:
            for name, tensor in attributes.tensors:
                yield (id(attributes.place), name), tensor


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter; a tensor made in inference mode has none."""
    return -1 if tensor.is_inference() else tensor._version


def _same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now.values(), before.values()))


def _may_change(value: Any, objects: bool = True) -> bool:
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor | nn.Module | type):
        return False
    if isinstance(value, list | dict | set | deque | tuple):
        return True
    return objects and _is_users(kind)


def _is_users(kind: type) -> bool:
    """Whether objects of a class are the user's own, with attributes that code may set."""
    return kind.__module__.partition(".")[0] not in _LEFT_ALONE and not hasattr(
        kind, "get_seq_length"
    )


def _walk_given(value: Any, kept: Kept, seen: set[int], containers: bool) -> None:
    """Walk an argument: its lists and dictionaries are made anew for a rerun, its objects not."""
    if isinstance(value, list | tuple | dict | set | deque) and not containers:
        items = value.values() if isinstance(value, dict) else value
        for item in items:
            if type(item) not in _PLAIN and not isinstance(item, torch.Tensor):
                _walk_given(item, kept, seen, containers)
    elif _may_change(value):
        _walk(value, _DEPTH, kept, seen, given=True)


def _walk(value: Any, depth: int, kept: Kept, seen: set[int], given: bool = False) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    items: Iterable[Any]
    if isinstance(value, tuple):
        items = value
    elif isinstance(value, list | dict | set | deque):
        if len(value) > _MOST_ITEMS:
            return
        contents = _contents(value)
        kept.places.append((value, contents))
        items = contents.values() if isinstance(contents, dict) else contents
    else:
        items = _walk_object(value, kept)
    for item in items:
        if given and isinstance(item, torch.Tensor):
            kept.versions.append((item, version_of(item)))
        elif depth and _may_change(item):
            _walk(item, depth - 1, kept, seen, given)


def _walk_object(value: Any, kept: Kept) -> list[Any]:
    items: list[Any] = []
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        before = dict(own)
        kept.attributes.append((own, before))
        items += before.values()
    names = tuple(
        name
        for kind in type(value).__mro__
        for name in _slot_names(kind)
        if name not in ("__dict__", "__weakref__")
    )
    if names:
        slots = _Slots(value, names)
        contents = _contents(slots)
        kept.places.append((slots, contents))
        items += contents
    return items


def _slot_names(kind: type) -> tuple[str, ...]:
    names = kind.__dict__.get("__slots__", ())
    return (names,) if isinstance(names, str) else tuple(names)


def _contents(place: Any) -> Any:
    if isinstance(place, dict):
        return dict(place)
    if isinstance(place, _Slots):
        return [getattr(place.owner, name, _MISSING) for name in place.names]
    return list(place)


def _put_back(place: Any, before: Any) -> None:
    if isinstance(place, _Slots):
        for name, value in zip(place.names, before):
            if getattr(place.owner, name, _MISSING) is value:
                continue
            if value is _MISSING:
                object.__delattr__(place.owner, name)
            else:
                object.__setattr__(place.owner, name, value)
    elif isinstance(place, dict):
        if not _same(place, before) or place.keys() != before.keys():
            place.clear()
            place.update(before)
    elif len(place) != len(before) or not all(map(is_, place, before)):
        place.clear()
        if isinstance(place, set):
            place.update(before)
        else:
            place.extend(before)


def _put_back_attributes(now: dict[str, Any], before: dict[str, Any]) -> None:
    for name in [name for name in now if name not in before and name not in _STANDARD]:
        del now[name]
    for name, value in before.items():
        if name in _STANDARD or now.get(name, _MISSING) is value:
            continue
        if isinstance(value, _Weak):
            value = value.reference()
            if value is None:  # Of an earlier step: nobody goes back through it.
                continue
        now[name] = value
