"""The text form of a plan, such as ``recompute 0-1 (keep 0 | recompute 1) | remake 2-3 [5 8]``.

See :meth:`mimose.plan.Plan.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mimose.plan_parts import Region, Remade

_DIGITS = 6
_KEEP = "keep {}"
_VERBS = ("keep", "recompute", "selective", "remake", "offload")


@dataclass(slots=True)
class Read:
    """What a text says.

    Attributes:
        regions: The recomputed regions.
        last: The last block named.
        cores: Blocks of which the attention core alone is recomputed.
        remade: Kept blocks that let values go.
    """

    regions: tuple[Region, ...] = ()
    last: int = -1
    cores: list[int] = field(default_factory=list)
    remade: list[Remade] = field(default_factory=list)


def write(
    num_blocks: int, regions: Sequence[Region], cores: Sequence[int], remade: Sequence[Remade]
) -> str:
    """Return the text of a plan of these parts."""
    kinds = dict.fromkeys(cores, "selective {}")
    kinds.update((r.block, _kind(r)) for r in remade)
    return " | ".join(_parts(regions, 0, num_blocks - 1, kinds))


def read(text: str) -> Read:
    """Return what ``text`` says.

    Raises:
        ValueError: If it is not a plan.
    """
    return _Parser(text).plan()


def _kind(remade: Remade) -> str:
    words = []
    graph = f"#{remade.graph} " if remade.graph else ""
    if remade.dropped:
        words.append(f"remake {{}} {graph}{_values(remade.dropped)}")
    if remade.offloaded:
        where = "" if words else f"{{}} {graph}"
        words.append(f"offload {where}{_values(remade.offloaded)}")
    return " ".join(words)


def _values(values: Sequence[int]) -> str:
    return f"[{' '.join(map(str, values))}]"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"


def _parts(
    regions: Sequence[Region], first: int, last: int, kinds: Mapping[int, str]
) -> Iterator[str]:
    position, index = first, 0
    while position <= last:
        if index == len(regions) or regions[index].first > position:
            stop = last if index == len(regions) else regions[index].first - 1
            kind = kinds.get(position, _KEEP)
            for block in range(position, stop + 1):
                if kinds.get(block, _KEEP) != kind:
                    stop = block - 1
                    break
            yield kind.format(_span(position, stop))
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
            text += f" ({' | '.join(_parts(region.inner, region.first, region.last, {}))})"
        yield text
        position, index = region.last + 1, index + 1


class _Parser:
    _TOKEN = re.compile(
        r"\s*(?:(?P<number>\d+)|(?P<word>[a-z]+)|(?P<sign>[][|()-])|(?P<graph>#\w+))"
    )

    def __init__(self, text: str) -> None:
        self.text = text
        self.found = Read()
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

    def number(self, what: str = "block") -> int:
        token = self.take()
        if not token.isdigit():
            raise self.error(f"expected a {what} number, found {token}")
        if len(token) > _DIGITS:
            raise self.error(f"no model has a {what} {token}")
        return int(token)

    def values(self) -> tuple[int, ...]:
        self.take("[")
        values = [self.number("value")]
        while self.peek() != "]":
            values.append(self.number("value"))
        self.take()
        return tuple(values)

    def plan(self) -> Read:
        self.found.regions, self.found.last = self.parts(*_VERBS)
        if self.tokens:
            raise self.error(f"unexpected {self.peek()}")
        return self.found

    def letting_go(self, verb: str, first: int, last: int) -> None:
        """Read which values blocks ``first`` to ``last`` let go, the verb and they being read."""
        graph = self.take()[1:] if self.peek().startswith("#") else ""
        values = self.values()
        dropped, offloaded = (values, ()) if verb == "remake" else ((), values)
        if verb == "remake" and self.peek() == "offload":
            self.take()
            offloaded = self.values()
        self.found.remade.extend(
            Remade(b, dropped, offloaded, graph) for b in range(first, last + 1)
        )

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
                self.found.cores.extend(range(first, stop + 1))
            elif verb in ("remake", "offload"):
                self.letting_go(verb, first, stop)
            if self.peek() != "|":
                return tuple(regions), last
            self.take()
