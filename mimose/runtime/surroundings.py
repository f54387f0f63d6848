"""What a block's forward can change beside the tensors that it makes.

Attributes of its modules, the lists, dictionaries and sets that they hold, and plain objects, its
own or among its arguments. A second run is to find all of it as the first one did, and to leave it
as it found it.

Contents are told apart by identity and put back in place, so that everyone who holds an object goes
on holding it. Objects of PyTorch's and of other libraries are left alone, and so is what has no
attributes: a generator, an open file.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, islice, takewhile
from operator import is_
from typing import Any

import torch
from torch import nn

from mimose.runtime.fingerprint import AttributePrint, Fingerprint
from mimose.runtime.structure import Structure, marked

_PLAIN = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device))
Key = tuple[int, str]
"""Which tensor of a module's: the identity of the dictionary that holds it, and its name there."""

_LARGEST_ATTRIBUTE_BYTES = 1 << 20
_DEPTH = 4
# An object under a private name may lead to the rest of the program: a module's owner, say.
_DEPTH_OF_PRIVATE = 3
_MOST_ITEMS = 10_000
_MISSING = object()
_CONTAINERS = (list, tuple, dict, set, deque)
# Never put back: `training` alone of what every module has is anybody's to change.
_STANDARD = frozenset(vars(nn.Module())) - {"training"} | {"forward", "_compiled_call_impl"}
_STANDARD_AND_MODE = _STANDARD | {"training"}
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
    "triton",
}


class _Weak:
    """Stands for a tensor that knows its graph: to hold it would hold a graph of another step.

    Its values are held: what has replaced it meanwhile may have been made from them.
    """

    __slots__ = ("reference", "values")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.reference = weakref.ref(tensor)
        self.values = tensor.detach()

    def tensor(self) -> torch.Tensor:
        """Return the tensor, or its values alone if nobody holds it any more."""
        found = self.reference()
        return self.values if found is None else found


class _Slots:
    """The attributes of an object without a dictionary."""

    __slots__ = ("names", "owner")

    def __init__(self, owner: Any, names: tuple[str, ...]) -> None:
        self.owner = owner
        self.names = names


class _Frame:
    """The attributes and buffers of all modules at one moment; steps share one that stays."""

    __slots__ = (
        "before",
        "buffered",
        "buffers",
        "inner",
        "modes",
        "own",
        "prints",
        "tensors",
        "walked",
    )

    def __init__(self, own: _Own, strong: bool) -> None:
        self.own = own
        self.before = [(place, dict(place)) for place in own.places]
        self.buffers = [(place, dict(place)) for place in own.buffers]
        self.modes = [m.training for m in own.modules]
        self.buffered = [
            ((id(place), name), tensor)
            for place in filter(None, own.buffers)
            for name, tensor in place.items()
            if tensor is not None and not tensor.is_inference()
        ]
        self.walked: _Walked | None = None
        theirs = {
            id(before) for (_, before), is_theirs in zip(self.before, own.theirs) if is_theirs
        }
        values = [
            (before, name, value)
            for (_, before), start in zip(self.before, own.starts)
            for name, value in islice(before.items(), start, None)
            if name not in _STANDARD
        ]
        places = {id(before): id(place) for place, before in self.before}
        # What PyTorch's modules keep under names of their own is made from their parameters.
        self.inner = [
            ((places[id(before)], name), value)
            for before, name, value in values
            if _may_change(value) and (name[0] != "_" or id(before) not in theirs)
        ]
        tensors = [entry for entry in values if isinstance(entry[2], torch.Tensor)]
        self.tensors = [
            ((places[id(before)], name), t) for before, name, t in tensors if _is_plain_data(t)
        ]
        # None where a tensor would live on here although the module has let go of it.
        self.prints = (
            None if tensors else (AttributePrint(own.places, _STANDARD), Fingerprint(own.buffers))
        )
        if not strong:
            for before, name, tensor in tensors:
                if tensor.grad_fn is not None:
                    before[name] = _Weak(tensor)

    def stays(self) -> bool:
        """Whether no attribute has changed."""
        prints = self.prints
        return prints is not None and all(print.stays() for print in prints)

    def put_back(self) -> None:
        """Give every attribute what it was."""
        if not self.stays():
            for place, before in self.before:
                if not _same(place, before):
                    _put_back_attributes(place, before)
            for place, before in self.buffers:
                _put_back(place, before)
            for module, training in zip(self.own.modules, self.modes):
                module.training = training


class _Own:
    """Where some modules keep attributes and buffers, and where the first own attribute is.

    ``theirs`` says which of them are of PyTorch's own classes.
    """

    __slots__ = ("buffers", "modules", "places", "starts", "theirs")

    def __init__(self, modules: list[nn.Module]) -> None:
        self.modules = modules
        self.buffers = [m._buffers for m in modules]
        self.places = list(map(vars, modules))
        self.theirs = list(map(_is_pytorchs, modules))
        self.starts = [
            len(list(takewhile(_STANDARD_AND_MODE.__contains__, place))) for place in self.places
        ]


class _Walked:
    """What walking through attributes has found.

    Attributes:
        kept: The contents.
        seen: The identities of all that was walked through.
    """

    __slots__ = ("_print", "kept", "seen")

    def __init__(self, values: list[tuple[Key, Any]]) -> None:
        self.kept = kept = Kept()
        self.seen: set[int] = set()
        for key, value in values:
            near = key[1][0] == "_" and not isinstance(value, _CONTAINERS)
            _walk(value, _DEPTH_OF_PRIVATE if near else _DEPTH, kept, self.seen, key)
        # Others may hold tensors, or more contents, and are walked through each time.
        plain = (
            not kept.objects
            and len(kept.places) == len(self.seen)
            and all(not isinstance(p, _Slots) and _is_plain(c) for p, c in kept.places)
        )
        self._print = Fingerprint(place for place, _ in kept.places) if plain else None

    @property
    def lasts(self) -> bool:
        """Whether it can be told later if walking would find the same."""
        return self._print is not None

    def stays(self) -> bool:
        """Whether walking through the same attributes would find the same."""
        return self._print is not None and self._print.stays()


class Kept:
    """Contents at one moment.

    Attributes:
        frame: The attributes of modules.
        structure: Which modules there are.
        objects: Dictionaries of the attributes of objects, and what they were.
        places: What else has contents, and what they were.
        tensors: Tensors within them that may be changed in place.
        versions: Tensors that the arguments' objects hold, and their version counters.
    """

    __slots__ = ("frame", "objects", "places", "structure", "tensors", "versions")

    def __init__(self) -> None:
        self.frame: _Frame | None = None
        self.structure: Structure | None = None
        self.tensors: list[tuple[Key, torch.Tensor]] = []
        self.objects: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.places: list[tuple[Any, Any]] = []
        self.versions: list[tuple[torch.Tensor, int]] = []

    def present(self) -> Kept:
        """Return the contents that the same places have now."""
        now, frame = Kept(), self.frame
        if frame is not None:
            now.frame = frame if frame.stays() else _Frame(frame.own, strong=True)
        now.structure = None if self.structure is None else self.structure.present()
        now.objects = [(place, dict(place)) for place, _ in self.objects]
        now.places = [(place, _contents(place)) for place, _ in self.places]
        return now

    def put_back(self, now: Kept | None = None) -> None:
        """Give every place the contents that it had; ``now`` is what they have, if it is known."""
        if self.structure is not None and (now is None or now.structure is not self.structure):
            self.structure.put_back()
        if self.frame is not None and (now is None or now.frame is not self.frame):
            self.frame.put_back()
        for attributes, before in self.objects:
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


class Surroundings:
    """What a block's modules hold.

    Args:
        module: The block.
        with_parameters: Whether its parameters are looked at, too.

    Attributes:
        modules: Its modules.
        parameters: Their parameters, if those are looked at.
    """

    def __init__(self, module: nn.Module, *, with_parameters: bool = False) -> None:
        self._module = module
        self._with_parameters = with_parameters
        self._own = _Own([])
        self._frame: _Frame | None = None
        self._structure = Structure([])
        self._buffers: list[tuple[Key, torch.Tensor]] = []
        self._tensors: list[tuple[Key, torch.Tensor]] = []
        self._print: Fingerprint | None = None
        self.modules: list[nn.Module] = []
        self.parameters: list[nn.Parameter] = []

    def look(self) -> bool:
        """Take in what modules and parameters were put in since; return whether there may be any.

        Nothing is returned of parameters alone.
        """
        known = self._print is not None and self._print.stays()
        if known and self._structure.homes_stay():
            return False
        self.modules = _modules_in(self._module)
        tables = [m._modules for m in self.modules]
        if self._with_parameters:
            own = [m._parameters for m in self.modules]
            found = chain.from_iterable(map(dict.values, own))
            self.parameters = list(dict.fromkeys(p for p in found if p is not None))
            # A module's two lie close to each other in memory.
            tables = [*chain.from_iterable(zip(tables, own))]
        self._print = Fingerprint(tables, apart=False)
        self._own = _Own(self.modules)
        self._frame = None
        self._structure = self._structure_now().lasting()
        return True

    def _structure_now(self) -> Structure:
        # An undone step leaves parameters' attributes: a look at each takes time in every step.
        return Structure(self.modules, () if self._with_parameters else marked(self.modules))

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
        frame = self._frame
        if frame is None or not frame.stays():
            frame = _Frame(self._own, strong)
        kept.frame, self._frame = frame, None if frame.prints is None else frame
        structure = self._structure
        if not structure.notes_stay():
            structure = self._structure_now()
        kept.structure, self._structure = structure, structure.lasting()
        walked = frame.walked
        if walked is None or not walked.stays():
            walked = _Walked(frame.inner)
            frame.walked = walked if walked.lasts else None
        kept.objects += walked.kept.objects
        kept.places += walked.kept.places
        self._buffers, self._tensors = frame.buffered, frame.tensors + walked.kept.tensors
        seen: set[int] | None = None
        for value in (*args, *kwargs.values()):
            if type(value) not in _PLAIN and not isinstance(value, torch.Tensor):
                if seen is None:
                    seen = set(walked.seen)
                _walk_given(value, kept, seen, containers)
        return kept

    def homes(self) -> set[int]:
        """Return the identities of the dictionaries that keys of tensors begin with."""
        return {id(place) for place in (*self._own.places, *self._own.buffers)}

    def changeable(self) -> Iterator[tuple[Key, torch.Tensor]]:
        """Yield the tensors that may be changed in place: buffers, and small ones in attributes.

        They are as :meth:`save` has seen them.
        """
        yield from self._buffers
        for key, tensor in self._tensors:
            if tensor.nbytes <= _LARGEST_ATTRIBUTE_BYTES and not tensor.is_inference():
                yield key, tensor

    def large(self) -> list[tuple[Key, torch.Tensor]]:
        """Return the large tensors in attributes, as :meth:`save` has seen them."""
        return [
            (key, tensor)
            for key, tensor in self._tensors
            if tensor.nbytes > _LARGEST_ATTRIBUTE_BYTES
            and type(tensor) is torch.Tensor
            and not tensor.is_meta
            and not tensor.is_inference()
        ]


def _modules_in(module: nn.Module) -> list[nn.Module]:
    """Return a module's modules, with those in lists that they keep so as not to register them."""
    found = dict.fromkeys(module.modules())
    for owner in (waiting := list(found)):
        for name, value in vars(owner).items():
            if name in _STANDARD or not isinstance(value, _CONTAINERS) or len(value) > _MOST_ITEMS:
                continue
            for item in value.values() if isinstance(value, dict) else value:
                if isinstance(item, nn.Module) and item not in found:
                    inner = dict.fromkeys(item.modules())
                    if module not in inner:  # A part's whole is no part of it.
                        waiting += [each for each in inner if each not in found]
                        found.update(inner)
    return list(found)


def version_of(tensor: torch.Tensor) -> int:
    """Return a tensor's version counter; a tensor made in inference mode has none."""
    return -1 if tensor.is_inference() else tensor._version


def _is_pytorchs(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.nn.modules.")


def _same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now.values(), before.values()))


def _is_plain_data(tensor: torch.Tensor) -> bool:
    return tensor.grad_fn is None and not tensor.requires_grad


def _may_change(value: Any) -> bool:
    kind = type(value)
    if kind in _PLAIN or isinstance(value, torch.Tensor | nn.Module | type):
        return False
    if isinstance(value, tuple):
        return not _is_plain(value)
    if isinstance(value, list | dict | set | deque):
        return True
    return _is_users(kind)


def _is_plain(contents: Any) -> bool:
    items = contents.values() if isinstance(contents, dict) else contents
    return _PLAIN.issuperset(map(type, items))


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
        _walk(value, _DEPTH, kept, seen, (0, ""), given=True)


def _walk(
    value: Any, depth: int, kept: Kept, seen: set[int], key: Key, given: bool = False
) -> None:
    if id(value) in seen:
        return
    seen.add(id(value))
    owner, name = key
    items: Iterable[tuple[Any, Any]]
    if isinstance(value, tuple):
        items = enumerate(value)
    elif isinstance(value, list | dict | set | deque):
        if len(value) > _MOST_ITEMS:
            return
        contents = _contents(value)
        kept.places.append((value, contents))
        items = enumerate(contents.values() if isinstance(contents, dict) else contents)
    else:
        items = _walk_object(value, kept)
    for place, item in items:
        if isinstance(item, torch.Tensor):
            if given:
                kept.versions.append((item, version_of(item)))
            elif _is_plain_data(item) and not isinstance(item, nn.Parameter):
                kept.tensors.append(((owner, f"{name}.{place}"), item))
        elif depth and _may_change(item):
            _walk(item, depth - 1, kept, seen, (owner, f"{name}.{place}"), given)


def _walk_object(value: Any, kept: Kept) -> list[tuple[Any, Any]]:
    items: list[tuple[Any, Any]] = []
    own = getattr(value, "__dict__", None)
    if isinstance(own, dict):
        before = dict(own)
        kept.objects.append((own, before))
        items += before.items()
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
        items += zip(names, contents)
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
        # Order counts: code may take the first.
        if not _same(place, before) or not all(map(is_, place, before)):
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
            value = value.tensor()  # Nobody goes back through one of an earlier step.
            if now.get(name, _MISSING) is value:
                continue
        now[name] = value
