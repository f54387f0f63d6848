"""A computation graph, and what a schedule over its stages holds and costs.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020. Time is cut into *stages*. Stage ``t`` computes its own nodes, which no earlier stage may
compute (the frontier), and may compute earlier nodes again, always in topological order. A schedule
is two tables of truth values, a row a stage and a column a node: ``computed`` (the paper's R) and
``kept`` (S: held from the stage before).

:func:`simulate` follows a schedule step by step and knows nothing of any solver, so that it can
judge what a solver returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Table = Sequence[Sequence[bool]]
"""A row a stage, a column a node."""


@dataclass(frozen=True, slots=True)
class Graph:
    """Nodes in topological order, with what they cost and what they hold.

    The first three fields are the paper's graph; the neutral defaults of the others add nothing.

    Attributes:
        cost: Cost of computing each node once.
        memory: Bytes of each node's result while it is held.
        edges: Pairs ``(i, k)``: node ``k`` reads the result of node ``i``.
        stage: The stage of each node, never falling; by default every node has its own.
        overhead: Bytes alive besides held results while a node is computed, a row a stage and a
            column a node; none by default. What a stage needs throughout belongs to all its nodes.
        optional: Nodes that need not be computed in their own stage.
        once: Nodes that are computed in their own stage or never.
        pinned: Nodes held, once computed, for as long as anything may still need them.
        parts: Pairs ``(a, o)``: ``o`` is a part of what computing ``a`` gives. A stage computes it
            only together with ``a``, and computing ``a`` anew replaces it, unless it is pinned.
        backward: Nodes of the backward pass.
        names: A readable name for each node, for printing.
    """

    cost: tuple[float, ...]
    memory: tuple[int, ...]
    edges: tuple[tuple[int, int], ...]
    stage: tuple[int, ...] = ()
    overhead: tuple[tuple[int, ...], ...] = ()
    optional: frozenset[int] = frozenset()
    once: frozenset[int] = frozenset()
    pinned: frozenset[int] = frozenset()
    parts: tuple[tuple[int, int], ...] = ()
    backward: frozenset[int] = frozenset()
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        count = len(self.cost)
        if not count or len(self.memory) != count:
            raise ValueError(
                "a graph gives a cost and a memory for each node, "
                f"not {count} and {len(self.memory)}"
            )
        if min(self.cost) < 0 or min(self.memory) < 0:
            raise ValueError("costs and bytes of a graph's nodes are at least 0")
        if not all(0 <= i < k < count for i, k in (*self.edges, *self.parts)):
            raise ValueError("an edge goes from an earlier node of the graph to a later one")
        if not self.stage:
            object.__setattr__(self, "stage", tuple(range(count)))
        steps = {0, 1}
        rises = [b - a for a, b in zip(self.stage, self.stage[1:])]
        if len(self.stage) != count or self.stage[0] != 0 or not steps.issuperset(rises):
            raise ValueError("stages begin at 0 and go up by one, in the order of the nodes")
        if self.overhead and (
            len(self.overhead) != self.num_stages
            or any(len(row) != count or min(row) < 0 for row in self.overhead)
        ):
            raise ValueError(f"overhead has {self.num_stages} rows of {count} bytes, none negative")

    def __len__(self) -> int:
        return len(self.cost)

    @property
    def num_stages(self) -> int:
        """Number of stages."""
        return self.stage[-1] + 1

    @property
    def forward_stages(self) -> int:
        """Number of stages before the first one that has a backward node."""
        return min((self.stage[i] for i in self.backward), default=self.num_stages)

    @property
    def least_cost(self) -> float:
        """The cost of computing every node that must be once."""
        return float(sum(c for i, c in enumerate(self.cost) if i not in self.optional))

    def inputs(self) -> list[list[int]]:
        """Return for each node the nodes whose results it reads."""
        found: list[list[int]] = [[] for _ in self.cost]
        for i, k in self.edges:
            found[k].append(i)
        return found

    def users(self) -> list[list[int]]:
        """Return for each node the nodes that read its result, in order."""
        found: list[list[int]] = [[] for _ in self.cost]
        for i, k in sorted(self.edges):
            found[i].append(k)
        return found

    def useful(self) -> list[list[bool]]:
        """Return whether a node's result may still matter in a stage or after it.

        A row a stage, a column a node. A node matters in and before its own stage, and after it for
        as long as a node that matters reads it.
        """
        followers = self.users()
        for a, o in self.parts:
            followers[a].append(o)
        table = []
        for t in range(self.num_stages):
            row = [stage >= t for stage in self.stage]
            for i in reversed(range(len(self))):
                row[i] = row[i] or any(row[k] for k in followers[i])
            table.append(row)
        return table

    def kept_until(self) -> list[int]:
        """Return for each node the last forward stage that reads it; -1 for none."""
        last = [-1] * len(self)
        for i, k in self.edges:
            if self.stage[k] < self.forward_stages:
                last[i] = max(last[i], self.stage[k])
        return last

    def spare(self, t: int, i: int) -> int:
        """Return the overhead of node ``i`` in stage ``t``."""
        return self.overhead[t][i] if self.overhead else 0


@dataclass(frozen=True, slots=True)
class Usage:
    """What a schedule comes to.

    Attributes:
        cost: Summed cost of everything computed.
        peak: Most bytes held at any moment, overhead included.
        where: Stage and node of that moment.
        held: Bytes held at each node of each stage, after the node where it is computed; without
            overhead. The paper's U.
    """

    cost: float
    peak: int
    where: tuple[int, int]
    held: tuple[tuple[int, ...], ...]


def simulate(graph: Graph, computed: Table, kept: Table) -> Usage:
    """Follow a schedule and return what it costs and holds.

    A result is let go right after the last node of the stage that reads it, unless the next stage
    keeps it. One kept and not read stays through the stage; one kept and computed again counts
    twice.

    Args:
        graph: The graph.
        computed: The nodes that each stage computes.
        kept: The nodes whose results each stage holds from the stage before.

    Raises:
        ValueError: If the schedule cannot be carried out, with the first reason.
    """
    problem = next(iter(faults(graph, computed, kept)), None)
    if problem:
        raise ValueError(f"the schedule cannot be carried out: {problem}")
    inputs, users = graph.inputs(), graph.users()
    stages, count = graph.num_stages, len(graph)
    cost, peak, where = 0.0, -1, (0, 0)
    table = []
    for t in range(stages):
        after = kept[t + 1] if t + 1 < stages else (False,) * count
        now = sum(graph.memory[i] for i in range(count) if kept[t][i])
        row = []
        for k in range(count):
            if computed[t][k]:
                now += graph.memory[k]
                cost += graph.cost[k]
            level = now + (graph.spare(t, k) if computed[t][k] else 0)
            if level > peak:
                peak, where = level, (t, k)
            row.append(now)
            if computed[t][k]:
                now -= sum(
                    graph.memory[i]
                    for i in inputs[k]
                    if not after[i] and not any(computed[t][j] for j in users[i] if j > k)
                )
        table.append(tuple(row))
    return Usage(cost, peak, where, tuple(table))


def faults(graph: Graph, computed: Table, kept: Table) -> list[str]:
    """Return everything that makes a schedule impossible to carry out, a sentence each."""
    stages, count = graph.num_stages, len(graph)
    if [len(row) for row in (*computed, *kept)] != [count] * (2 * stages):
        return [f"it has no {stages} rows of {count} nodes in both tables"]
    useful = graph.useful()
    found = []
    for t in range(stages):
        for i, stage in enumerate(graph.stage):
            if computed[t][i] and stage > t:
                found.append(f"stage {t} computes node {i}, which comes later")
            if stage == t and not computed[t][i] and i not in graph.optional:
                found.append(f"stage {t} does not compute its node {i}")
            if stage < t and computed[t][i] and i in graph.once:
                found.append(f"stage {t} computes node {i} again, which runs once")
            held = t > 0 and (computed[t - 1][i] or kept[t - 1][i])
            if kept[t][i] and not held:
                found.append(f"stage {t} keeps node {i}, which is not there")
            if i in graph.pinned and held and not kept[t][i] and useful[t][i]:
                found.append(f"stage {t} lets node {i} go, which stays")
        for i, k in graph.edges:
            if computed[t][k] and not (computed[t][i] or kept[t][i]):
                found.append(f"stage {t} computes node {k} without its input {i}")
        for a, o in graph.parts:
            if computed[t][o] and not computed[t][a]:
                found.append(f"stage {t} computes node {o} without node {a}")
            if computed[t][a] and kept[t][o] and o not in graph.pinned:
                found.append(f"stage {t} computes node {a} and keeps an older node {o}")
    return found


def keep_everything(graph: Graph) -> tuple[list[list[bool]], list[list[bool]]]:
    """Return the schedule that computes every node once and holds it until its last use."""
    useful, users = graph.useful(), graph.users()
    until = [max((graph.stage[k] for k in ks), default=-1) for ks in users]
    stages = range(graph.num_stages)
    computed = [[stage == t for stage in graph.stage] for t in stages]
    kept = [
        [
            stage < t and (t <= until[i] or (i in graph.pinned and useful[t][i]))
            for i, stage in enumerate(graph.stage)
        ]
        for t in stages
    ]
    return computed, kept
