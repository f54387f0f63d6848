"""Checkmate: the optimal schedule of a computation graph, as a mixed-integer linear problem.

Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization", MLSys
2020, section 4: tables R (what each stage computes), S (what it holds from the stage before) and
FREE (what is let go after which node), and the bytes U held at each node, with frontier-advancing
stages.

The problem comes in two forms with the same schedules. The *paper's* counts hazards to say when a
result may be let go. The *tight* one, which is what :func:`solve` solves, says the same a hazard at
a time, which leaves less room for fractions and lets FREE be any number; and it leaves out what no
stage can still need.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf
from typing import Literal

from mimose.solvers import highs
from mimose.solvers.graph import Graph, Table, Usage, simulate

Status = Literal["optimal", "feasible", "infeasible", "unknown"]

_EXACT = 10_000
"""Up to so many units of memory in the budget, bytes are exact to the solver."""

_MARGIN = 1e-5
"""Beyond, where the solver's tolerance once took it over the budget, so much is left unused."""


@dataclass(frozen=True, slots=True)
class Result:
    """What the solver found for one graph and budget.

    Attributes:
        status: ``optimal`` (to within the gap asked for), ``feasible`` (the best found when time
            ran out or Ctrl-C came), ``infeasible``, or ``unknown``: none found, none ruled out.
        computed: The nodes that each stage computes, or None without a schedule.
        kept: The nodes whose results each stage holds from the stage before, or None.
        usage: What the schedule costs and holds, simulated; None without.
        bound: No schedule costs less, as far as the solver could tell.
        seconds: Time taken.
        interrupted: Whether Ctrl-C ended it.
        size: Columns and rows of the problem.
    """

    status: Status
    computed: tuple[tuple[bool, ...], ...] | None
    kept: tuple[tuple[bool, ...], ...] | None
    usage: Usage | None
    bound: float
    seconds: float
    interrupted: bool = False
    size: tuple[int, int] = (0, 0)

    @property
    def cost(self) -> float:
        """Cost of the schedule, infinite without one."""
        return inf if self.usage is None else self.usage.cost

    @property
    def gap(self) -> float:
        """How much less than this cost an optimal schedule might cost, as a share of the cost."""
        if self.usage is None:
            return inf
        return max(0.0, 1.0 - self.bound / self.cost) if self.cost else 0.0


def solve(
    graph: Graph,
    budget: int,
    *,
    time_limit: float = 60.0,
    gap: float = 0.0,
    forward_again: bool = True,
    start: tuple[Table, Table] | None = None,
    progress: highs.Progress | None = None,
) -> Result:
    """Return the cheapest schedule of ``graph`` within ``budget`` bytes.

    Ctrl-C ends the solve with the best schedule found so far.

    Args:
        graph: What to compute.
        budget: Most bytes that may be held at any moment.
        time_limit: Seconds after which to stop.
        gap: Relative distance from the optimum that is good enough.
        forward_again: Whether stages of forward nodes may compute earlier nodes again. Few graphs
            gain by it, and without it the problem is about half as large.
        start: A schedule, computed and kept, to begin with; left aside if it does not fit.
        progress: Called now and then with seconds, the best cost so far and the bound.

    Raises:
        ValueError: If limit, gap or budget are not positive numbers.
    """
    if not (time_limit > 0 and gap >= 0 and budget >= 0):
        raise ValueError(
            f"a solve takes a time limit above 0 and a gap and a budget of at least 0, "
            f"not {time_limit}, {gap} and {budget}"
        )
    result = _solve(graph, budget, 0.0, time_limit, gap, forward_again, start, progress)
    if result.usage is None or result.usage.peak <= budget:
        return result
    # Within the solver's tolerance, which the budget does not have.
    left = max(time_limit - result.seconds, 1.0)
    return _solve(graph, budget, _MARGIN, left, gap, forward_again, start, progress)


def _solve(
    graph: Graph,
    budget: int,
    margin: float,
    time_limit: float,
    gap: float,
    forward_again: bool,
    start: tuple[Table, Table] | None,
    progress: highs.Progress | None,
) -> Result:
    model = Formulation(graph, budget, margin=margin, forward_again=forward_again)
    first = None
    if start is not None and _fits(graph, budget, start):
        first = model.values(*start)
    answer = highs.solve(
        model.problem,
        time_limit=time_limit,
        gap=gap,
        start=first,
        progress=None if progress is None else _in_costs(progress, model.scale),
    )
    size = (len(model.problem.cost), len(model.problem.row_lower))
    interrupted = answer.outcome == "interrupted"
    bound = max(graph.least_cost, answer.bound * model.scale)
    if answer.outcome == "infeasible":
        return Result("infeasible", None, None, None, inf, answer.seconds, size=size)
    if answer.values is None:
        return Result("unknown", None, None, None, bound, answer.seconds, interrupted, size)
    computed, kept = model.tables(answer.values)
    usage = simulate(graph, computed, kept)
    status: Status = "optimal" if answer.outcome == "optimal" else "feasible"
    return Result(
        status, computed, kept, usage, min(bound, usage.cost), answer.seconds, interrupted, size
    )


def lower_bound(graph: Graph, budget: int, *, time_limit: float = 60.0) -> float | None:
    """Return the optimum of the paper's problem with fractions allowed; None if it has none.

    Raises:
        TimeoutError: If the time limit passes first.
    """
    found = relax(graph, budget, tight=False, time_limit=time_limit)
    return None if found is None else found.cost


@dataclass(frozen=True, slots=True)
class Relaxed:
    """An optimum with fractions allowed.

    Attributes:
        cost: Its cost: no schedule costs less.
        kept: How much of each node's result each stage holds from the stage before, 0 to 1.
        seconds: Time taken.
    """

    cost: float
    kept: tuple[tuple[float, ...], ...]
    seconds: float


def relax(
    graph: Graph,
    budget: float,
    *,
    tight: bool = True,
    forward_again: bool = True,
    time_limit: float = 60.0,
) -> Relaxed | None:
    """Solve the problem with fractions allowed; return None if even that has no solution.

    Args:
        graph: What to compute.
        budget: Most bytes that may be held at any moment.
        tight: Whether to solve the tight form rather than the paper's.
        forward_again: As for :func:`solve`; the paper's form has no such restriction.
        time_limit: Seconds.

    Raises:
        TimeoutError: If the time limit passes first.
    """
    model = Formulation(graph, budget, tight=tight, exact=False, forward_again=forward_again)
    answer = highs.solve(model.problem, relaxed=True, time_limit=time_limit)
    if answer.outcome == "infeasible":
        return None
    if answer.outcome == "interrupted":
        raise KeyboardInterrupt
    if answer.outcome != "optimal":
        raise TimeoutError(f"the linear problem took more than {time_limit:g} s")
    kept = tuple(tuple(float(answer.values[c]) if c >= 0 else 0.0 for c in r) for r in model.kept)
    return Relaxed(answer.objective * model.scale, kept, answer.seconds)


class Formulation:
    """The problem's columns and rows for one graph and budget.

    Attributes:
        problem: The problem itself. Its memory is in units, its costs are divided by ``scale``.
        scale: Objective times scale is cost.
        computed: For each stage and node the column of R, or -1 where it can only be 0.
        kept: The same for S.
    """

    def __init__(
        self,
        graph: Graph,
        budget: float,
        *,
        tight: bool = True,
        exact: bool = True,
        margin: float = 0.0,
        forward_again: bool = True,
    ) -> None:
        self.graph = graph
        self.problem = highs.Problem()
        self.scale = max(graph.cost) or 1.0
        self._tight = tight
        self._unit, self._limit = _units(graph, budget, exact, margin)
        count, stages = len(graph), graph.num_stages
        useful = graph.useful() if tight else [[True] * count] * stages
        frozen = 0 if forward_again else graph.forward_stages
        users, until = graph.users(), graph.kept_until()
        self.computed = [[-1] * count for _ in range(stages)]
        self.kept = [[-1] * count for _ in range(stages)]
        for t in range(stages):
            for i, stage in enumerate(graph.stage):
                if stage > t or not useful[t][i]:
                    continue
                own = stage == t
                must = own and i not in graph.optional
                again = own or (t >= frozen and i not in graph.once and i not in graph.pinned)
                cost = graph.cost[i] / self.scale
                if again:
                    self.computed[t][i] = self.problem.column(cost, lower=float(must), integer=True)
                if not own and (users[i] or not tight):
                    stays = i in graph.pinned and i not in graph.optional
                    # What may not be computed again while forward goes on, and is not read there
                    # any more, is either held until backward or not at all.
                    shared = tight and until[i] + 1 < t <= frozen and t > stage + 1
                    self.kept[t][i] = (
                        self.kept[t - 1][i]
                        if shared
                        else self.problem.column(lower=float(stays), integer=True)
                    )
        # For each stage the nodes that it may compute with their columns of U, and of FREE by edge.
        self._held: list[list[tuple[int, int]]] = []
        self._free: list[dict[tuple[int, int], int]] = []
        self._inputs, self._users = graph.inputs(), graph.users()
        for t in range(stages):
            self._dependencies(t)
            self._memory(t)

    def tables(
        self, values: Sequence[float]
    ) -> tuple[tuple[tuple[bool, ...], ...], tuple[tuple[bool, ...], ...]]:
        """Return the schedule, computed and kept, that a solution spells."""

        def table(columns: list[list[int]]) -> tuple[tuple[bool, ...], ...]:
            return tuple(tuple(c >= 0 and bool(values[c] > 0.5) for c in row) for row in columns)

        return table(self.computed), table(self.kept)

    def values(self, computed: Table, kept: Table) -> list[float]:
        """Return a value for each column that spells a schedule."""
        values = list(self.problem.lower)
        usage = simulate(self.graph, computed, kept)
        stages = self.graph.num_stages
        for t in range(stages):
            for i in range(len(self.graph)):
                if self.computed[t][i] >= 0:
                    values[self.computed[t][i]] = float(computed[t][i])
                if self.kept[t][i] >= 0:
                    values[self.kept[t][i]] = float(kept[t][i])
            for k, column in self._held[t]:
                values[column] = usage.held[t][k] / self._unit
            for (i, k), column in self._free[t].items():
                stays = t + 1 < stages and kept[t + 1][i]
                later = any(computed[t][j] for j in self._users[i] if j > k)
                values[column] = float(computed[t][k] and not stays and not later)
        return values

    def _dependencies(self, t: int) -> None:
        graph, problem = self.graph, self.problem
        computed, kept = self.computed[t], self.kept[t]
        for i, k in graph.edges:
            if computed[k] >= 0:
                terms = [(computed[k], 1.0)]
                terms += [(c, -1.0) for c in (computed[i], kept[i]) if c >= 0]
                problem.row(terms, upper=0.0)
        for a, o in graph.parts:
            if computed[o] >= 0:
                terms = [(computed[o], 1.0)]
                terms += [(computed[a], -1.0)] if computed[a] >= 0 else []
                problem.row(terms, upper=0.0)
            if kept[o] >= 0 and computed[a] >= 0 and o not in graph.pinned:
                problem.row([(kept[o], 1.0), (computed[a], 1.0)], upper=1.0)
        for i, column in enumerate(kept):
            if column < 0 or column == self.kept[t - 1][i]:
                continue
            before = [self.computed[t - 1][i], self.kept[t - 1][i]]
            terms = [(column, 1.0), *((c, -1.0) for c in before if c >= 0)]
            problem.row(terms, upper=0.0)
            if self._tight and computed[i] >= 0:
                problem.row([(column, 1.0), (computed[i], 1.0)], upper=1.0)

    def _memory(self, t: int) -> None:
        graph, problem = self.graph, self.problem
        computed, kept = self.computed[t], self.kept[t]
        size = [m / self._unit for m in graph.memory]
        nodes = [k for k in range(len(graph)) if computed[k] >= 0 or not self._tight]
        spare = {k: graph.spare(t, k) / self._unit for k in nodes}
        # Something is computed in every stage, so what all its nodes need is needed throughout.
        always = min(spare.values())
        held: list[tuple[int, int]] = []
        free: dict[tuple[int, int], int] = {}
        before: list[tuple[int, float]] = []
        for i, column in enumerate(kept):
            if column >= 0 and size[i]:
                before.append((column, size[i]))
        for k in nodes:
            level = problem.column(upper=self._limit - always)
            held.append((k, level))
            terms = [(level, -1.0), *before]
            if computed[k] >= 0:
                terms.append((computed[k], size[k]))
                if spare[k] > always:
                    problem.row(
                        [(level, 1.0), (computed[k], spare[k] - always)],
                        upper=self._limit - always,
                    )
            problem.row(terms, 0.0, 0.0)
            before = [(level, 1.0)]
            for i in self._inputs[k]:
                if not self._tight or (size[i] and computed[k] >= 0):
                    free[i, k] = column = problem.column(integer=not self._tight)
                    before.append((column, -size[i]))
                    self._hazards(t, i, k, column)
        if self._tight:
            self._once(t, free)
        self._held.append(held)
        self._free.append(free)

    def _hazards(self, t: int, i: int, k: int, free: int) -> None:
        """Say when the result of ``i`` may be let go after ``k``."""
        problem = self.problem
        own = self.computed[t][k]
        hazards = [self.computed[t][j] for j in self._users[i] if j > k]
        count = 1 + len(hazards)
        if t + 1 < self.graph.num_stages:
            count += 1
            hazards.append(self.kept[t + 1][i])
        hazards = [c for c in hazards if c >= 0]
        if self._tight:
            problem.row([(free, 1.0), (own, -1.0)], upper=0.0)
            for column in hazards:
                problem.row([(free, 1.0), (column, 1.0)], upper=1.0)
            return
        # With h = (1 - own) + the hazards: 1 - free <= h <= count (1 - free).
        terms = [(c, 1.0) for c in hazards]
        if own >= 0:
            terms.append((own, -1.0))
        problem.row([*terms, (free, 1.0)], lower=0.0)
        problem.row([*terms, (free, float(count))], upper=count - 1.0)

    def _once(self, t: int, free: dict[tuple[int, int], int]) -> None:
        """Say that a stage lets a result go once at most, and only if it was there."""
        by_node: dict[int, list[int]] = {}
        for (i, _), column in free.items():
            by_node.setdefault(i, []).append(column)
        for i, columns in by_node.items():
            there = [c for c in (self.computed[t][i], self.kept[t][i]) if c >= 0]
            terms = [(c, 1.0) for c in columns] + [(c, -1.0) for c in there]
            self.problem.row(terms, upper=0.0)


def _units(graph: Graph, budget: float, exact: bool, margin: float) -> tuple[float, float]:
    """Return the bytes of a unit of memory and the budget in units.

    Where a common divisor makes all figures small whole numbers, half a unit of slack (which whole
    tables cannot use, only fractions) keeps the solver's tolerance away from the budget. Elsewhere
    the unit is the budget, less ``margin``.
    """
    divisor = gcd(*graph.memory, *(b for row in graph.overhead for b in row)) or 1
    if exact and budget // divisor <= _EXACT:
        return float(divisor), budget // divisor + 0.5
    if exact:
        return float(budget), 1.0 - margin
    return float(max(1.0, budget)), min(1.0, budget)


def _fits(graph: Graph, budget: int, start: tuple[Table, Table]) -> bool:
    return simulate(graph, *start).peak <= budget


def _in_costs(progress: highs.Progress, scale: float) -> highs.Progress:
    return lambda seconds, best, bound: progress(seconds, best * scale, bound * scale)
