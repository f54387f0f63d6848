"""The plans that planners of chains choose from, none of which depends on the budget.

That a larger budget never makes a plan slower follows: what fits a budget fits a larger one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from mimose.costs import grown_gradients
from mimose.plan import Plan
from mimose.planners.static import Progress, StepCosts
from mimose.solvers import rotor, segments
from mimose.solvers.block_chain import block_chain
from mimose.solvers.chain import Chain, simulate
from mimose.units import format_bytes

_LEAST_SLOTS, _MOST_SLOTS = 500, 8000
_MOST_INPUT_SLOTS = 2000
_TABLE_ENTRIES = 10_000_000  # Eight bytes each.
_MANY_BLOCKS = 150
_FINE = 500  # Units at which memory is counted finely.
_MOST_STEPS = 250  # Of a table with more, schedules that are nearly as fast are passed over.
_ALIKE = 0.0003
_REMEMBERED = 4


def chain_of(costs: StepCosts) -> Chain:
    """Return the chain of the step that is planned for."""
    count = costs.num_blocks
    grown = None
    if not costs.situation.grads_resident:
        grown = grown_gradients(costs.info, count)
    return block_chain(costs.profile, grown, cuts=costs.cuts, keep_only=kept(costs))


def kept(costs: StepCosts) -> frozenset[int]:
    """Return the blocks that are always kept."""
    return frozenset(range(costs.num_blocks)).difference(costs.blocks)


def segmented(costs: StepCosts, found: segments.Segments, *, keep_last: bool) -> Plan:
    """Return the plan of these segments, cut where it must be."""
    return segments.to_plan(
        costs.num_blocks, found, keep_last=keep_last, cuts=costs.cuts, keep=kept(costs)
    )


def every_block(costs: StepCosts) -> list[Plan]:
    """Return the two plans that need no search: nothing recomputed, and every block by itself."""
    count = costs.num_blocks
    return [Plan.keep_all(count), Plan.recompute_each(count, costs.blocks)]


def equal_segments(
    costs: StepCosts, cut: Callable[[int, int], segments.Segments] = segments.equal
) -> list[Plan]:
    """Return the plans of any number of equal segments, the last one kept."""
    count = costs.num_blocks
    return [segmented(costs, cut(count, n), keep_last=True) for n in range(1, count + 1)]


def chen_segments(costs: StepCosts) -> list[Plan]:
    """Return the plans of every bound of Chen's Algorithm 3, the last segment recomputed or kept.

    What a block computes is its activations and its output.
    """
    profile = costs.profile
    always = kept(costs)
    sizes = [
        0 if block in always else activation + output
        for block, (activation, output) in enumerate(zip(profile.activation, profile.output))
    ]
    return [
        segmented(costs, found, keep_last=keep_last)
        for found in segments.all_chen(sizes, cuts=costs.cuts)
        for keep_last in (False, True)
    ]


def schedules(
    costs: StepCosts,
    *,
    store_all: bool,
    slots: int | None = None,
    progress: Progress | None = None,
) -> Sequence[Plan]:
    """Return the optimal schedules of the step's chain in every amount of memory.

    Sizes are rounded up to units of memory, which are the larger the more memory a table goes up
    to. So there is a table for less memory, and so on, until the least memory is counted finely
    as well. The peak model judges what is found: rounding costs optimality at most.

    Args:
        costs: The step.
        store_all: Whether blocks may be kept (Rotor) or inputs only (revolve).
        slots: Units of memory in each table; by default as many as are solved in seconds.
        progress: Is told how far a long solve has come.
    """
    chain = chain_of(costs)
    count = chain.num_blocks
    if slots is None:
        most = _MOST_SLOTS if store_all else _MOST_INPUT_SLOTS
        slots = min(max(2 * _TABLE_ENTRIES // count**2, _LEAST_SLOTS), most)
    key = (chain, store_all, slots)
    found = _remembered.get(key)
    if found is None:
        found = tuple(_schedules(chain, store_all, slots, progress))
        if len(_remembered) >= _REMEMBERED:
            del _remembered[next(iter(_remembered))]
        _remembered[key] = found
    return found


_remembered: dict[tuple[Chain, bool, int], tuple[Plan, ...]] = {}
"""The schedules of the chains planned for last: planning for several budgets solves once."""


def forget() -> None:
    """Forget what was remembered, so that the next solve takes its whole time."""
    _remembered.clear()


def _schedules(
    chain: Chain, store_all: bool, slots: int, progress: Progress | None
) -> dict[Plan, None]:
    count = chain.num_blocks
    chosen = [] if store_all else [b for b in range(count) if b not in chain.keep_only]
    most = max(simulate(chain, Plan.recompute_each(count, chosen)).peak, 1)
    # With every size rounded up, even that needs up to a unit a block more.
    bound = round(most / (1 - min(count / slots, 0.5)))
    # Long chains take long, so they get fewer tables.
    less = 2 if count < _MANY_BLOCKS else 4
    found: dict[Plan, None] = {}
    while True:
        say = None if progress is None else _prefixed(progress, bound)
        unit = _unit(chain, -(-bound // slots))
        table = rotor.solve(chain, bound, unit=unit, store_all=store_all, progress=say)
        least = table.least
        last = unit == 1 or least is None or bound < less * least or least > _FINE * unit
        # Less memory is counted more finely in the tables to come.
        steps = [step for step in table.steps() if last or step[0] > bound // less]
        for memory in _thinned(steps):
            plan = table.plan(memory)
            assert plan is not None, "a step is feasible"
            found[plan] = None
        if last:
            return found
        bound //= less


def _thinned(steps: Sequence[tuple[int, float]]) -> list[int]:
    """Return the memory of the steps; where there are many, of so many that no time is missed.

    A step is left out only if there is one of less memory that is slower by less than a share of
    :data:`_ALIKE`.
    """
    if len(steps) <= _MOST_STEPS:
        return [memory for memory, _ in steps]
    found = [steps[0][0]]
    seconds = steps[0][1]
    for memory, now in steps:
        if now < seconds * (1 - _ALIKE):
            found.append(memory)
            seconds = now
    return list(dict.fromkeys([*found, steps[-1][0]]))


def _unit(chain: Chain, least: int) -> int:
    """Return a unit of at least so many bytes of which sizes are as nearly multiples as can be.

    Blocks are often alike: where an input is a little more than a unit, all of them count double.
    """
    inputs = Counter(x for x in chain.x if x)
    saved = Counter(s for s in chain.saved if s)
    tried = {least}
    for size in (*inputs, *saved):
        tried.update(
            -(-size // k) for k in range(max(2 * size // (3 * least), 1), size // least + 1)
        )

    units = np.array(sorted(u for u in tried if least <= u <= 2 * least), np.int64)
    lost = np.zeros(len(units))
    for sizes in (inputs, saved):
        if sizes:
            rounded = sum(n * (-size % units) for size, n in sizes.items())
            lost += rounded / sum(n * size for size, n in sizes.items())
    return int(units[lost.argmin()])


def _prefixed(progress: Progress, bound: int) -> Progress:
    return lambda said: progress(f"schedules in up to {format_bytes(bound)}: {said}")
