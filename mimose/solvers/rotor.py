"""Rotor: the fastest persistent schedule of a heterogeneous chain within a bound on memory.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains", 2019, arXiv 1911.13214, with the memory conditions of the released code
(gitlab.inria.fr/hiepacs/rotor, ``persistent``). A schedule is persistent if what it checkpoints
stays in memory until its backward has used it.

With ``C(m, i, l)`` the least time to go forward and back through stages ``i..l`` in ``m`` bytes,
the input of ``i`` and all that is held outside left out::

    C(m, i, i) = forward[i] + backward[i]
    C(m, i, l) = min( min over j of  forward of i..j-1 + C(m - x[j], j, l) + C(m, i, j-1),
                      C(m, i, i) + C(m - saved[i], i+1, l) )

The first choice forgets stages ``i..j-1`` and makes a region of them, the second keeps a block.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from mimose.plan import Plan, Region
from mimose.solvers import rotor_compiled
from mimose.solvers.chain import Chain

Array = np.ndarray[Any, np.dtype[np.float64]]
Choices = np.ndarray[Any, np.dtype[np.int16]]

SLOTS = 500
"""Units into which the memory is divided, as in the released code."""

_MANY = 40  # Blocks from which on it matters how fast a table is solved.


@dataclass(frozen=True, slots=True)
class Table:
    """The optimal schedules of a chain in every amount of memory up to a bound.

    Attributes:
        chain: The chain.
        unit: Bytes a unit of memory; every size was rounded up to a whole number of them.
        bound: The bound in bytes.
        store_all: Whether blocks may be kept (see :func:`solve`).
    """

    chain: Chain
    unit: int
    bound: int
    store_all: bool
    _sizes: _Sizes = field(repr=False)
    _best: list[Array] = field(repr=False)
    """``_best[i][l - i, m]`` is C(m, i, l), m in units."""
    _choices: dict[tuple[int, int], Choices] = field(default_factory=dict, repr=False)
    """For some i and l, the best choice for each m: the j of a region i..j-1, 0 to keep i."""
    _known: dict[tuple[int, int, int], tuple[Region, ...]] = field(default_factory=dict, repr=False)
    """Regions found already; plans share them."""

    def makespan(self, memory: int) -> float | None:
        """Return the least time in ``memory`` bytes, the chain's input included; None if too few.

        Raises:
            ValueError: If ``memory`` is above the table's bound.
        """
        units = self._units(memory)
        value = float(self._best[0][-1, units]) if units >= 0 else np.inf
        return None if np.isinf(value) else value

    def plan(self, memory: int) -> Plan | None:
        """Return the fastest plan in ``memory`` bytes, the chain's input included.

        None if there is none.
        """
        if self.makespan(memory) is None:
            return None
        regions = self._regions(0, self.chain.num_blocks, self._units(memory))
        return Plan(self.chain.num_blocks, regions)

    def steps(self) -> list[tuple[int, float]]:
        """Return each amount of memory from which on the least time is less, with that time.

        The least first: ``steps()[0][0]`` is the least feasible memory. Empty if none is.
        """
        values = self._best[0][-1]
        before = np.concatenate(([np.inf], values[:-1]))
        start = self._sizes.x[0]
        return [
            ((int(m) + start) * self.unit, float(values[m])) for m in np.nonzero(values < before)[0]
        ]

    @property
    def least(self) -> int | None:
        """The least feasible memory in bytes, None if even the bound is too little."""
        steps = self.steps()
        return steps[0][0] if steps else None

    def _units(self, memory: int) -> int:
        if memory > self.bound:
            raise ValueError(f"the table goes up to {self.bound} bytes, not {memory}")
        most = int(self._best[0].shape[1]) - 1
        return min(memory // self.unit - self._sizes.x[0], most)

    def _regions(self, first: int, last: int, units: int) -> tuple[Region, ...]:
        """Return the regions of the fastest schedule of stages ``first..last``."""
        sizes = self._sizes
        regions: list[Region] = []
        start = (first, last, units)
        known = self._known.get(start)
        if known is not None:
            return known
        while first < last:
            choices = self._choices.get((first, last))
            if choices is None:
                choices = _choices(first, last, sizes, self._best, self.store_all)
                self._choices[first, last] = choices
            choice = int(choices[units])
            if choice == 0:
                units -= sizes.saved[first]
                first += 1
            else:
                inner = self._regions(first, choice - 1, units)
                regions.append(Region(first, choice - 1, inner))
                units -= sizes.x[choice]
                first = choice
        return self._known.setdefault(start, tuple(regions))


class _Sizes:
    """A chain's sizes in units of memory, and the conditions on memory.

    Attributes:
        leaf: For each stage, the least memory of ``C(m, i, i)``.
        reach: For each stage, the last stage of the longest region that may start there.
        widest: For each stage, the bytes that forgetting ``i..j-1`` needs beside the sub-chain's
            end, as pairs of ``j - i - 1`` and bytes wherever they grow.
    """

    def __init__(self, chain: Chain, unit: int) -> None:
        self.chain = chain
        self.unit = unit
        self.exact = bool(chain.keep_temporary)
        self.loss = chain.num_blocks
        self.x = [self.units(s) for s in chain.x] + [0]
        self.saved = [self.units(s) for s in chain.saved] + [0]
        self.ends = [chain.end(i) for i in range(self.loss + 1)]
        self.leaf = [max(self.units(chain.leaf(i)), 0) for i in range(self.loss + 1)]
        self.reach = [*chain.reach(), self.loss - 1]
        self.widest = [self._widest(i) for i in range(self.loss)]

    def units(self, size: int) -> int:
        """Return a size in whole units, rounded up."""
        return -(-size // self.unit)

    def beside(self, last: int, size: int) -> int:
        """Return the units of ``size`` bytes beside what waits at the end of a sub-chain."""
        return max(self.units(self.ends[last] + size), 0)

    def keeping(self, stage: int, last: int) -> int:
        """Return the units that keeping a stage needs while later ones up to ``last`` run."""
        need = max(self.leaf[stage], self.saved[stage])
        if self.exact:
            own = self.chain.saved[stage] + self.chain.keep_temporary[stage]
            return max(need, self.beside(last, own))
        # As for what is forgotten: it need not be this stage.
        return max(need, self.beside(last, self.before(stage, last)[-1][1]))

    def before(self, first: int, last: int) -> list[tuple[int, int]]:
        """Return what is in ``widest`` for stages before ``last``."""
        found = self.widest[first]
        if found[-1][0] < last - first:
            return found
        return [pair for pair in found if pair[0] < last - first]

    def may_keep(self, stage: int, last: int, store_all: bool) -> bool:
        """Return whether ``stage`` may be kept while later stages up to ``last`` run."""
        # A block right before the loss is run once in any case: nothing comes between.
        return store_all or stage + 1 == last == self.loss or stage in self.chain.keep_only

    def _widest(self, first: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for stage in range(first, self.loss):
            need = self.chain.forgotten(stage, stage == first)
            if not found or need > found[-1][1]:
                found.append((stage - first, need))
        return found


def solve(
    chain: Chain,
    budget: int,
    slots: int = SLOTS,
    *,
    unit: int | None = None,
    store_all: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Table:
    """Return the optimal persistent schedules in every memory up to ``budget``.

    Memory is counted in units of ``max(1, ceil(budget / slots))`` bytes, every size rounded up, so
    a budget of up to ``slots`` is solved exactly. Time is O(slots L^3), memory O(slots L^2).

    Args:
        chain: The chain.
        budget: Bytes, the chain's input included.
        slots: Units into which the budget is divided.
        unit: Bytes a unit, instead of ``slots``.
        store_all: Whether everything that a block saves may be kept while others run. Without it
            only inputs of stages are kept, which is the optimal schedule of *revolve* (Griewank
            and Walther, ACM TOMS 26(1), 2000) on a heterogeneous chain.
        progress: Told about once a second how far a long solve has come.

    Raises:
        ValueError: If ``budget`` or ``slots`` is not positive.
    """
    if budget < 1 or slots < 1:
        raise ValueError(f"budget and slots must be positive, not {budget} and {slots}")
    unit = max(1, unit or -(-budget // slots))
    sizes = _Sizes(chain, unit)
    top = max(budget // unit - sizes.x[0] + 1, 0)  # m is 0 .. top - 1
    loss = chain.num_blocks
    before = list(accumulate(chain.forward, initial=0.0))
    best = [np.empty((loss + 1 - i, top)) for i in range(loss + 1)]
    table = Table(chain, unit, budget, store_all, sizes, best)
    if top == 0:
        return table
    columns, width = _numpy_columns(sizes, before, best, store_all), 1
    problem = rotor_compiled.problem()
    if problem is None:
        columns = rotor_compiled.column_solver(sizes, before, best, store_all)
        width = rotor_compiled.COLUMNS
    elif progress is not None and loss >= _MANY:
        progress(f"this takes several times as long as it could: {problem}")
    said = time.monotonic()
    for last in range(0, loss + 1, width):
        count = min(width, loss + 1 - last)
        columns(last, count)
        if progress is not None and time.monotonic() - said > 1.0:
            said = time.monotonic()
            progress(f"solved for {last + count} of {loss + 1} stages")
    return table


def _numpy_columns(
    sizes: _Sizes, before: list[float], best: list[Array], store_all: bool
) -> rotor_compiled.Columns:
    """Return what fills the table without a compiler, and what the compiled one is tested with."""
    loss, top, chain = sizes.loss, best[0].shape[1], sizes.chain
    sums = np.empty((loss, top))

    def column(last: int, count: int) -> None:
        assert count == 1
        # after[j, m] is before[j] + C(m - x[j], j, last): the term that all regions share.
        after = np.full((last + 1, top), np.inf)
        enough = sizes.leaf[last]  # To recompute nothing, than which nothing is faster.
        for first in range(last, -1, -1):
            row = best[first][last - first]
            row[:] = np.inf
            if first == last:
                low = enough
                row[low:] = (chain.forward if first == loss else chain.again)[first]
                row[low:] += chain.backward[first]
            else:
                keep = sizes.may_keep(first, last, store_all)
                enough = max(enough + sizes.saved[first], sizes.keeping(first, last))
                if not keep:
                    enough = top
                low, total = _splits(first, last, sizes, best, after[first + 1 :], sums[:, :enough])
                if len(total):
                    np.minimum.reduce(total, axis=0, out=row[low:enough])
                    row[low:enough] -= before[first]
                if keep:
                    low, kept = _kept(first, last, sizes, best)
                    np.minimum(row[low:], kept, out=row[low:])
            _shift(row, sizes.x[first], before[first], after[first])

    return column


def _shift(row: Array, size: int, more: float, out: Array) -> None:
    """Set ``out`` to ``row`` with ``size`` less memory, and ``more`` added."""
    if size < len(row):
        np.add(row[: len(row) - size], more, out=out[size:])


def _splits(
    first: int, last: int, sizes: _Sizes, best: list[Array], after: Array, room: Array
) -> tuple[int, Array]:
    """Return the times of forgetting ``first..j-1``, a row for each j from ``first + 1`` on.

    Args:
        first: The first stage.
        last: The last stage.
        sizes: The chain's sizes.
        best: The table so far.
        after: For each j, the time from j on and what precedes j, with ``x[j]`` less memory.
        room: Where to put the result; as many amounts of memory are looked at as it has columns.

    Returns:
        The memory from which on they are given, and the times plus what precedes ``first``.
    """
    exact, top = sizes.exact, room.shape[1]
    within = sizes.before(first, last)
    # Rotor asks for the memory of a forgotten forward of every stage, forgotten or not.
    low = sizes.beside(last, within[0 if exact else -1][1])
    splits = min(last, sizes.reach[first] + 1) - first
    if low >= top or splits < 1:
        return top, room[:0]
    total = room[:splits, low:]
    np.add(best[first][:splits, low:top], after[:splits, low:top], out=total)
    if exact:
        for k, size in within[1:]:
            if k < splits:
                total[k:, : max(sizes.beside(last, size) - low, 0)] = np.inf
    return low, total


def _kept(first: int, last: int, sizes: _Sizes, best: list[Array]) -> tuple[int, Array]:
    """Return the memory from which on ``first`` can be kept, and the times from there on."""
    chain, top, saved = sizes.chain, best[0].shape[1], sizes.saved[first]
    low = sizes.keeping(first, last)
    if low >= top:
        return top, np.empty(0)
    kept = best[first + 1][last - first - 1][low - saved : top - saved]
    return low, kept + (chain.forward[first] + chain.backward[first])


def _choices(first: int, last: int, sizes: _Sizes, best: list[Array], store_all: bool) -> Choices:
    """Return, for each memory, the j of the best region ``first..j-1``, 0 to keep ``first``."""
    top = best[0].shape[1]
    count = max(min(last, sizes.reach[first] + 1) - first, 0)
    after = np.full((count, top), np.inf)
    spent = 0.0
    for k in range(count):
        j = first + 1 + k
        spent += sizes.chain.forward[j - 1]
        _shift(best[j][last - j], sizes.x[j], spent, after[k])
    low, total = _splits(first, last, sizes, best, after, np.empty((count, top)))
    choices = np.zeros(top, np.int16)
    seconds = np.full(top, np.inf)
    if len(total):
        which = total.argmin(axis=0)
        choices[low:] = which + (first + 1)
        seconds[low:] = np.take_along_axis(total, which[None], axis=0)[0]
    if sizes.may_keep(first, last, store_all):
        low, kept = _kept(first, last, sizes, best)
        choices[low:][kept <= seconds[low:]] = 0
    return choices
