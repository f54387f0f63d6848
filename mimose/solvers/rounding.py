"""Checkmate's two-phase rounding: a schedule from the linear relaxation.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020, section 5: solve the problem with fractions allowed and a budget somewhat smaller than the
real one, round what is held from stage to stage (S) at a threshold, and compute whatever that then
lacks (R). The result computes the right things, but nothing keeps it within the budget. So it is
simulated, several thresholds are tried, and only a schedule that fits is ever returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Literal

from mimose.solvers import checkmate
from mimose.solvers.graph import Graph, Usage, simulate

THRESHOLDS = tuple(i / 10 for i in range(1, 10))
ALLOWANCES = (0.2, 0.1, 0.0)
"""Shares of the budget held back from the relaxation; the paper's is 0.1."""

_HELD = 3

Form = Literal["tight", "paper"]
Tables = tuple[tuple[tuple[bool, ...], ...], tuple[tuple[bool, ...], ...]]
"""Nodes that each stage computes, and nodes that it holds from the stage before."""

FORMS: tuple[Form, ...] = ("tight", "paper")


@dataclass(frozen=True, slots=True)
class Rounded:
    """The cheapest rounded schedule that fits, or why there is none.

    Attributes:
        computed: The nodes that each stage computes, or None without a schedule.
        kept: The nodes whose results each stage holds from the stage before, or None.
        usage: What the schedule costs and holds; None without.
        bound: No schedule within the budget costs less; infinite if there is none.
        tried: Every schedule that was simulated, whether it fits or not.
        fitting: How many of them fit.
        least_peak: The least that any of them holds, or None.
        threshold: The threshold that gave the schedule.
        allowance: The share of the budget that its relaxation held back.
        seconds: Time taken.
    """

    computed: tuple[tuple[bool, ...], ...] | None
    kept: tuple[tuple[bool, ...], ...] | None
    usage: Usage | None
    bound: float
    tried: tuple[Tables, ...]
    fitting: int
    least_peak: int | None
    threshold: float
    allowance: float
    seconds: float

    @property
    def cost(self) -> float:
        """Cost of the schedule, infinite without one."""
        return inf if self.usage is None else self.usage.cost


def solve(
    graph: Graph,
    budget: int,
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    allowances: Sequence[float] = ALLOWANCES,
    forms: Sequence[Form] = FORMS,
    forward_again: bool = True,
    time_limit: float = 60.0,
    hold: bool = True,
) -> Rounded:
    """Return the cheapest rounded schedule of ``graph`` that fits into ``budget`` bytes.

    Args:
        graph: What to compute.
        budget: Most bytes that may be held at any moment.
        thresholds: What is held for more than such a share counts as held.
        allowances: Shares of the budget to hold back from the relaxation.
        forms: Which forms of the problem to relax, see :mod:`mimose.solvers.checkmate`.
        forward_again: Whether stages of forward nodes may compute earlier nodes again.
        time_limit: Seconds for each relaxation, and for improving on what they give.
        hold: Whether to improve on the cheapest that fit, see :func:`hold_more`.

    Raises:
        TimeoutError: If no relaxation was solved in time.
    """
    began = time.perf_counter()
    bound = graph.least_cost
    seen: dict[Tables, tuple[Usage, float, float]] = {}
    late: TimeoutError | None = None
    solved = 0
    for form, allowance in product(forms, allowances):
        try:
            relaxed = checkmate.relax(
                graph,
                (1.0 - allowance) * budget,
                tight=form == "tight",
                forward_again=forward_again,
                time_limit=time_limit,
            )
        except TimeoutError as error:
            late = error
            continue
        solved += 1
        if not allowance:
            bound = max(bound, inf if relaxed is None else relaxed.cost)
        if relaxed is None:
            continue
        for threshold in thresholds:
            tables = complete(graph, relaxed.kept, threshold, forward_again=forward_again)
            if tables not in seen:
                seen[tables] = simulate(graph, *tables), threshold, allowance
    if late is not None and not solved:
        raise late
    fitting = [t for t, (usage, _, _) in seen.items() if usage.peak <= budget]
    fitting.sort(key=lambda t: seen[t][0].cost)
    if hold:
        # Where the cheapest ends is not where the cheapest starts.
        until = time.perf_counter() + time_limit
        for tables in fitting[:_HELD]:
            better = hold_more(graph, budget, tables, forward_again=forward_again, until=until)
            seen.setdefault(better, (simulate(graph, *better), *seen[tables][1:]))
            fitting.append(better)
    best = min(fitting, key=lambda t: seen[t][0].cost, default=None)
    usage, threshold, allowance = (None, 0.0, 0.0) if best is None else seen[best]
    return Rounded(
        computed=best[0] if best else None,
        kept=best[1] if best else None,
        usage=usage,
        bound=bound,
        tried=tuple(seen),
        fitting=len(set(fitting)),
        least_peak=min((u.peak for u, _, _ in seen.values()), default=None),
        threshold=threshold,
        allowance=allowance,
        seconds=time.perf_counter() - began,
    )


@dataclass(frozen=True, slots=True)
class Ladder:
    """Rounded schedules for several budgets.

    Attributes:
        tried: The schedules, but for those than which another one is better in both.
        bounds: For each budget that was solved in time, what no schedule within it undercuts;
            infinite if there is none.
        seconds: Time taken.
    """

    tried: tuple[Tables, ...]
    bounds: Mapping[int, float]
    seconds: float


def ladder(
    graph: Graph,
    budgets: Sequence[int],
    *,
    thresholds: Sequence[float] = THRESHOLDS,
    forward_again: bool = True,
    time_limit: float = 60.0,
    progress: Callable[[int], None] | None = None,
) -> Ladder:
    """Return the rounded schedules of the tight problem for each of ``budgets``.

    What rounds to more than the budget is kept: it may fit into another one. Budgets far apart
    come first, so that those left out when time runs out are missed least.

    Args:
        graph: What to compute.
        budgets: Bytes that may be held at any moment.
        thresholds: What is held for more than such a share counts as held.
        forward_again: Whether stages of forward nodes may compute earlier nodes again.
        time_limit: Seconds for all of it.
        progress: Is told how many of the budgets are done.
    """
    began = time.perf_counter()
    until = began + time_limit
    seen: dict[Tables, Usage] = {}
    bounds: dict[int, float] = {}
    for place, index in enumerate(_spread(len(budgets))):
        left = until - time.perf_counter()
        if left <= 0:
            break
        if progress is not None:
            progress(place)
        try:
            relaxed = checkmate.relax(
                graph, budgets[index], forward_again=forward_again, time_limit=left
            )
        except TimeoutError:
            break
        bounds[budgets[index]] = inf if relaxed is None else relaxed.cost
        if relaxed is None:
            continue
        for threshold in thresholds:
            if time.perf_counter() > until:
                break
            tables = complete(graph, relaxed.kept, threshold, forward_again=forward_again)
            if tables not in seen:
                seen[tables] = simulate(graph, *tables)
    # Improving takes no longer than relaxing did.
    now = time.perf_counter()
    until = min(until, now + (now - began))
    for budget in sorted(bounds):
        fitting = [tables for tables, usage in seen.items() if usage.peak <= budget]
        fitting.sort(key=lambda t: seen[t].cost)
        for tables in fitting[:1]:
            if time.perf_counter() < until:
                better = hold_more(graph, budget, tables, forward_again=forward_again, until=until)
                if better not in seen:
                    seen[better] = simulate(graph, *better)
    return Ladder(_undominated(seen), bounds, time.perf_counter() - began)


def _undominated(seen: Mapping[Tables, Usage]) -> tuple[Tables, ...]:
    """Return the schedules than which none is cheaper in as little memory."""
    best = inf
    found = []
    for tables, usage in sorted(seen.items(), key=lambda item: (item[1].peak, item[1].cost)):
        if usage.cost < best:
            best = usage.cost
            found.append(tables)
    return tuple(found)


def _spread(count: int) -> list[int]:
    """Return ``0 .. count - 1`` in such an order that the first few lie far apart."""
    found = dict.fromkeys([count - 1, 0] if count else [])
    pieces = 2
    while len(found) < count:
        found.update(dict.fromkeys(i * (count - 1) // pieces for i in range(1, pieces)))
        pieces += 1
    return list(found)


def hold_more(
    graph: Graph,
    budget: int,
    tables: Tables,
    *,
    forward_again: bool = True,
    until: float = inf,
) -> Tables:
    """Return a schedule in which results are held, where that fits, that were computed again.

    Not in the paper, whose graphs have no small results among large ones: the relaxation holds a
    little of each small one, which rounds to nothing. Node by node, the smallest results first, the
    node is held from its own stage to its last use; what fits and costs less stays.

    Args:
        graph: The graph.
        budget: Most bytes that may be held at any moment.
        tables: A schedule that fits, computed and kept.
        forward_again: Whether stages of forward nodes may compute earlier nodes again.
        until: When to stop, on the clock of :func:`time.perf_counter`.
    """
    computed, kept = tables
    cost = simulate(graph, computed, kept).cost
    useful = graph.useful()
    again = {
        i
        for t, row in enumerate(computed)
        for i, (now, stage) in enumerate(zip(row, graph.stage))
        if now and stage < t
    }
    for i in sorted(again, key=lambda i: (graph.memory[i], i)):
        if time.perf_counter() > until:
            break
        held = [list(row) for row in kept]
        for t in range(graph.stage[i] + 1, graph.num_stages):
            held[t][i] = useful[t][i]
        candidate = complete(graph, held, 0.5, forward_again=forward_again)
        usage = simulate(graph, *candidate)
        if usage.peak <= budget and usage.cost < cost:
            (computed, kept), cost = candidate, usage.cost
    return computed, kept


def complete(
    graph: Graph,
    kept: Sequence[Sequence[float]],
    threshold: float,
    *,
    forward_again: bool = True,
) -> Tables:
    """Round what is held, and compute the least that makes a schedule of it.

    From the last stage back: a node that a stage holds and the stage before does not hold is
    computed there; then, last node first, inputs that are neither held nor computed are computed.
    Where a stage may not compute a node, it is held from the stage before instead. What is held
    and never read is not held after all.

    Args:
        graph: What to compute.
        kept: How much of each node's result each stage holds from the stage before, 0 to 1.
        threshold: More than this counts as all of it.
        forward_again: Whether stages of forward nodes may compute earlier nodes again.

    Returns:
        The nodes that each stage computes, and those that it holds from the stage before.
    """
    count, stages = len(graph), graph.num_stages
    frozen = 0 if forward_again else graph.forward_stages
    useful = graph.useful()
    inputs, users = graph.inputs(), graph.users()
    whole: list[list[int]] = [[] for _ in range(count)]
    for a, o in graph.parts:
        whole[o].append(a)
    may = [
        [
            stage == t or (stage < t and t >= frozen and i not in graph.once | graph.pinned)
            for i, stage in enumerate(graph.stage)
        ]
        for t in range(stages)
    ]
    may = [[all(row[a] for a in (i, *whole[i])) for i in range(count)] for row in may]
    held = [
        [
            stage < t and useful[t][i] and (kept[t][i] > threshold or i in graph.pinned)
            for i, stage in enumerate(graph.stage)
        ]
        for t in range(stages)
    ]
    computed = [
        [stage == t and i not in graph.optional for i, stage in enumerate(graph.stage)]
        for t in range(stages)
    ]
    for t in reversed(range(stages)):
        row, before = computed[t], held[t]
        after = held[t + 1] if t + 1 < stages else [False] * count
        wanted = {i for i in range(count) if after[i] and not before[i] and not row[i]}
        wanted |= _missing(inputs, row, before)
        while wanted:
            for i in wanted:
                (row if may[t][i] else before)[i] = True
                if may[t][i]:
                    for a in whole[i]:
                        row[a] = True
            for a, o in graph.parts:
                if row[a] and before[o] and o not in graph.pinned:
                    row[o], before[o] = True, False
            wanted = _missing(inputs, row, before)
        for i in range(count):
            read = any(row[k] for k in users[i])
            before[i] = before[i] and (read or after[i] or i in graph.pinned) and not row[i]
    return tuple(map(tuple, computed)), tuple(map(tuple, held))


def _missing(inputs: list[list[int]], row: list[bool], before: list[bool]) -> set[int]:
    """Return the inputs of what a stage computes that it neither computes nor holds."""
    return {
        i for k, now in enumerate(row) if now for i in inputs[k] if not row[i] and not before[i]
    }
