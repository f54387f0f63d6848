"""Find the blocks of a model: the modules whose calls a plan keeps or recomputes.

The level matters. Too coarse (a whole stage) and recomputing one block costs a stage's memory; too
fine (an attention's sub-module) and boundaries are saved that need not be. The rule:

1. the innermost modules that carry Hugging Face's checkpointing flag (``SwinLayer``, not the
   ``SwinStage`` around it), or what they chain if they do nothing else (``Swinv2Stage``);
2. else lists of like members, going down through containers that only chain a further list of like
   members (``ResNetStage``, ``AlbertLayerGroup``).
"""

from __future__ import annotations

import difflib
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

_LISTS = (nn.ModuleList, nn.Sequential)
_SHOWN = 3
_FLAG = "gradient_checkpointing"
# What a chaining container may own beside its list: whatever only changes the shape between lists.
_GLUE = re.compile(r"down_?sampl|pool|embed|merg|identity|drop", re.I)


@dataclass(frozen=True, slots=True, eq=False)
class BlockModule:
    """A module whose every call is a block.

    Attributes:
        name: Its qualified name in the model.
        module: The module.
    """

    name: str
    module: nn.Module


def find_blocks(
    model: nn.Module, blocks: Sequence[str] | None = None, *, required: bool = True
) -> list[BlockModule]:
    """Return the modules of ``model`` whose calls are its blocks, in order of registration.

    Args:
        model: The model.
        blocks: Names of the block modules, as in ``model.named_modules()``; ``*`` stands for any
            part between two dots, ``**`` for any number of parts. By default they are found.
        required: Whether there have to be any.

    Raises:
        ValueError: If there are no blocks although some are required, a name matches nothing,
            blocks lie within one another, or the model's own gradient checkpointing is on.
    """
    OwnCheckpointing(model).refuse(model, attached=False)
    if blocks is not None:
        found = _named(model, blocks)
    else:
        found = _flagged(model) or list(_structural(model, ""))
    if not found and required:
        raise ValueError(
            f"no blocks were found in {type(model).__name__}: name the modules to recompute, "
            "for example blocks=['encoder.layers.*']"
        )
    _refuse_nested(found)
    return found


class OwnCheckpointing:
    """Looks whether a model's own gradient checkpointing is on, which recomputes all once more.

    Hugging Face's models have a switch for it, a flag in each module that heeds it.

    Args:
        model: The model.
    """

    def __init__(self, model: nn.Module) -> None:
        self._flagged = [m for m in model.modules() if hasattr(m, _FLAG)]

    def refuse(self, model: nn.Module, *, attached: bool) -> None:
        """Refuse a model whose own checkpointing is on.

        Args:
            model: The model.
            attached: Whether it was turned on since the model was attached.

        Raises:
            ValueError: If it is on.
        """
        for module in self._flagged:
            if getattr(module, _FLAG, False) is True:
                name = next((n for n, m in model.named_modules() if m is module), "")
                # Recent versions of transformers call it by its other name and warn at the old one.
                switch = "activation_checkpointing_disable"
                if not hasattr(model, switch):
                    switch = "gradient_checkpointing_disable"
                where = name or type(model).__name__
                raise ValueError(
                    f"gradient checkpointing was turned on in {where} after attaching, and would "
                    f"run everything a third time: turn it off with model.{switch}(), and leave it "
                    "out of any TrainingArguments"
                    if attached
                    else f"gradient checkpointing is already on in {where}: turn it off with "
                    f"model.{switch}() before attaching"
                )


def _refuse_nested(found: Sequence[BlockModule]) -> None:
    chosen = {id(block.module): block.name for block in found}
    for block in found:
        for name, child in block.module.named_modules():
            if name and id(child) in chosen:
                raise ValueError(
                    f"block {chosen[id(child)]} lies within block {block.name}: name blocks on "
                    "one level only"
                )


def _named(model: nn.Module, patterns: Sequence[str]) -> list[BlockModule]:
    if isinstance(patterns, str):
        raise ValueError(f"blocks is a list of names, not {patterns!r}: write [{patterns!r}]")
    expressions = [(pattern, re.compile(_expression(pattern))) for pattern in patterns]
    names = {name: module for name, module in model.named_modules() if name}
    for pattern, expression in expressions:
        if not any(expression.fullmatch(name) for name in names):
            said = []
            if near := _nearest(pattern, names):
                said.append(f"the nearest are {', '.join(near)}")
            if found := _blocks_in_short(model):
                said.append(f"without blocks= the blocks are {', '.join(found)}")
            if not said:
                said.append(f"its modules are called {', '.join(list(names)[:_SHOWN])}, ...")
            raise ValueError(
                f"no module of {type(model).__name__} is called {pattern!r}: {'; '.join(said)}"
            )
    return [
        BlockModule(name, module)
        for name, module in names.items()
        if any(expression.fullmatch(name) for _, expression in expressions)
    ]


def _nearest(pattern: str, names: Collection[str]) -> list[str]:
    """Return a few names like the pattern, members of a list as one, the nearest first."""
    known = dict.fromkeys(_starred(name) for name in names)
    asked = _starred(pattern)
    within = [name for name in known if name.endswith(f".{asked}")]
    return list(dict.fromkeys([*within, *difflib.get_close_matches(asked, known, _SHOWN)]))[:_SHOWN]


def _blocks_in_short(model: nn.Module) -> list[str]:
    """Return patterns of the blocks that are found by themselves and how many each stands for."""
    found = Counter(_starred(b.name) for b in _flagged(model) or _structural(model, ""))
    return [f"{pattern} ({number})" for pattern, number in found.most_common(_SHOWN)]


def _starred(name: str) -> str:
    """Return a name with a star for each number."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))


def _expression(pattern: str) -> str:
    parts = re.split(r"(\*\*|\*)", pattern)
    wild = {"*": r"[^.]*", "**": r".*"}
    return "".join(wild.get(part, re.escape(part)) for part in parts)


def _flagged(model: nn.Module) -> list[BlockModule]:
    # Looked up, not imported: a model of Hugging Face's has imported it already, and for any other
    # model the import would cost seconds.
    layers = sys.modules.get("transformers.modeling_layers")
    base = getattr(layers, "GradientCheckpointingLayer", ())
    in_lists = {
        id(member)
        for module in model.modules()
        if isinstance(module, nn.ModuleList)
        for member in module
    }

    def carries_flag(module: nn.Module) -> bool:
        if isinstance(module, base):
            return True
        # Before transformers had the base class some layers carried the flag themselves.
        return id(module) in in_lists and isinstance(
            getattr(module, "gradient_checkpointing", None), bool
        )

    flagged = [(name, m) for name, m in model.named_modules() if name and carries_flag(m)]
    marked = {id(module) for _, module in flagged}
    innermost = (
        BlockModule(name, module)
        for name, module in flagged
        if not any(id(child) in marked for child in module.modules() if child is not module)
    )
    return [block for outer in innermost for block in _unchained(outer)]


def _unchained(block: BlockModule) -> Iterator[BlockModule]:
    """Yield the members of a flagged stage that only chains them, or the block itself."""
    inner = _chained_list(block.module)
    if inner is None:
        yield block
        return
    path, chain = inner
    yield from _members(chain, f"{block.name}.{path}")


def _structural(module: nn.Module, prefix: str) -> Iterator[BlockModule]:
    if _is_list_of_like(module):
        yield from _members(module, prefix)
        return
    run = _run_of_like(module)
    for name, child in module.named_children():
        if name in run:
            yield BlockModule(f"{prefix}{name}", child)
            continue
        yield from _structural(child, f"{prefix}{name}.")


def _members(members: nn.Module, prefix: str) -> Iterator[BlockModule]:
    for name, member in members.named_children():
        inner = _chained_list(member)
        if inner is None:
            yield BlockModule(f"{prefix}{name}", member)
            continue
        path, chain = inner
        yield from _members(chain, f"{prefix}{name}.{path}")


def _is_list_of_like(module: nn.Module) -> bool:
    """Whether ``module`` lists members of one class that are more than a single operator."""
    members = list(module.children())
    return (
        isinstance(module, _LISTS)
        and bool(members)
        and len({type(member) for member in members}) == 1
        and any(True for _ in members[0].children())
    )


def _run_of_like(module: nn.Module) -> frozenset[str]:
    """Return the names of a Sequential's members of the class that makes up most of it.

    An embedding, then a dozen layers, then a head, all in one Sequential.
    """
    if not isinstance(module, nn.Sequential):
        return frozenset()
    kinds: dict[type, list[str]] = {}
    for name, member in module.named_children():
        if any(True for _ in member.children()) and not isinstance(member, _LISTS):
            kinds.setdefault(type(member), []).append(name)
    longest = max(kinds.values(), key=len, default=[])
    return frozenset(longest) if len(longest) > 1 else frozenset()


def _chained_list(member: nn.Module) -> tuple[str, nn.Module] | None:
    """Return the list that ``member`` does nothing but chain, and its path within ``member``."""
    if isinstance(member, _LISTS):
        return ("", member) if _is_list_of_like(member) else None
    lists = [(name, child) for name, child in member.named_children() if _is_list_of_like(child)]
    if len(lists) != 1:
        return None
    path, chain = lists[0]
    for name, child in member.named_children():
        if child is not chain and not _GLUE.search(f"{name} {type(child).__name__}"):
            return None
    return f"{path}.", chain
