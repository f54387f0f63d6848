"""What a block saves for backward, and what of it can be made again from the rest, at what price.

A block's forward is a graph of *values* (one for each new storage that an operator fills) and of
the operators between them. Some values are *saved* for backward. A saved value may be *dropped*:
before backward needs it, its operator runs again, on values that are kept or were made again
themselves.
Operators that draw random numbers, change what they are given or wait for data cannot run again.

The graph, a :class:`BlockGraph`, has no sizes in it, so that one serves all mini-batches; bytes and
seconds by size come beside it. Values that come from outside the block (its inputs, parameters,
buffers) are always there and have no number. Yet an input that the block does not save may be held
for one thing only: operators that run again on it.

The rules of making values again, by which both the runtime and :func:`cost_of` go:

- when backward needs a dropped value that is not there, its operator runs, and so before it do
  those of its inputs that are neither kept nor there;
- a dropped value, once made, stays until backward has needed it for the last time;
- all else that is made on the way goes as soon as nothing reads it any more.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

# A sample more asks about nearly the same sets as the samples before it.
_MOST_ASKED = 1 << 14


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a block's forward pass.

    Attributes:
        name: Its name, e.g. ``gelu``.
        inputs: Values that it reads, made before it in the same block.
        outputs: Values that it makes.
        repeatable: Whether it can run again with the same result and nothing else changed.
        holds: Whether it reads an input of the block's that the block does not save, and which it
            has to hold on to so as to run again.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    repeatable: bool
    holds: bool = False


@dataclass(frozen=True, slots=True)
class BlockGraph:
    """A block's forward as far as its backward needs it. Equal graphs are equal.

    Attributes:
        operators: In the order in which they ran.
        uses: For each saved tensor the value that it shows, in the order in which backward comes to
            them: autograd's last node first. A value may come several times.
        fixed: Saved values that are held by others, too: the block's outputs. Dropping one frees
            nothing.
    """

    operators: tuple[Operator, ...]
    uses: tuple[int, ...]
    fixed: frozenset[int] = frozenset()
    makers: tuple[int, ...] = field(init=False, compare=False, repr=False)
    """For each value the place of its operator."""
    digest: str = field(init=False, compare=False, repr=False)
    """Tells graphs apart, in plans and over processes."""

    def __post_init__(self) -> None:
        made = {v: place for place, op in enumerate(self.operators) for v in op.outputs}
        if sorted(made) != list(range(len(made))):
            raise ValueError("values are numbered from 0, and one operator makes each")
        object.__setattr__(self, "makers", tuple(made[v] for v in range(len(made))))
        # What is held on to is left out: it does not matter to what can be dropped.
        described = [(o.name, o.inputs, o.outputs, o.repeatable) for o in self.operators]
        text = repr((described, self.uses, sorted(self.fixed)))
        object.__setattr__(self, "digest", hashlib.sha256(text.encode()).hexdigest()[:8])

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def num_values(self) -> int:
        """How many values the operators make."""
        return len(self.makers)

    @property
    def saved(self) -> frozenset[int]:
        """The values that are saved for backward."""
        return frozenset(self.uses)

    def names(self) -> tuple[str, ...]:
        """Return a readable name for each value: its operator's, numbered where there are more."""
        total = Counter(op.name for op in self.operators)
        seen: Counter[str] = Counter()
        names = [""] * self.num_values
        for op in self.operators:
            seen[op.name] += 1
            name = op.name if total[op.name] == 1 else f"{op.name}#{seen[op.name]}"
            for place, value in enumerate(op.outputs):
                names[value] = name if place == 0 else f"{name}[{place}]"
        return tuple(names)

    def can_drop(self, dropped: Collection[int]) -> bool:
        """Whether all of ``dropped`` can be made again once all of them are gone."""
        return _can_drop(self, frozenset(dropped))

    def can_let_go(self, dropped: Collection[int], offloaded: Collection[int]) -> bool:
        """Whether all of ``dropped`` can be made again, and ``offloaded`` are others to be had."""
        away = frozenset(offloaded)
        return away <= self.saved - self.fixed - frozenset(dropped) and self.can_drop(dropped)

    def holds(self, dropped: Collection[int]) -> bool:
        """Whether making ``dropped`` again takes inputs that the block does not save."""
        kept = self.saved - frozenset(dropped)
        return any(
            self.operators[place].holds for value in dropped for place in self.remaking(value, kept)
        )

    def droppable(self) -> tuple[int, ...]:
        """Return the saved values that can be made again if everything else is kept."""
        return tuple(v for v in sorted(self.saved) if self.can_drop((v,)))

    def remaking(self, value: int, there: Collection[int]) -> Iterator[int]:
        """Yield the places of the operators that make ``value`` again, in the order to run them.

        Args:
            value: The value.
            there: The values that need not be made: those kept, and those made again and still
                there.
        """
        needed, pending = set[int](), [value]
        while pending:
            current = pending.pop()
            place = self.makers[current]
            if place in needed:
                continue
            needed.add(place)
            pending += [i for i in self.operators[place].inputs if i not in there]
        yield from sorted(needed)


@lru_cache(maxsize=_MOST_ASKED)
def _can_drop(graph: BlockGraph, dropped: frozenset[int]) -> bool:
    if not dropped <= graph.saved - graph.fixed:
        return False
    kept = graph.saved - dropped
    able = list[bool]()
    for maker in graph.makers:
        operator = graph.operators[maker]
        able.append(operator.repeatable and all(able[i] or i in kept for i in operator.inputs))
    return all(able[value] for value in dropped)


@dataclass(frozen=True, slots=True)
class Traced:
    """A block's graph with what it takes at one size.

    Attributes:
        block: The block's number.
        graph: The graph.
        bytes: Of each value, as the allocator rounds.
        seconds: Of each operator; 0 where it was not measured.
        levels: For each entry of the graph's ``uses`` the peak from when backward came to it until
            it came to the next, in bytes above the level before the block's forward, while all that
            the block saves was there until its last use. Empty where that was not measured.
        starts: For each of them the level as backward came to it.
    """

    block: int
    graph: BlockGraph
    bytes: tuple[int, ...]
    seconds: tuple[float, ...]
    levels: tuple[int, ...] = ()
    starts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Cost:
    """What dropping some values comes to.

    Attributes:
        kept_bytes: What is still saved once the block's forward is over, ``fixed`` values left out.
        seconds: What running operators again takes.
        working_bytes: The most that is alive of the block's values at any moment of its backward.
        runs: How many operators run again.
    """

    kept_bytes: int
    seconds: float
    working_bytes: int
    runs: int


def cost_of(
    graph: BlockGraph,
    dropped: Collection[int],
    sizes: Sequence[float],
    seconds: Sequence[float],
) -> Cost:
    """Return what dropping ``dropped`` comes to; they are taken to be droppable together.

    Args:
        graph: The block.
        dropped: Saved values.
        sizes: Bytes of each value.
        seconds: Seconds of each operator.
    """
    total, runs, working = 0.0, 0, 0.0
    for _, alive, ran in course_of(graph, dropped):
        working = max(working, sum(sizes[v] for v in alive))
        total += sum(seconds[place] for place in ran)
        runs += len(ran)
    counted = graph.saved - frozenset(dropped) - graph.fixed
    return Cost(round(sum(sizes[v] for v in counted)), total, round(working), runs)


class Moment(NamedTuple):
    """A moment of a block's backward.

    Attributes:
        use: The place among the graph's ``uses`` of the value that backward has come to.
        alive: The block's own values that are there, ``fixed`` ones left out.
        ran: The operator that has just run again, if one has.
    """

    use: int
    alive: frozenset[int]
    ran: tuple[int, ...] = ()


def course_of(graph: BlockGraph, dropped: Collection[int]) -> tuple[Moment, ...]:
    """Return the moments of a block's backward: each operator that runs again, and each use.

    Args:
        graph: The block.
        dropped: Saved values; they are taken to be droppable together.
    """
    return _course_of(graph, frozenset(dropped))


@lru_cache(maxsize=256)
def _course_of(graph: BlockGraph, gone: frozenset[int]) -> tuple[Moment, ...]:
    return tuple(_moments(graph, gone))


def _moments(graph: BlockGraph, gone: frozenset[int]) -> Iterator[Moment]:
    kept = graph.saved - gone
    last = {value: moment for moment, value in enumerate(graph.uses)}
    left = Counter(value for value in graph.uses if value in gone)
    for value in gone:
        # Whatever it is made from is held until then.
        for leaf in _leaves(graph, value, kept):
            last[leaf] = max(last[leaf], last[value])
    counted = kept - graph.fixed
    held: frozenset[int] = frozenset()
    for moment, value in enumerate(graph.uses):
        alive = frozenset(v for v in counted if last[v] >= moment)
        made: set[int] = set()
        if value in gone:
            if value not in held:
                places = tuple(graph.remaking(value, kept | held))
                for place, released in zip(places, releases(graph, places, gone)):
                    made.update(graph.operators[place].outputs)
                    yield Moment(moment, alive | held | made, (place,))
                    made.difference_update(released)
            left[value] -= 1
        yield Moment(moment, alive | held | made)
        held = frozenset(v for v in held | (made & gone) if left[v] > 0)


def releases(
    graph: BlockGraph, places: Sequence[int], dropped: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return for each of the operators that make a value again what may go once it has run.

    Args:
        graph: The block.
        places: The operators, in the order in which they run; the last makes the value.
        dropped: The values that are dropped, which stay: backward may need them, too.
    """
    last = dict[int, int]()
    for turn, place in enumerate(places):
        operator = graph.operators[place]
        last.update((value, turn) for value in (*operator.outputs, *operator.inputs))
    made = {value for place in places for value in graph.operators[place].outputs}
    found: list[list[int]] = [[] for _ in places]
    for value in made.difference(dropped):
        found[last[value]].append(value)
    return tuple(tuple(sorted(values)) for values in found)


def _leaves(graph: BlockGraph, value: int, kept: frozenset[int]) -> frozenset[int]:
    """Return the kept values that ``value`` is made from, through whatever is made on the way."""
    places = graph.remaking(value, kept)
    return kept.intersection(i for place in places for i in graph.operators[place].inputs)
