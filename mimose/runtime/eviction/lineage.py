"""How an operator is run again: what it was called with, without keeping any of it alive.

Everything about an operator comes from its schema and its tags; there is no list of operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

PLAIN = {torch.Tensor, torch.nn.Parameter}
"""The types of plain tensors, as far as they are known; see :func:`is_plain`."""


def is_plain(kind: type) -> bool:
    """Return whether tensors of a type are plain: subclasses are that leave operators alone."""
    if kind in PLAIN:
        return True
    if not issubclass(kind, torch.Tensor) or hasattr(kind, "__tensor_flatten__"):
        return False
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        return False
    PLAIN.add(kind)
    return True


_HOLDING = (torch.Tensor, list, tuple, dict)

_OVERWRITE = ("copy_", "fill_", "zero_")
"""Pointwise operators that change an argument and do not look at what was there."""


class Place(tuple):  # type: ignore[type-arg]
    """A tensor argument: place among the operator's storages, dtype, size, stride, offset."""

    __slots__ = ()


class Traits:
    """What kind of operator it is.

    Attributes:
        func: The operator.
        view: Its outputs are views of its arguments; no data is touched.
        random: It draws random numbers.
        written: Positions and names of the arguments that it changes.
        makes: It has outputs beside the arguments that it changes.
        opaque: It cannot be replayed.
        reshapes: It changes what a tensor is, not its data.
        indexes: Its first argument is indexed by the tensors of its second.
        pointwise: It changes no argument without saying so.
        dynamic: The shapes of its outputs depend on values.
        unwritten: Its outputs are memory as it was found.
        updates: What it writes depends on what was there, element by element.
    """

    __slots__ = (
        "dynamic",
        "func",
        "indexes",
        "makes",
        "opaque",
        "pointwise",
        "random",
        "reshapes",
        "unwritten",
        "updates",
        "view",
        "written",
    )

    def __init__(self, func: Any) -> None:
        self.func = func
        schema = getattr(func, "_schema", None)
        self.view = self.random = self.pointwise = self.dynamic = False
        self.reshapes = self.indexes = self.unwritten = self.updates = False
        self.makes = self.opaque = True
        self.written: tuple[int | str, ...] = ()
        if schema is None:
            return
        tags, returns = func.tags, schema.returns
        self.view = bool(returns) and all(
            r.alias_info is not None and not r.alias_info.is_write for r in returns
        )
        self.random = torch.Tag.nondeterministic_seeded in tags
        self.pointwise = torch.Tag.pointwise in tags
        self.dynamic = torch.Tag.dynamic_output_shape in tags
        self.makes = any(r.alias_info is None for r in returns)
        self.opaque = self.reshapes = torch.Tag.inplace_view in tags
        self.indexes = [str(a.type) for a in schema.arguments] == [
            "Tensor",
            "List[Optional[Tensor]]",
        ]
        self.written = tuple(
            argument.name if argument.kwarg_only else position
            for position, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        )
        name = schema.name.partition("::")[2]
        self.unwritten = name.startswith(("empty", "new_empty"))  # There is no tag for it.
        self.updates = (
            self.pointwise and not self.random and 0 in self.written and name not in _OVERWRITE
        )

    def selects(self, described: Any) -> bool:
        """Return whether its output has a shape that values decide on, with these arguments."""
        if not self.indexes:
            return True
        return any(
            type(each) is Place and each[1] in (torch.bool, torch.uint8)
            for each in (described[1] if len(described) > 1 else ())
        )

    def values_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        """Return the arguments that it changes."""
        return [
            kwargs.get(key) if isinstance(key, str) else args[key]
            for key in self.written
            if isinstance(key, str) or key < len(args)
        ]

    def places_written(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[int]:
        """Return the places of the storages that it changes, from its described arguments."""
        places = []
        for key in self.written:
            if isinstance(key, str):
                value = kwargs.get(key)
            else:
                value = args[key] if key < len(args) else None
            if type(value) is Place:
                places.append(value[0])
            elif type(value) is tuple:
                places += [each[0] for each in value if type(each) is Place]
        return list(dict.fromkeys(places)) if len(places) > 1 else places


class Recipe:
    """How to make an operator's outputs again.

    Attributes:
        func: The operator.
        args: Its arguments, with a :class:`Place` for each tensor and a tuple for each list.
        kwargs: Likewise, by name.
        random: The state of the generators before it ran, if it draws random numbers.
        generator: The generator that it was given, if it was: ``random`` is that one's state.
        written: Places of the storages that it changes: it gets copies of them.
        sources: Where each output of the engine's operator is found: its position among the
            tensors returned, or ``-1 - place`` for a changed argument.
        pointwise: It changes no argument without saying so.
        spare: Bytes that it takes while it runs, beside its outputs.
        signature: What its cost is remembered by; may be None.
        settings: What the settings were when it ran (:mod:`mimose.runtime.eviction.settings`).
    """

    __slots__ = (
        "args",
        "func",
        "generator",
        "kwargs",
        "pointwise",
        "random",
        "settings",
        "signature",
        "sources",
        "spare",
        "written",
    )

    def __init__(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        written: list[int],
        sources: list[int],
        pointwise: bool,
        random: Any,
        generator: torch.Generator | None,
        spare: int,
        signature: Any,
        settings: Any = (),
    ) -> None:
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.written = written
        self.sources = sources
        self.pointwise = pointwise
        self.random = random
        self.generator = generator
        self.spare = spare
        self.signature = signature
        self.settings = settings

    def __repr__(self) -> str:
        return str(self.func)


def rebuilt(described: Any, storages: Sequence[torch.UntypedStorage]) -> Any:
    """Return arguments as they were, on the given storages. No dispatch mode sees it."""
    kind = type(described)
    if kind is Place:
        place, dtype, size, stride, offset = described
        storage = storages[place]
        tensor = torch.empty(0, dtype=dtype, device=storage.device)
        return tensor.set_(storage, offset, size, stride)
    if kind is tuple:
        return [rebuilt(each, storages) for each in described]
    return described


def tensors_returned(output: Any) -> Sequence[Any]:
    """Return the tensors of an operator's output, in order; nested lists are flattened."""
    kind = type(output)
    if kind is torch.Tensor:
        return (output,)
    if kind is tuple or kind is list:
        if all(type(each) is torch.Tensor for each in output):
            return output  # type: ignore[no-any-return]
    elif not isinstance(output, _HOLDING):
        return ()
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, torch.Tensor)]
