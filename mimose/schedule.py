"""An explicit schedule of one iteration: the order in which blocks run and go backward.

A :class:`mimose.plan.Plan` is a tree, and so keeps whatever it keeps from a block's run until the
block's backward. Checkmate's schedules (Jain et al., MLSys 2020) may hold a value for a while, let
it go and compute it once more. The order of runs and backwards says all there is to say: a run
keeps everything for backward if no other run of the block comes before its backward, and an output
stays for as long as something before its next run reads it.

The text form has one word an instruction: ``f0`` runs block 0 and keeps nothing for backward,
``F2`` runs block 2 and keeps everything, ``B2`` is its backward: ``f0 f1 F2 B2 f0 F1 B1 F0 B0``.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mimose.eviction import Eviction
from mimose.plan import Plan, Region


class Instruction(NamedTuple):
    """Run a block, or go backward through it."""

    block: int
    backward: bool = False


class Moment(NamedTuple):
    """One instruction and what is held around it.

    Attributes:
        block: Its block.
        backward: Whether it goes backward; otherwise it runs the block.
        first: Whether it is the block's first run, the one that the model itself asks for.
        saves: Whether it is a run that keeps everything for backward.
        leaf: Whether nothing reads the run's output, so that a rerun may stop early.
        stage: The block whose backward comes next or is being done; None in the forward pass.
        outputs: Blocks whose outputs are held just before it.
        saved: Blocks whose activations are held just before it.
    """

    block: int
    backward: bool
    first: bool
    saves: bool
    leaf: bool
    stage: int | None
    outputs: frozenset[int]
    saved: frozenset[int]

    def idle(self, cuts: Container[int] = ()) -> bool:
        """Whether it is a run that nothing needs, which is left out.

        Args:
            cuts: Blocks whose input is kept as the model gave it (see
                :class:`mimose.records.ModelInfo`), so that they read no other block's output.
        """
        needed = self.backward or self.first or self.saves
        return not needed and self.ends_early(cuts)

    def ends_early(self, cuts: Container[int] = ()) -> bool:
        """Whether nothing reads the run's output; ``cuts`` as in :meth:`idle`."""
        return self.leaf or (not self.backward and self.block + 1 in cuts)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The instructions of one iteration.

    Attributes:
        num_blocks: Number of blocks that it covers.
        instructions: What is done, in order.

    Raises:
        ValueError: If the instructions cannot be carried out: blocks first run in order, all of
            them before the first backward, and backwards come last block first.
    """

    num_blocks: int
    instructions: tuple[Instruction, ...]

    def __post_init__(self) -> None:
        if self.num_blocks < 1:
            raise ValueError(f"a schedule covers at least one block, not {self.num_blocks}")
        for _ in self.moments():
            pass

    @classmethod
    def from_plan(cls, plan: Plan) -> Schedule:
        """Return what carrying out a tree comes to."""
        return cls(plan.num_blocks, tuple(_of_plan(plan)))

    def to_plan(self) -> Plan | None:
        """Return the tree that comes to the same, or None if there is none."""
        try:
            regions = tuple(_Tree(self.instructions).regions(0, self.num_blocks - 1, 0))
            plan = Plan(self.num_blocks, regions)
        except _NoTreeError:
            return None
        return plan if tuple(_of_plan(plan)) == self.instructions else None

    @property
    def recomputed(self) -> frozenset[int]:
        """The blocks that run more than once."""
        seen: set[int] = set()
        again: set[int] = set()
        for block, backward in self.instructions:
            if not backward:
                (again if block in seen else seen).add(block)
        return frozenset(again)

    @property
    def num_recomputed(self) -> int:
        """How many blocks run more than once."""
        return len(self.recomputed)

    def moments(self) -> Iterator[Moment]:
        """Yield each instruction with what is held just before it.

        Raises:
            ValueError: If the instructions cannot be carried out.
        """
        ends, saving = _ends(self.instructions)
        outputs: dict[int, int] = {}  # Block -> the instruction after which its output goes.
        saved: set[int] = set()
        run: set[int] = set()
        stage = self.num_blocks
        for place, (block, backward) in enumerate(self.instructions):
            outputs = {b: end for b, end in outputs.items() if end >= place}
            first = not backward and block not in run
            self._check(place, len(run), stage)
            forward = len(run) < self.num_blocks or (first and block == self.num_blocks - 1)
            moment = Moment(
                block,
                backward,
                first,
                not backward and saving[place],
                not backward and ends[place] <= place,
                None if forward else stage - 1,
                frozenset(outputs),
                frozenset(saved),
            )
            yield moment
            if backward:
                saved.discard(block)
                stage = block
                continue
            run.add(block)
            if moment.saves:
                saved.add(block)
            outputs[block] = ends[place]
        if stage != 0:
            raise ValueError(f"the schedule {self} ends before the backward of block 0")

    def _check(self, place: int, num_run: int, stage: int) -> None:
        block, backward = self.instructions[place]
        if backward:
            if num_run == self.num_blocks and block == stage - 1:
                return
            problem = "backward goes through all blocks, last first, once all have run"
        elif not 0 <= block < self.num_blocks or block > num_run:
            problem = f"block {block} does not come yet"
        elif block >= stage:
            problem = f"the backward of block {block} is over"
        else:
            return
        raise ValueError(f"instruction {place} of the schedule {self} cannot be: {problem}")

    def to_json(self) -> dict[str, Any]:
        """Return the schedule as plain data."""
        return {"num_blocks": self.num_blocks, "schedule": str(self)}

    @classmethod
    def from_json(cls, data: Any) -> Schedule:
        """Return the schedule that :meth:`to_json` wrote.

        Raises:
            ValueError: If ``data`` is not such a schedule.
        """
        try:
            return cls(int(data["num_blocks"]), cls.parse(data["schedule"]).instructions)
        except (KeyError, TypeError) as error:
            raise ValueError(
                'a schedule in JSON is {"num_blocks": N, "schedule": "F0 B0"}'
            ) from error

    def __str__(self) -> str:
        _, saving = _ends(self.instructions)
        return " ".join(
            f"{'B' if backward else 'F' if saves else 'f'}{block}"
            for (block, backward), saves in zip(self.instructions, saving)
        )

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Return the schedule that ``text`` spells, for example ``f0 F1 B1 F0 B0``.

        Raises:
            ValueError: If ``text`` is not a schedule that can be carried out.
        """
        words = str(text).split()
        if not words or not all(_WORD.fullmatch(word) for word in words):
            raise ValueError(f"{text!r} is not a schedule: one looks like 'f0 F1 B1 F0 B0'")
        found = tuple(Instruction(int(word[1:]), word[0] == "B") for word in words)
        schedule = cls(1 + max(i.block for i in found), found)
        if str(schedule) != " ".join(words):
            raise ValueError(
                f"the schedule {text!r} keeps what it never uses or uses what it does not keep: "
                f"it comes to '{schedule}'"
            )
        return schedule


BlockPlan = Plan | Schedule
"""What says beforehand which blocks are recomputed."""

AnyPlan = BlockPlan | Eviction
"""What a planner may decide on."""

_WORD = re.compile(r"[fFB]\d{1,6}")


def plan_from_json(data: Any) -> AnyPlan:
    """Return the plan, schedule or eviction that its ``to_json`` wrote.

    Raises:
        ValueError: If ``data`` is none of them.
    """
    if isinstance(data, dict) and "eviction" in data:
        return Eviction.from_json(data)
    return block_plan_from_json(data)


def block_plan_from_json(data: Any) -> BlockPlan:
    """Return the plan or schedule that its ``to_json`` wrote.

    Raises:
        ValueError: If ``data`` is neither.
    """
    if isinstance(data, dict) and "schedule" in data:
        return Schedule.from_json(data)
    return Plan.from_json(data)


def _ends(instructions: Sequence[Instruction]) -> tuple[list[int], list[bool]]:
    """Return for each run the last instruction that reads its output, and whether it saves.

    What the model itself makes of the last block's output is over before any backward here.
    """
    ends = list(range(len(instructions)))
    saving = [False] * len(instructions)
    latest: dict[int, int] = {}
    for place, (block, backward) in enumerate(instructions):
        before = latest.get(block - 1)
        if before is not None:
            ends[before] = place  # A run and a backward both read their input.
        if backward:
            own = latest.get(block)
            if own is not None:
                saving[own] = True
        else:
            latest[block] = place
    return ends, saving


def _of_plan(plan: Plan) -> Iterator[Instruction]:
    items = _items(plan.regions, 0, plan.num_blocks - 1)
    yield from (Instruction(b) for b in range(plan.num_blocks))
    yield from _backward(items)


def _items(regions: Sequence[Region], first: int, last: int) -> list[Region]:
    """Return blocks ``first..last`` as regions and kept blocks, which are regions of no length."""
    items: list[Region] = []
    position = first
    for region in regions:
        items.extend(_Kept(b, b) for b in range(position, region.first))
        items.append(region)
        position = region.last + 1
    items.extend(_Kept(b, b) for b in range(position, last + 1))
    return items


class _Kept(Region):
    """A kept block in a list of regions."""

    __slots__ = ()


def _backward(items: Sequence[Region]) -> Iterator[Instruction]:
    for item in reversed(items):
        if isinstance(item, _Kept):
            yield Instruction(item.first, True)
        elif item.first == item.last:
            yield Instruction(item.first)
            yield Instruction(item.first, True)
        else:
            yield from _again(item)


def _again(region: Region) -> Iterator[Instruction]:
    """Recompute a region and go back through it; its last item runs once only."""
    inner = _items(region.inner, region.first, region.last)
    for item in inner[:-1]:
        yield from (Instruction(b) for b in range(item.first, item.last + 1))
    last = inner[-1]
    if isinstance(last, _Kept):
        yield Instruction(last.first)
    yield from _backward(inner)


class _NoTreeError(Exception):
    """The instructions are not those of a tree."""


class _Tree:
    """Reads the tree off instructions, trusting them; the caller compares what comes of it."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._all = instructions
        _, self._saving = _ends(instructions)
        self._backward = {i.block: n for n, i in enumerate(instructions) if i.backward}

    def regions(self, first: int, last: int, start: int) -> Iterable[Region]:
        """Yield the regions among blocks ``first..last``, which run from ``start`` on."""
        runs: dict[int, int] = {}
        for place in range(start, len(self._all)):
            block, backward = self._all[place]
            if backward or block in runs:
                break
            runs[block] = place
        end = last
        found: list[Region] = []
        while end >= first:
            ran = runs.get(end)
            if ran is not None and self._saving[ran]:
                end -= 1
                continue
            # A region that ends here: its recomputation begins after the backward of what follows.
            after = self._backward.get(end + 1, -1)
            place = self._next_run(after, start) if end < last else self._tail(end, start, runs)
            begin = self._all[place].block
            if not first <= begin <= end or self._all[place].backward:
                raise _NoTreeError
            if (begin, end) == (first, last) and start:
                raise _NoTreeError
            inner = () if begin == end else tuple(self.regions(begin, end, place))
            found.append(Region(begin, end, inner))
            end = begin - 1
        return reversed(found)

    def _next_run(self, after: int, start: int) -> int:
        place = max(after + 1, start)
        if place >= len(self._all):
            raise _NoTreeError
        return place

    def _tail(self, end: int, start: int, runs: dict[int, int]) -> int:
        """Return where the last item begins: after all that ran before it."""
        if start == 0:
            return self._next_run(max(runs.values(), default=-1), start)
        return self._next_run(max(runs.values(), default=start - 1), start)
