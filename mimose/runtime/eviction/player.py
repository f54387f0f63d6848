"""Replay a log of operators under a budget, with a simulated clock and simulated memory.

The logs are those of DTR's prototype (github.com/uwsampl/dtr-prototype): a JSON object a line, of
which ``INSTRUCTION`` is one of

* ``CONSTANT`` with ``NAME``, and a ``MEMORY`` line: a parameter or input, which stays.
* ``CALL`` with ``NAME``, ``ARGS``, ``RESULT`` and ``TIME``, and for each result a ``MEMORY`` and an
  ``ALIAS`` line: an operator. An alias of -1 has storage of its own; k is a view of argument k.
* ``MUTATE`` with ``NAME``, ``ARGS``, ``MUTATE`` and ``TIME``: a call whose results, of the same
  size, take the names of the arguments at these places.
* ``COPY`` and ``COPY_FROM`` with ``DST`` and ``SRC``: one more name for a tensor; the second takes
  the name away from what had it.
* ``RELEASE`` with ``NAME``, and ``ANNOTATE``: everything before the annotation ``START`` is left
  out.

Views are operators here, with a cost of their own. At the end every tensor that still has a name is
brought back, if need be, and stays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from mimose.runtime.eviction.engine import Engine, NoRoom, Policy, Stats, Thrashing
from mimose.runtime.eviction.graph import Operator, Storage, Tensor


@dataclass(frozen=True, slots=True)
class Constant:
    """A parameter or input."""

    name: str
    size: int


@dataclass(frozen=True, slots=True)
class Call:
    """An operator; ``aliases`` has the place of the argument that a result is a view of, or -1.

    With ``replaces``, its results take the names of the arguments at these places.
    """

    name: str
    arguments: tuple[str, ...]
    results: tuple[str, ...]
    sizes: tuple[int, ...]
    aliases: tuple[int, ...]
    cost: float
    replaces: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Another name for a tensor, taken away from what had it if ``anew`` is false."""

    name: str
    source: str
    anew: bool


@dataclass(frozen=True, slots=True)
class Release:
    """A name less."""

    name: str


Instruction = Constant | Call | Copy | Release


def parse(lines: Iterable[str]) -> list[Instruction]:
    """Return the instructions of a log.

    Raises:
        ValueError: If a line cannot be understood, with its number.
    """
    entries = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    records = _records(entries)
    found: list[Instruction] = []
    for number, record in records:
        try:
            instruction = _instruction(record, records)
        except (KeyError, TypeError, ValueError, StopIteration) as error:
            raise ValueError(
                f"line {number} of this operator log cannot be understood ({error!r}): "
                "a log has one JSON object a line, as DTR's prototype writes them"
            ) from None
        if record.get("ANNOTATION") == "START":
            found.clear()
        elif instruction is not None:
            found.append(instruction)
    return found


def _records(entries: list[tuple[int, str]]) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in entries:
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise ValueError(f"line {number} of this operator log is no JSON object")
        yield number, record


def _instruction(
    record: dict[str, Any], following: Iterator[tuple[int, dict[str, Any]]]
) -> Instruction | None:
    """Return what a record says, with the records that belong to it; None for an annotation."""

    def belonging(kind: str, name: str) -> dict[str, Any]:
        _, other = next(following)
        if other["INSTRUCTION"] != kind or other["NAME"] != name:
            raise ValueError(f"{kind} of {name} does not follow")
        return other

    kind = record["INSTRUCTION"]
    if kind == "CONSTANT":
        name = record["NAME"]
        return Constant(name, int(belonging("MEMORY", name)["MEMORY"]))
    if kind == "CALL":
        sizes, aliases = [], []
        for name in record["RESULT"]:
            size = int(belonging("MEMORY", name)["MEMORY"])
            alias = int(belonging("ALIAS", name)["ALIAS"])
            sizes.append(size if alias < 0 else 0)
            aliases.append(alias)
        return Call(
            record["NAME"],
            tuple(record["ARGS"]),
            tuple(record["RESULT"]),
            tuple(sizes),
            tuple(aliases),
            float(record["TIME"]),
        )
    if kind == "MUTATE":
        arguments = tuple(record["ARGS"])
        places = tuple(int(place) for place in record["MUTATE"])
        return Call(
            record["NAME"],
            arguments,
            tuple(arguments[place] for place in places),
            (),
            (-1,) * len(places),
            float(record["TIME"]),
            places,
        )
    if kind in ("COPY", "COPY_FROM"):
        return Copy(record["DST"], record["SRC"], kind == "COPY")
    if kind == "RELEASE":
        return Release(record["NAME"])
    if kind == "ANNOTATE":
        return None
    raise ValueError(f"no instruction is called {kind}")


def unit_chain(n: int) -> list[Instruction]:
    """Return a chain of ``n`` operators with its backward, each of cost and size 1."""

    def call(name: str, *arguments: str) -> Call:
        return Call(name, arguments, (name,), (1,), (-1,), 1)

    log: list[Instruction] = [call("f0")]
    log += [call(f"f{k}", f"f{k - 1}") for k in range(1, n)]
    log += [Release(f"f{n - 1}"), call(f"b{n - 1}")]
    for k in range(n - 2, -1, -1):
        arguments = (f"f{k - 1}", f"b{k + 1}") if k else ("b1",)
        log += [Release(f"f{k}"), call(f"b{k}", *arguments), Release(f"b{k + 1}")]
    return log


class Machine:
    """A backend without data: a clock and a count of bytes.

    Attributes:
        clock: Summed cost of everything that ran, from 1 on.
        used: Bytes held.
        peak: Most bytes held; what a second run makes twice counts until it ends.
        evictions: Clock and storage number of each eviction.
    """

    def __init__(self) -> None:
        self.clock: float = 1
        self.used = 0
        self.peak = 0
        self.evictions: list[tuple[float, int]] = []

    def now(self) -> float:
        """Return the clock."""
        return self.clock

    def usage(self) -> int:
        """Return the bytes held."""
        return self.used

    def run(self, cost: float, size: int) -> None:
        """Run something of a cost that makes some bytes."""
        self.clock += cost
        self.used += size
        self.peak = max(self.peak, self.used)

    def rerun(self, operator: Operator) -> None:
        """Run an operator again, and free what there was already."""
        self.run(operator.cost, operator.size)
        for output in operator.outputs:
            # The first tensor of a storage is the one whose operator made its bytes.
            if output.defined and output.storage.tensors[0] is output:
                self.used -= output.storage.size

    def drop(self, storage: Storage) -> None:
        """Free a storage."""
        self.used -= storage.size if storage.resident else 0
        self.evictions.append((self.clock, storage.number))

    def swap_out(self, storage: Storage) -> None:
        """Free a storage, whose data is on the host from now on."""
        self.used -= storage.size

    def swap_in(self, storage: Storage) -> None:
        """Hold a storage again."""
        self.used += storage.size
        self.peak = max(self.peak, self.used)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a replay came to; if it failed, at that moment.

    Attributes:
        status: ``ok``, ``OOM`` or ``thrashing``.
        clock: Cost of everything that ran.
        peak: Most bytes held.
        evictions: Clock, which starts at 1, and storage number of each eviction.
        stats: The engine's counts.
    """

    status: str
    clock: float
    peak: int
    evictions: list[tuple[float, int]]
    stats: Stats


def play(
    log: Iterable[Instruction],
    policy: Policy,
    budget: int | None,
    *,
    eager: bool = True,
    ignore_small: bool = False,
    thrash_limit: float | None = None,
) -> Outcome:
    """Replay a log under a budget; see :class:`~mimose.runtime.eviction.engine.Engine`.

    Raises:
        ValueError: If the log uses a name that it did not define.
    """
    machine = Machine()
    engine = Engine(
        machine,
        policy,
        budget,
        eager=eager,
        ignore_small=ignore_small,
        thrash_limit=thrash_limit,
    )
    status = "ok"
    try:
        _play(log, engine, machine)
    except NoRoom:
        status = "OOM"
    except Thrashing:
        status = "thrashing"
    return Outcome(
        status=status,
        clock=machine.clock - 1,
        peak=machine.peak,
        evictions=machine.evictions,
        stats=engine.stats,
    )


def _play(log: Iterable[Instruction], engine: Engine, machine: Machine) -> None:
    names: dict[str, Tensor] = {}
    held: dict[Tensor, int] = {}

    def find(name: str) -> Tensor:
        if name not in names:
            raise ValueError(f"this operator log uses {name} before it defines it")
        return names[name]

    def let_go(name: str) -> None:
        tensor = find(name)
        if not held[tensor]:
            raise ValueError(f"this operator log releases {name} more often than it is named")
        held[tensor] -= 1
        engine.release(tensor)

    def call(instruction: Call) -> None:
        arguments = [find(name) for name in instruction.arguments]
        sizes = instruction.sizes
        if instruction.replaces:
            sizes = tuple(arguments[place].storage.size for place in instruction.replaces)
        outputs = [
            (size, None if alias < 0 else arguments[alias])
            for size, alias in zip(sizes, instruction.aliases)
        ]
        operator = engine.announce(arguments, outputs, instruction.cost, instruction.name)
        engine.request(operator.parents)
        engine.make_room(operator.size)
        machine.run(operator.cost, operator.size)
        engine.finish(operator)
        for place in instruction.replaces:
            let_go(instruction.arguments[place])
        for name, output in zip(instruction.results, operator.outputs):
            names[name] = output
            held[output] = 1

    for instruction in log:
        match instruction:
            case Constant(name, size):
                engine.make_room(size)
                machine.run(0, size)
                names[name] = engine.constant(size)
                held[names[name]] = 1
            case Call():
                call(instruction)
            case Copy(name, source, anew):
                if not anew:
                    let_go(name)
                names[name] = find(source)
                held[names[name]] += 1
                engine.retain(names[name])
            case Release(name):
                let_go(name)
    for name in list(names):
        if held[names[name]]:
            engine.fetch([names[name]], pin=True)
