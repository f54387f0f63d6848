"""The graph that Checkmate solves for a model's blocks, and schedules as its tables.

A block is four nodes: **F** runs it, **A** is what it keeps for backward, **O** its output, and
**B** its backward. A and O are parts of what F gives, so that keeping an output, keeping
everything and keeping nothing are different choices. Between forward and backward comes **H**, all
that follows the last block. Levels are those of :func:`mimose.costs.predict_peak`, so that what
the solver counts and what the peak model says of its schedule are the same.

===========  =====================================================  ===========================
node         reads                                                  costs
===========  =====================================================  ===========================
F of i       O of i - 1                                             a run that stops early
A of i       O of i - 1 (still there while F runs)                  nothing
O of i                                                              what a run to the end adds
H            O of the last block                                    the step outside blocks
B of i       O of i - 1, A of i                                     its backward
===========  =====================================================  ===========================

Stages are the blocks in forward order, H, and the blocks in backward order; F, A and O of a block
share its forward stage, in which A is optional.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from itertools import accumulate
from typing import NamedTuple

from mimose.costs import Profile, held_meanwhile
from mimose.schedule import Instruction, Moment, Schedule
from mimose.solvers.graph import Graph, Table


class Block(NamedTuple):
    """Numbers of a block's nodes."""

    run: int
    saved: int
    output: int
    backward: int


def nodes(num_blocks: int) -> list[Block]:
    """Return the numbers of each block's nodes; H is ``3 * num_blocks``."""
    last = 4 * num_blocks
    return [Block(3 * i, 3 * i + 1, 3 * i + 2, last - i) for i in range(num_blocks)]


def block_graph(
    profile: Profile,
    grown: Sequence[int] | None = None,
    *,
    cuts: Collection[int] = (),
    fixed: Collection[int] = (),
) -> Graph:
    """Return the graph of a step.

    Args:
        profile: What the step costs, times included.
        grown: Gradients that may exist in each block's backward and at the head, as
            :func:`mimose.costs.grown_gradients` gives them; None if they are resident.
        cuts: Numbers ``c`` such that the output of block ``c - 1`` is held by something else, too,
            and so stays.
        fixed: Blocks that run once.
    """
    count = profile.num_blocks
    grown = (0,) * (count + 1) if grown is None else grown
    before = list(accumulate(profile.output, initial=0))
    blocks = nodes(count)
    head, total = 3 * count, 4 * count + 1
    cost, memory, stage, names = [0.0] * total, [0] * total, [0] * total, [""] * total
    edges: list[tuple[int, int]] = []
    # The level of each block's run above what the graph counts as held.
    running, saving, idle = [0] * total, [0] * total, [0] * total
    for i, block in enumerate(blocks):
        early = min(profile.recompute_seconds[i], profile.forward_seconds[i])
        cost[block.run] = early
        cost[block.output] = profile.forward_seconds[i] - early
        cost[block.backward] = profile.backward_seconds[i]
        memory[block.saved] = profile.activation[i]
        memory[block.output] = profile.output[i]
        for node, letter in zip(block, "FAOB"):
            stage[node] = 2 * count - i if letter == "B" else i
            names[node] = f"{letter}{i}"
        beside = profile.level[i] - before[i]
        running[block.run] = beside + profile.checkpoint_peak[i]
        saving[block.saved] = beside + profile.kept_peak[i] - profile.activation[i]
        idle[block.output] = beside
        edges.append((block.saved, block.backward))
        if i:
            read = blocks[i - 1].output
            edges += [(read, block.run), (read, block.saved), (read, block.backward)]
    cost[head], stage[head], names[head] = profile.outside_seconds, count, "H"
    edges.append((blocks[-1].output, head))
    forward = [r + s + o for r, s, o in zip(running, saving, idle)]
    overhead = [forward] * count
    at_head = list(forward)
    at_head[head] = profile.head_peak + grown[count] - before[count]
    overhead.append(at_head)
    for i in reversed(range(count)):
        beside = held_meanwhile(profile, grown, i)
        row = [level + beside for level in forward]
        # Running a block for its own backward is part of that, whose peak was measured with it.
        row[blocks[i].run] = row[blocks[i].saved] = row[blocks[i].output] = 0
        own = profile.backward_peak[i] + grown[i] - before[i] - profile.activation[i]
        row[blocks[i].backward] = own
        overhead.append(row)
    return Graph(
        cost=tuple(cost),
        memory=tuple(memory),
        edges=tuple(edges),
        stage=tuple(stage),
        overhead=tuple(tuple(max(0, x) for x in row) for row in overhead),
        optional=frozenset(block.saved for block in blocks),
        once=frozenset(blocks[i].run for i in fixed),
        pinned=frozenset(blocks[c - 1].output for c in cuts),
        parts=tuple((b.run, part) for b in blocks for part in (b.saved, b.output)),
        backward=frozenset(block.backward for block in blocks),
        names=tuple(names),
    )


def to_schedule(computed: Table) -> Schedule:
    """Return the schedule that a table of a block graph's computed nodes spells.

    What is held follows from the order of runs and backwards.
    """
    count = len(computed) // 2
    blocks = nodes(count)
    found = []
    for t, row in enumerate(computed):
        found += [Instruction(i) for i in range(count) if row[blocks[i].run]]
        if t > count:
            found.append(Instruction(2 * count - t, backward=True))
    return Schedule(count, tuple(found))


def postponed(schedule: Schedule, *, past_readers: bool = False) -> Schedule:
    """Return the schedule with every rerun moved to just before what first needs it.

    Where a solver is indifferent it may run a block long before that. What the block itself reads
    may be gone later, though: then it stays where it is.

    Args:
        schedule: The schedule.
        past_readers: Whether what reads the output may read that of an earlier run instead, which
            then is held for longer.
    """
    instructions = list(schedule.instructions)
    seen: set[int] = set()
    again = []
    for place, (block, backward) in enumerate(instructions):
        if not backward and block in seen:
            again.append(place)
        seen.add(block)
    for place in reversed(again):
        block = instructions[place].block
        needed = (block,) if past_readers else (block, block + 1)
        end = next(
            n for n in range(place + 1, len(instructions)) if instructions[n].block in needed
        )
        moved = [*instructions[:place], *instructions[place + 1 : end]]
        moved += [instructions[place], *instructions[end:]]
        with contextlib.suppress(ValueError):
            Schedule(schedule.num_blocks, tuple(moved))
            instructions = moved
    return Schedule(schedule.num_blocks, tuple(instructions))


def to_tables(graph: Graph, schedule: Schedule) -> tuple[list[list[bool]], list[list[bool]]]:
    """Return the tables, computed and kept, of a block graph that a schedule comes to."""
    count = schedule.num_blocks
    blocks = nodes(count)
    computed = [[False] * len(graph) for _ in range(graph.num_stages)]
    kept = [[False] * len(graph) for _ in range(graph.num_stages)]
    computed[count][3 * count] = kept[count][blocks[-1].output] = True
    useful = graph.useful()
    stage = -1
    for moment in schedule.moments():
        now = _stage(moment, count)
        for t in range(stage + 1, now + 1):
            for b in moment.saved:
                kept[t][blocks[b].saved] |= useful[t][blocks[b].saved]
            for b in moment.outputs:
                kept[t][blocks[b].output] |= useful[t][blocks[b].output]
        stage = max(stage, now)
        block = blocks[moment.block]
        row = computed[now]
        if moment.backward:
            row[block.backward] = True
            continue
        row[block.run] = True
        row[block.saved] = row[block.saved] or moment.saves
        row[block.output] = moment.first or not moment.leaf
    for i in graph.pinned:
        for t in range(graph.stage[i] + 1, graph.num_stages):
            kept[t][i] = useful[t][i]
    return computed, kept


def _stage(moment: Moment, count: int) -> int:
    """Return the stage of the graph in which a moment falls."""
    if moment.first:
        return moment.block
    return moment.block if moment.stage is None else 2 * count - moment.stage
