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

from mimose.graph_bits import bits_for, bits_of, values_in


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
        """Whether all of ``dropped`` can be made again once all of them are gone.

        Each of them is made from others that can, or from what stays: so any that can be dropped
        alone can be dropped together.
        """
        return bits_for(self).droppable.issuperset(dropped)

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
        return tuple(sorted(bits_for(self).droppable))

    def remaking(self, value: int, there: Collection[int]) -> tuple[int, ...]:
        """Return the places of the operators that make ``value`` again, in the order to run them.

        Args:
            value: The value.
            there: The values that need not be made: those kept, and those made again and still
                there.
        """
        return bits_for(self).remaking(value, bits_of(there))


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
    return tuple(
        Moment(use, frozenset(values_in(alive)), ran)
        for use, alive, ran in moments_in_bits(graph, gone)
    )


def moments_in_bits(
    graph: BlockGraph, gone: Collection[int]
) -> Iterator[tuple[int, int, tuple[int, ...]]]:
    """Yield the moments of :func:`course_of`, what is there as bits.

    Args:
        graph: The block.
        gone: Saved values; they are taken to be droppable together.
    """
    bits, dropped = bits_for(graph), bits_of(gone)
    kept = bits.saved & ~dropped
    last, over = bits.last, list(bits.over)
    held_for: dict[int, int] = {}
    for value in gone:
        # Whatever it is made from is held until then.
        leaves = 0
        for place in bits.remaking(value, kept):
            leaves |= bits.inputs[place] & kept
        held_for[last[value]] = held_for.get(last[value], 0) | leaves
    later = 0
    for end in sorted(held_for, reverse=True):
        leaves = held_for[end] & ~later
        later |= leaves
        for leaf in values_in(leaves):
            if last[leaf] < end:
                over[last[leaf]] ^= 1 << leaf
                over[end] |= 1 << leaf
    alive, held, waiting = kept & ~bits.fixed, 0, dropped
    for moment, value in enumerate(bits.uses):
        made = 0
        if dropped >> value & 1 and not held >> value & 1:
            places = bits.remaking(value, kept | held)
            for place, released in zip(places, bits.releases(places, dropped)):
                made |= bits.outputs[place]
                yield moment, alive | held | made, (place,)
                made &= ~released
        yield moment, alive | held | made, ()
        alive &= ~over[moment]
        waiting &= ~over[moment]
        held = (held | made) & waiting


def runs_again(graph: BlockGraph, dropped: Collection[int]) -> list[int]:
    """Return how often each operator runs again once ``dropped`` are gone."""
    bits, gone = bits_for(graph), bits_of(dropped)
    runs, kept, held = [0] * len(graph.operators), bits.saved & ~gone, 0
    over = 0
    for value, ends in zip(bits.uses, bits.over):
        over |= ends & gone
        if not gone >> value & 1:
            continue
        if not held >> value & 1:
            for place in bits.remaking(value, kept | held):
                runs[place] += 1
                held |= bits.outputs[place] & gone
        held &= ~over
    return runs


def releases(
    graph: BlockGraph, places: Sequence[int], dropped: Collection[int]
) -> tuple[tuple[int, ...], ...]:
    """Return for each of the operators that make a value again what may go once it has run.

    Args:
        graph: The block.
        places: The operators, in the order in which they run; the last makes the value.
        dropped: The values that are dropped, which stay: backward may need them, too.
    """
    found = bits_for(graph).releases(places, bits_of(dropped))
    return tuple(tuple(values_in(values)) for values in found)
