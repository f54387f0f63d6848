"""The plan of one iteration: which blocks keep their activations and which are recomputed.

A plan is frozen data over a model's ordered *blocks* (a block is one call of one module, numbered
from 0 in the order of the forward pass). It is a tree: a :class:`Region` of one or more consecutive
blocks saves its input only and is run again in backward; while it is recomputed, its ``inner``
regions say which of its blocks are themselves recomputed later. A block in no region is kept.

=====================  ==========================================================================
baseline               no region
full recomputation     one region a block
Chen's segments        flat regions of several blocks (Chen et al. 2016)
Rotor                  nested regions (Beaumont et al. 2019)
Mimose                 one-block regions, chosen for each input
selective              no region; ``cores``: blocks of which the attention core alone is run again
=====================  ==========================================================================

What a tree cannot hold is a :class:`mimose.schedule.Schedule`.

Text and JSON forms round-trip: ``Plan.parse(str(plan), plan.num_blocks) == plan`` and
``Plan.from_json(plan.to_json()) == plan``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Region:
    """Consecutive blocks ``first..last`` (both included) that are recomputed as one.

    Attributes:
        first: Number of the region's first block.
        last: Number of its last block.
        inner: Regions within this one that are recomputed again while it is; blocks in none of
            them are kept then. Sorted, disjoint, and none as large as the region itself.
    """

    first: int
    last: int
    inner: tuple[Region, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise ValueError(f"a region runs from a block to the same or a later one, not {self}")
        _check_order(self.inner, self.first, self.last)
        if any(r.first == self.first and r.last == self.last for r in self.inner):
            raise ValueError(f"region {self.first}-{self.last} holds itself as an inner region")

    def __len__(self) -> int:
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What one iteration recomputes.

    Attributes:
        num_blocks: Number of blocks that the plan covers.
        regions: The recomputed regions, sorted and disjoint. Every other block is kept.
        cores: Kept blocks of which the attention core (QK^T, softmax, its dropout, times V) keeps
            its inputs only and is run again in backward, sorted: selective recomputation
            (Korthikanti et al. 2022).
    """

    num_blocks: int
    regions: tuple[Region, ...] = ()
    cores: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(f"a plan covers at least one block, not {self.num_blocks}")
        _check_order(self.regions, 0, self.num_blocks - 1)
        if self.cores:
            _check_cores(self.cores, self.num_blocks, self.recomputed)

    @classmethod
    def keep_all(cls, num_blocks: int) -> Plan:
        """Return the plan that recomputes nothing."""
        return cls(num_blocks)

    @classmethod
    def recompute_each(cls, num_blocks: int, blocks: Iterable[int] | None = None) -> Plan:
        """Return the plan with one region for each of ``blocks`` (all of them by default)."""
        chosen = range(num_blocks) if blocks is None else sorted(set(blocks))
        return cls(num_blocks, tuple(Region(b, b) for b in chosen))

    @property
    def recomputed(self) -> frozenset[int]:
        """The blocks whose activations are not kept after the forward pass."""
        return frozenset(b for r in self.regions for b in range(r.first, r.last + 1))

    @property
    def num_recomputed(self) -> int:
        """How many blocks do not keep their activations after the forward pass."""
        return sum(len(r) for r in self.regions)

    @property
    def spans_blocks(self) -> bool:
        """Whether any region, inner ones included, has more than one block."""
        return any(len(r) > 1 for r in self.regions)

    def cut(self, cuts: Iterable[int]) -> Plan:
        """Return the plan with every region split where it may not span.

        Args:
            cuts: Numbers ``c`` such that no region may hold both block ``c - 1`` and block ``c``.
        """
        points = frozenset(cuts)
        pieces = tuple(p for r in self.regions for p in _cut(r, points))
        return Plan(self.num_blocks, pieces, self.cores)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain lists and dictionaries."""
        data: dict[str, Any] = {
            "num_blocks": self.num_blocks,
            "regions": [_to_json(r) for r in self.regions],
        }
        if self.cores:
            data["cores"] = list(self.cores)
        return data

    @classmethod
    def from_json(cls, data: Any) -> Plan:
        """Return the plan that :meth:`to_json` wrote.

        Raises:
            ValueError: If ``data`` is not such a plan.
        """
        try:
            regions = tuple(_from_json(r) for r in data["regions"])
            cores = tuple(int(b) for b in data.get("cores", ()))
            return cls(int(data["num_blocks"]), regions, cores)
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                'a plan in JSON is {"num_blocks": N, "regions": [{"first": I, "last": J}, ...]}'
            ) from error

    def __str__(self) -> str:
        return " | ".join(_parts(self.regions, 0, self.num_blocks - 1, frozenset(self.cores)))

    @classmethod
    def parse(cls, text: str, num_blocks: int | None = None) -> Plan:
        """Return the plan that ``text`` spells, for example ``keep 0-9 | recompute 10-11``.

        ``recompute 10-11`` is one region of two blocks; ``recompute each 10-11`` is two regions of
        one. A region's inner plan follows in brackets: ``recompute 0-3 (keep 0 | recompute 1-3)``.
        Of the blocks in ``selective 4-7`` the attention core alone is recomputed.

        Args:
            text: The plan, its parts separated by ``|``.
            num_blocks: Number of blocks to cover; blocks not named are kept. By default one more
                than the last block named.

        Raises:
            ValueError: If ``text`` is not a plan or names a block beyond ``num_blocks``.
        """
        parser = _Parser(text)
        regions, last = parser.plan()
        count = last + 1 if num_blocks is None else num_blocks
        if last >= count:
            raise ValueError(f"plan {text!r} names block {last}, but the last block is {count - 1}")
        return cls(count, regions, tuple(parser.cores))


def _check_cores(cores: Sequence[int], num_blocks: int, recomputed: frozenset[int]) -> None:
    if list(cores) != sorted(set(cores)) or cores[0] < 0 or cores[-1] >= num_blocks:
        raise ValueError(
            f"blocks whose cores are recomputed must be in order and within 0-{num_blocks - 1}, "
            f"not {', '.join(map(str, cores))}"
        )
    both = recomputed.intersection(cores)
    if both:
        raise ValueError(f"block {min(both)} is recomputed whole, so that its core cannot be alone")


def _check_order(regions: Sequence[Region], first: int, last: int) -> None:
    previous = first - 1
    for region in regions:
        if region.first <= previous or region.last > last:
            raise ValueError(
                f"regions must be in order, disjoint and within blocks {first}-{last}; "
                f"{region.first}-{region.last} is not"
            )
        previous = region.last


def _cut(region: Region, cuts: frozenset[int]) -> Iterator[Region]:
    first = region.first
    for end in range(region.first, region.last + 1):
        if end != region.last and end + 1 not in cuts:
            continue
        piece = (first, end)
        inner: list[Region] = []
        for sub in (s for r in region.inner for s in _cut(r, cuts)):
            if sub.first > end or sub.last < first:
                continue
            if (sub.first, sub.last) == piece:
                # The piece is as small as its inner region now: recomputing it once is the same.
                inner.extend(sub.inner)
            else:
                inner.append(sub)
        yield Region(first, end, tuple(inner))
        first = end + 1


def _to_json(region: Region) -> dict[str, Any]:
    data: dict[str, Any] = {"first": region.first, "last": region.last}
    if region.inner:
        data["inner"] = [_to_json(r) for r in region.inner]
    return data


def _from_json(data: Any) -> Region:
    inner = tuple(_from_json(r) for r in data.get("inner", ()))
    return Region(int(data["first"]), int(data["last"]), inner)


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _parts(
    regions: Sequence[Region], first: int, last: int, cores: frozenset[int] = frozenset()
) -> Iterator[str]:
    position, index = first, 0
    while position <= last:
        if index == len(regions) or regions[index].first > position:
            stop = last if index == len(regions) else regions[index].first - 1
            selective = position in cores
            for block in range(position, stop + 1):
                if (block in cores) != selective:
                    stop = block - 1
                    break
            yield f"{'selective' if selective else 'keep'} {_span(position, stop)}"
            position = stop + 1
            continue
        run = index
        while (
            run < len(regions)
            and len(regions[run]) == 1
            and regions[run].first == position + run - index
        ):
            run += 1
        if run - index > 1:
            yield f"recompute each {_span(position, regions[run - 1].last)}"
            position, index = regions[run - 1].last + 1, run
            continue
        region = regions[index]
        text = f"recompute {_span(region.first, region.last)}"
        if region.inner:
            text += f" ({' | '.join(_parts(region.inner, region.first, region.last))})"
        yield text
        position, index = region.last + 1, index + 1


_DIGITS = 6


class _Parser:
    _TOKEN = re.compile(r"\s*(?:(?P<number>\d+)|(?P<word>[a-z]+)|(?P<sign>[-|()]))")

    def __init__(self, text: str) -> None:
        self.text = text
        self.cores: list[int] = []
        self.tokens: list[str] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = self._TOKEN.match(stripped, position)
            if match is None:
                raise self.error(f"{stripped[position:].split()[0]!r} is not part of a plan")
            self.tokens.append(match.group().strip())
            position = match.end()
        self.tokens.reverse()

    def error(self, what: str) -> ValueError:
        return ValueError(
            f"plan {self.text!r}: {what}; a plan looks like "
            "'keep 0-9 | recompute 10-11' or 'recompute each 0-3 | keep 4-11'"
        )

    def peek(self) -> str:
        return self.tokens[-1] if self.tokens else ""

    def take(self, *allowed: str) -> str:
        token = self.tokens.pop() if self.tokens else "its end"
        if allowed and token not in allowed:
            raise self.error(f"expected {' or '.join(allowed)}, found {token}")
        return token

    def number(self) -> int:
        token = self.take()
        if not token.isdigit():
            raise self.error(f"expected a block number, found {token}")
        if len(token) > _DIGITS:
            raise self.error(f"no model has a block {token}")
        return int(token)

    def plan(self) -> tuple[tuple[Region, ...], int]:
        regions, last = self.parts("keep", "recompute", "selective")
        if self.tokens:
            raise self.error(f"unexpected {self.peek()}")
        return regions, last

    def parts(self, *verbs: str) -> tuple[tuple[Region, ...], int]:
        regions: list[Region] = []
        last = -1
        while True:
            verb = self.take(*verbs)
            each = self.peek() == "each"
            if each:
                if verb != "recompute":
                    raise self.error("'each' belongs to recompute")
                self.take()
            first = stop = self.number()
            if self.peek() == "-":
                self.take()
                stop = self.number()
            inner: tuple[Region, ...] = ()
            if self.peek() == "(":
                if verb != "recompute" or each:
                    raise self.error("only a single region can hold an inner plan")
                self.take()
                inner, _ = self.parts("keep", "recompute")
                self.take(")")
            if stop < first or first <= last:
                raise self.error(f"blocks {_span(first, stop)} are out of order")
            last = stop
            if each:
                regions.extend(Region(b, b) for b in range(first, stop + 1))
            elif verb == "recompute":
                regions.append(Region(first, stop, inner))
            elif verb == "selective":
                self.cores.extend(range(first, stop + 1))
            if self.peek() != "|":
                return tuple(regions), last
            self.take()
