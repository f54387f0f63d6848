"""Make a trace of what a tracer has written down."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from mimose.menu import BlockGraph, Operator
from mimose.runtime.remaking.draft import Draft, Record
from mimose.runtime.remaking.trace import (
    Given,
    Pack,
    Ref,
    Shape,
    Step,
    Trace,
    is_plain,
    shape_of,
    storage_of,
)

_NO_SHAPE = Shape((), (), 0, torch.uint8)


def trace_of(
    draft: Draft, outputs: set[int], seconds_between: Callable[[Any, Any], float]
) -> Trace:
    """Return a call's trace; what nothing that is saved was made from is left out.

    Args:
        draft: What was written down.
        outputs: Identities of the storages that the call returned.
        seconds_between: The time between two stamps; may wait for the device.
    """
    partial = draft.firm >= 0
    firm = draft.packs[: draft.firm] if partial else draft.packs
    final = {value.storage: number for number, value in enumerate(draft.values)}
    last = set(final.values())
    held = {final[key] for key in outputs if key in final} | draft.fixed
    # What is saved again after that point may be so or not.
    held.update(entry[0] for entry in draft.packs[len(firm) :] if entry is not None)
    packs = [_pack(entry, draft, last) for entry in firm]
    places: dict[int, int] = {}
    for place, entry in enumerate(firm):
        if entry is not None and entry[0] < 0:
            places.setdefault(entry[1], place)
    kept = _needed(draft, [pack.value for pack in packs if pack.value >= 0])
    numbers = {value: -1 for record in kept for value in record.outputs}
    numbers = {value: number for number, value in enumerate(numbers)}
    steps = [_step(record, draft, numbers, places) for record in kept]
    operators = [
        Operator(
            record.name,
            tuple(sorted(numbers[value] for value in record.inputs)),
            tuple(numbers[value] for value in record.outputs),
            step is not None,
            step is not None and any(_is_held(g, draft, places) for g in step.given),
        )
        for record, step in zip(kept, steps)
    ]
    renumbered = [p if p.value < 0 else p._replace(value=numbers[p.value]) for p in packs]
    # Nodes go backward in the reverse of their order; what one has saved it needs as it was saved.
    order = sorted(range(len(packs)), key=lambda place: (-draft.marks[place], place))
    uses = tuple(v for place in order if (v := renumbered[place].value) >= 0)
    fixed = {numbers[value] for value in held if value in numbers}.intersection(uses)
    return Trace(
        BlockGraph(tuple(operators), uses, frozenset(fixed)),
        tuple(steps),
        tuple(renumbered),
        tuple(draft.values[value].bytes for value in numbers),
        tuple(0.0 if r.stamps is None else seconds_between(*r.stamps) for r in kept),
        (draft.nodes - draft.copied, draft.nodes + draft.found),
        partial,
        {given: shape_of(t) for given, t in draft.taken.items() if is_plain(t)},
        tuple(order),
    )


def _pack(entry: tuple[int, int, Shape] | None, draft: Draft, last: set[int]) -> Pack:
    if entry is None:
        return Pack(-1, _NO_SHAPE)
    value, _, shape = entry
    usable = value in last and draft.values[value].dtype == shape.dtype
    return Pack(value if usable else -1, shape)


def _needed(draft: Draft, saved: list[int]) -> list[Record]:
    """Return the operators that what is saved was made by, through whatever is between."""
    maker = {value: record for record in draft.records for value in record.outputs}
    needed: set[int] = set()
    pending = list(saved)
    while pending:
        record = maker[pending.pop()]
        if id(record) not in needed:
            needed.add(id(record))
            pending.extend(record.inputs)
    return [record for record in draft.records if id(record) in needed]


def _step(
    record: Record, draft: Draft, numbers: Mapping[int, int], places: Mapping[int, int]
) -> Step | None:
    if record.function is None:
        return None
    found: dict[Given, Given] = {}
    for source in record.given:
        given = _found(source, draft, places)
        if given is None:
            return None
        found[source] = given
    return Step(
        record.function,
        tuple(_renumbered(a, numbers, found) for a in record.args),
        {name: _renumbered(a, numbers, found) for name, a in record.kwargs.items()},
        tuple((place, numbers[value], shape) for place, value, shape in record.wanted),
        tuple(dict.fromkeys(found.values())),
    )


def _found(source: Given, draft: Draft, places: Mapping[int, int]) -> Given | None:
    """Return where a given storage is found in another call; None if it must not be read again."""
    if source in draft.changed:
        return None
    if source.owner is not None:
        return source
    if source.place < 0:
        place = places.get(source.storage)
        return None if place is None else Given(-1, pack=place)
    return source


def _is_held(source: Given, draft: Draft, places: Mapping[int, int]) -> bool:
    """Whether it is an argument that is not saved: it is to stay for the recipes' sake."""
    return source.place >= 0 and storage_of(draft.taken[source]) not in places


def _renumbered(argument: Any, numbers: Mapping[int, int], found: Mapping[Given, Given]) -> Any:
    if isinstance(argument, Ref):
        source = argument.source
        known = found[source] if isinstance(source, Given) else numbers[source]
        return Ref(known, argument.shape)
    if isinstance(argument, list):
        return [_renumbered(a, numbers, found) for a in argument]
    return argument
