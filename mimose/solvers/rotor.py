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
from mimose.solvers.chain import Chain

Array = np.ndarray[Any, np.dtype[np.float64]]

SLOTS = 500
"""Units into which the memory is divided, as in the released code."""


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
        sizes, best = self._sizes, self._best
        forward, backward, again = self.chain.forward, self.chain.backward, self.chain.again
        once = [min(f, a) + b for f, a, b in zip(forward, again, backward)]
        # No schedule of what is left takes less than this, up to rounding.
        least = sum(once[first : last + 1]) * (1 - 1e-9)
        regions: list[Region] = []
        while first < last:
            choice, fastest, spent = 0, np.inf, 0.0
            if sizes.may_keep(first, last, self.store_all) and units >= sizes.leaf[first]:
                rest = units - sizes.saved[first]
                if rest >= 0:
                    fastest = forward[first] + backward[first]
                    fastest += best[first + 1][last - first - 1, rest]
            for j in range(first + 1, min(last, sizes.reach[first] + 1) + 1):
                spent += forward[j - 1]
                if spent + least >= fastest:
                    break
                rest = units - sizes.x[j]
                if rest < 0:
                    continue
                seconds = spent + best[j][last - j, rest] + best[first][j - 1 - first, units]
                if seconds < fastest:
                    choice, fastest = j, seconds
            if choice == 0:
                units -= sizes.saved[first]
                choice = first + 1
            else:
                inner = self._regions(first, choice - 1, units)
                regions.append(Region(first, choice - 1, inner))
                units -= sizes.x[choice]
            least -= sum(once[first:choice])
            first = choice
        return tuple(regions)


class _Sizes:
    """A chain's sizes in units of memory, and the conditions on memory.

    Attributes:
        leaf: For each stage, the least memory of ``C(m, i, i)``.
        reach: For each stage, the last stage of the longest region that may start there.
    """

    def __init__(self, chain: Chain, unit: int) -> None:
        def units(size: int) -> int:
            return -(-size // unit)

        self.loss = chain.num_blocks
        self.x = [units(s) for s in chain.x] + [0]
        self.saved = [units(s) for s in chain.saved] + [0]
        self.held = [units(s) for s in chain.held]
        self.forward = [units(s) for s in chain.forward_temporary]
        backward = [units(s) for s in chain.backward_temporary]
        self.leaf = [
            self.held[i]
            + self.x[i + 1]
            + self.saved[i]
            + max(self.forward[i], self.x[i] + backward[i])
            for i in range(self.loss + 1)
        ]
        self.reach = [*chain.reach(), self.loss - 1]

    def may_keep(self, stage: int, last: int, store_all: bool) -> bool:
        """Return whether ``stage`` may be kept while later stages up to ``last`` run."""
        # A block right before the loss is run once in any case: nothing comes between.
        return store_all or stage + 1 == last == self.loss


def solve(
    chain: Chain,
    budget: int,
    slots: int = SLOTS,
    *,
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
        store_all: Whether everything that a block saves may be kept while others run. Without it
            only inputs of stages are kept, which is the optimal schedule of *revolve* (Griewank
            and Walther, ACM TOMS 26(1), 2000) on a heterogeneous chain.
        progress: Told about once a second how far a long solve has come.

    Raises:
        ValueError: If ``budget`` or ``slots`` is not positive.
    """
    if budget < 1 or slots < 1:
        raise ValueError(f"budget and slots must be positive, not {budget} and {slots}")
    unit = max(1, -(-budget // slots))
    sizes = _Sizes(chain, unit)
    top = max(budget // unit - sizes.x[0] + 1, 0)  # m is 0 .. top - 1
    loss = chain.num_blocks
    before = list(accumulate(chain.forward, initial=0.0))
    best = [np.full((loss + 1 - i, top), np.inf) for i in range(loss + 1)]
    table = Table(chain, unit, budget, store_all, sizes, best)
    if top == 0:
        return table
    sums = np.empty((loss, top))
    said = time.monotonic()
    for last in range(loss + 1):
        # after[j, m] is before[j] + C(m - x[j], j, last): the term that all regions share.
        after = np.full((last + 1, top), np.inf)
        widest = 0
        for first in range(last, -1, -1):
            row = best[first][last - first]
            if first == last:
                low = sizes.leaf[first]
                row[low:] = (chain.forward if first == loss else chain.again)[first]
                row[low:] += chain.backward[first]
            else:
                if first + 1 < last:
                    j = first + 1
                    widest = max(widest, sizes.x[j] + sizes.x[j + 1] + sizes.forward[j])
                low = max(sizes.x[first + 1] + sizes.forward[first], widest)
                low += sizes.x[last + 1] + sizes.held[last]
                splits = min(last, sizes.reach[first] + 1) - first
                if low < top and splits > 0:
                    total = sums[:splits, low:]
                    np.add(best[first][:splits, low:], after[first + 1 :][:splits, low:], out=total)
                    np.minimum.reduce(total, axis=0, out=row[low:])
                    row[low:] -= before[first]
                if sizes.may_keep(first, last, store_all):
                    low = max(low, sizes.leaf[first], sizes.saved[first])
                    if low < top:
                        rest = best[first + 1][last - first - 1]
                        kept = rest[low - sizes.saved[first] : top - sizes.saved[first]]
                        kept = kept + (chain.forward[first] + chain.backward[first])
                        np.minimum(row[low:], kept, out=row[low:])
            if sizes.x[first] < top:
                np.add(
                    row[: top - sizes.x[first]], before[first], out=after[first][sizes.x[first] :]
                )
        if progress is not None and time.monotonic() - said > 1.0:
            said = time.monotonic()
            progress(f"solved for {last + 1} of {loss + 1} stages")
    return table
