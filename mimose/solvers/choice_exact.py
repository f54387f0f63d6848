"""The optimum of :mod:`mimose.solvers.choice`'s problem, for tests and benches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from mimose.solvers import highs
from mimose.solvers.choice import Menu, Vector, seconds_of

MOST_TRIED = 200_000


def by_trying_all(
    menus: Sequence[Menu], block_menus: Sequence[int], room: Vector
) -> list[int] | None:
    """Return a fastest choice, None if none fits; arguments as for :func:`choice.choose`.

    Raises:
        ValueError: If there are more than :data:`MOST_TRIED` choices.
    """
    numbers = [range(len(menus[m].kept)) for m in block_menus]
    if np.prod([float(len(n)) for n in numbers]) > MOST_TRIED:
        raise ValueError(f"there are more than {MOST_TRIED} choices: take fewer blocks or entries")
    best: tuple[float, list[int]] | None = None
    if room[0] < 0:
        return None
    for chosen in itertools.product(*numbers):
        kept = np.cumsum([menus[m].kept[c] for m, c in zip(block_menus, chosen)])
        if (kept > room[1:]).any():
            continue
        seconds = seconds_of(menus, block_menus, chosen)
        if best is None or seconds < best[0]:
            best = seconds, list(chosen)
    return None if best is None else best[1]


def by_integer_program(
    menus: Sequence[Menu],
    block_menus: Sequence[int],
    room: Vector,
    *,
    time_limit: float = 60.0,
    gap: float = 1e-6,
) -> list[int] | None:
    """Return the fastest choice that HiGHS finds, None if none fits.

    Args:
        menus: As for :func:`choice.choose`.
        block_menus: Likewise.
        room: Likewise.
        time_limit: Seconds after which the best choice so far counts.
        gap: Share by which it may be off.
    """
    if room[0] < 0:
        return None
    # Numbers near 1, since the solver's tolerances are absolute ones.
    unit = max(float(room.max()), 1.0)
    second = max(max(float(m.seconds.max()) for m in menus), 1e-12)
    problem = highs.Problem()
    columns: list[list[int]] = []
    so_far: list[tuple[int, float]] = []
    for place, bound in zip(block_menus, room[1:].tolist()):
        menu = menus[place]
        own = [problem.column(s / second, integer=True) for s in menu.seconds.tolist()]
        problem.row([(c, 1.0) for c in own], 1.0, 1.0)
        so_far += zip(own, (menu.kept / unit).tolist())
        problem.row(list(so_far), upper=bound / unit)
        columns.append(own)
    answer = highs.solve(problem, time_limit=time_limit, gap=gap)
    if answer.values is None:
        return None
    return [int(np.argmax(answer.values[own])) for own in columns]
