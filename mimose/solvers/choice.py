"""One entry of its menu for each block, at least time, within memory at every moment of a step.

A multiple-choice knapsack whose bounds are nested: when block ``b`` goes backward, what the blocks
before it keep is there, and so is it in its forward. With entries that may be mixed the greedy rule
is optimal (bounds on the first ``b`` items make a polymatroid): from the least memory upwards,
spend bytes where they save the most time each, on later blocks first. Whole entries come near to
it, and exchanges fill what is left.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

_MOST_EXCHANGES = 64
_GAIN = 1e-12
"""Seconds; a smaller gain is rounding."""


@dataclass(frozen=True, eq=False, slots=True)
class Menu:
    """What a block may keep and what each entry costs: least memory first, each faster than before.

    Attributes:
        kept: Bytes that stay from forward to backward.
        seconds: Time that making the rest again takes.
        steps: Entries on the lower convex hull, the first and the last included.
        gained: For each of those but the first: bytes more than the one before it.
        worth: Likewise seconds saved a byte, which fall.
    """

    kept: Vector
    seconds: Vector
    steps: NDArray[np.intp] = field(init=False)
    gained: Vector = field(init=False)
    worth: Vector = field(init=False)

    def __post_init__(self) -> None:
        steps = _hull(self.kept.tolist(), self.seconds.tolist())
        gained = np.diff(self.kept[steps])
        object.__setattr__(self, "steps", np.array(steps, np.intp))
        object.__setattr__(self, "gained", gained)
        object.__setattr__(self, "worth", -np.diff(self.seconds[steps]) / gained)


def choose(menus: Sequence[Menu], block_menus: Sequence[int], room: Vector) -> list[int] | None:
    """Return the place of each block's entry, None if even the least memory is too much.

    Args:
        menus: The menus.
        block_menus: For each block its menu's place.
        room: For each block, and then for the end of the forward pass, what blocks before it may
            keep at most.
    """
    of = np.array(block_menus, np.intp)
    least = np.array([m.kept[0] for m in menus])[of]
    slack = room[1:] - np.cumsum(least)
    if room[0] < 0 or slack.min() < 0:
        return None
    chosen = _filled(menus, of, slack)
    return _exchanged(menus, of, chosen, room)


def seconds_of(menus: Sequence[Menu], block_menus: Sequence[int], chosen: Sequence[int]) -> float:
    """Return what the chosen entries take in all."""
    return float(sum(menus[m].seconds[c] for m, c in zip(block_menus, chosen)))


def _filled(menus: Sequence[Menu], of: NDArray[np.intp], slack: Vector) -> list[int]:
    """Return the entries that the greedy rule comes to.

    Args:
        menus: The menus.
        of: For each block its menu's place.
        slack: For each block what it and those before it may keep beyond the least.
    """
    count = len(of)
    sizes = np.array([len(m.gained) for m in menus], np.intp)[of]
    blocks = np.repeat(np.arange(count), sizes)
    gained = np.concatenate([menus[m].gained for m in of])
    worth = np.concatenate([menus[m].worth for m in of])
    # Stable, so that a block's steps stay in order; later blocks first among equals.
    order = np.lexsort((-blocks, -worth))
    blocks, gained = blocks[order], gained[order]
    taken = np.zeros(count, np.intp)
    while len(blocks):
        low, high = 0, len(blocks)
        fits = slack
        while low < high:
            middle = (low + high + 1) // 2
            used = np.bincount(blocks[:middle], gained[:middle], count)
            left = slack - np.cumsum(used)
            if left.min() >= 0:
                low, fits = middle, left
            else:
                high = middle - 1
        taken += np.bincount(blocks[:low], minlength=count)
        slack = fits
        # A step that does not fit now never will, nor do those of its block behind it.
        most = np.minimum.accumulate(slack[::-1])[::-1]
        blocks, gained = blocks[low:], gained[low:]
        barred = np.zeros(count, bool)
        too_much = gained > most[blocks]
        first = np.unique(blocks, return_index=True)
        barred[first[0]] = too_much[first[1]]
        keep = ~barred[blocks]
        blocks, gained = blocks[keep], gained[keep]
    return [int(menus[m].steps[t]) for m, t in zip(of.tolist(), taken.tolist())]


def _exchanged(
    menus: Sequence[Menu], of: NDArray[np.intp], chosen: list[int], room: Vector
) -> list[int]:
    """Return entries made better by raising one block's, and lowering another's for it if need be.

    Blocks of one menu with one entry are alike but for their place: the last of them is the best
    one to keep more, the first to keep less.
    """
    places = of.tolist()
    kept = np.array([menus[m].kept[c] for m, c in zip(places, chosen)])
    slack = room[1:] - np.cumsum(kept)
    for _ in range(_MOST_EXCHANGES):
        move = _best_move(menus, places, chosen, slack)
        if not move:
            break
        for block, entry in move:
            menu = menus[places[block]]
            slack[block:] -= menu.kept[entry] - menu.kept[chosen[block]]
            chosen[block] = entry
    return chosen


def _best_move(
    menus: Sequence[Menu], places: Sequence[int], chosen: Sequence[int], slack: Vector
) -> list[tuple[int, int]]:
    """Return the blocks to change, with their new entries, that save the most time."""
    last: dict[tuple[int, int], int] = {}
    first: dict[tuple[int, int], int] = {}
    for block, state in enumerate(zip(places, chosen)):
        last[state] = block
        first.setdefault(state, block)
    most = np.minimum.accumulate(slack[::-1])[::-1]
    best, move = _GAIN, list[tuple[int, int]]()
    for (m, c), up in last.items():
        menu = menus[m]
        if c + 1 == len(menu.kept):
            continue
        more = menu.kept[c + 1 :] - menu.kept[c]
        saved = menu.seconds[c] - menu.seconds[c + 1 :]
        fitting = int(np.searchsorted(more, most[up], "right"))
        if fitting and saved[fitting - 1] > best:
            best, move = float(saved[fitting - 1]), [(up, c + fitting)]
        if fitting == len(more):
            continue
        for (n, d), down in first.items():
            if not d or down == up:
                continue
            other = menus[n]
            freed = other.kept[d] - other.kept[:d]
            lost = other.seconds[:d] - other.seconds[d]
            # The least loss that frees enough for each raise: `freed` falls with the place.
            needed = more[fitting:] - most[max(up, down)]
            if up < down:
                able = more[fitting:] <= slack[up:down].min()
                needed = np.where(able, needed, np.inf)
            place = np.searchsorted(-freed, -needed, "right") - 1
            gain = np.where(place >= 0, saved[fitting:] - lost[place], 0.0)
            at = int(gain.argmax())
            if gain[at] > best:
                best = float(gain[at])
                move = [(up, c + 1 + fitting + at), (down, int(place[at]))]
    return move


def _hull(kept: Sequence[float], seconds: Sequence[float]) -> list[int]:
    """Return the places on the lower convex hull; ``kept`` rises and ``seconds`` fall."""
    hull: list[int] = []
    for place, (x, y) in enumerate(zip(kept, seconds)):
        while len(hull) > 1:
            x0, y0 = kept[hull[-2]], seconds[hull[-2]]
            x1, y1 = kept[hull[-1]], seconds[hull[-1]]
            if (y1 - y0) * (x - x0) < (y - y0) * (x1 - x0):
                break
            hull.pop()
        hull.append(place)
    return hull
