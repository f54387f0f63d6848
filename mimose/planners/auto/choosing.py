"""The choice of one menu entry a block, so that a step fits and takes the least time."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add

import numpy as np

from mimose.costs import Peak, Profile, grown_gradients
from mimose.plan import Plan, Region, Remade
from mimose.planners.auto.fits import Inside
from mimose.planners.mimose.forecast import Forecast
from mimose.planners.mimose.scheduler import Scheduled, schedule
from mimose.planners.mimose.storages import Packed
from mimose.records import ModelInfo, Situation
from mimose.solvers import choice
from mimose.solvers.choice import Menu
from mimose.solvers.menu import Vector
from mimose.solvers.packing import LARGE, LARGE_SEGMENT, SMALL

_ROUNDS = 8
_SLACK, _LEAST = 0.005, 0.001
"""Shares of what may be kept: so much room left over is worth another try, and it gets so much less
where there was none."""

_UNDER_WAY = 2
"""Of so many blocks at most what they send away is under way at once."""
_SMALLEST_COPY = 1 << 20
"""Bytes; what is smaller takes as long to submit as to copy."""
_OVERLAP = 0.8
"""Share of a block's forward that copies of what the block before sends away may take: what else
there is to wait for is not known."""

Dropped = tuple[int, ...]
Entry = tuple[float, float, tuple[Dropped, Dropped] | None]
"""Bytes kept, seconds, and which values are dropped and which offloaded; None recomputes all."""


@dataclass(frozen=True, slots=True)
class InsideForecast(Forecast):
    """Predictions for one size, the insides of blocks included.

    Attributes:
        inside: What is inside each block of which that is known.
    """

    inside: Mapping[int, Inside] = field(default_factory=dict)

    def let_go(self, plan: Plan) -> Mapping[int, Sequence[int]]:
        """Return, for each block that lets values go, the bytes of each.

        What the last block sends to the host comes back as soon as the forward pass is over.
        """
        known = [r for r in plan.remade if r.block in self.inside]
        last = max((r.block for r in known if r.offloaded), default=-1)
        gone = {r.block: (*r.dropped, *(() if r.block == last else r.offloaded)) for r in known}
        return {b: self.inside[b].bytes[[*v]].astype(int).tolist() for b, v in gone.items() if v}

    def packed(self, plan: Plan) -> Packed:
        """Return how the blocks' tensors lie in segments at that peak.

        A tensor beyond a mebibyte that is there for a moment only is in no block's list. If there
        is none beside it, it has a segment to itself, which no smaller one may lie in.
        """
        packed = super(InsideForecast, self).packed(plan)
        held = packed.segments
        if held is None or held.medium or not self._has_medium():
            return packed
        return Packed(replace(held, medium=1), packed.waste_bytes + LARGE_SEGMENT)

    def _has_medium(self) -> bool:
        """Whether a value is too large for a segment of small ones, and too small for its own."""
        bytes_of = {id(inside.bytes): inside.bytes for inside in self.inside.values()}
        return any(((b > SMALL) & (b < LARGE)).any() for b in bytes_of.values())

    def peak(self, plan: Plan, info: ModelInfo, situation: Situation) -> Peak:
        """Return the predicted peak of a step that carries out ``plan``."""
        if not any(r.offloaded for r in plan.remade):
            return super(InsideForecast, self).peak(plan, info, situation)
        leaving = self._leaving(plan)
        profile = self.profile
        forecast = InsideForecast(
            replace(
                profile,
                kept_peak=tuple(map(add, profile.kept_peak, leaving)),
                checkpoint_peak=tuple(map(add, profile.checkpoint_peak, leaving)),
                head_peak=profile.head_peak + leaving[-1],
                loss_peak=profile.loss_peak + leaving[-1] if profile.loss_peak else 0,
                after_peak=profile.after_peak + leaving[-1] if profile.after_peak else 0,
            ),
            self.packing,
            self.inside,
        )
        return super(InsideForecast, forecast).peak(plan, info, situation)

    def _leaving(self, plan: Plan) -> list[int]:
        """Return what is on its way to the host in each block's forward, and at the head.

        Of what the last block sends away nothing counts as gone; see :meth:`let_go`.
        """
        away = {
            r.block: int(self.inside[r.block].bytes[[*r.offloaded]].sum())
            for r in plan.remade
            if r.offloaded and r.block in self.inside
        }
        last = max(away, default=-1)
        found, under_way = [], [0] * _UNDER_WAY
        for block in range(plan.num_blocks):
            found.append(sum(under_way))
            if block in away:
                under_way = [*under_way[1:], away[block] if block != last else 0]
        return [*found, sum(under_way)]

    def rises(self, plan: Plan) -> Mapping[int, int]:
        """Return by how much more the backward of such a block takes than of a recomputed one.

        Beside it comes back what the block before has sent to the host.
        """
        rises = {}
        returning = 0
        for r in plan.remade:
            inside = self.inside.get(r.block)
            if inside is None:
                continue
            rises[r.block] = self.rise(r.block, r.dropped) if r.dropped else 0
            if r.offloaded:
                rises[r.block] += returning
                returning = int(inside.bytes[[*r.offloaded]].sum())
        return rises

    def holding(self, plan: Plan) -> Collection[int]:
        """Return which of those blocks may hold their input, to make something again from it."""
        return frozenset(
            r.block
            for r in plan.remade
            if r.block not in self.inside or self.inside[r.block].fit.holds(r.dropped)
        )

    def rise(self, block: int, dropped: Dropped) -> int:
        """Return that for one block and the values that it drops."""
        return self.inside[block].rise(dropped)


class Offers:
    """The menus of a step's blocks.

    Args:
        forecast: What the step is predicted to take.
        candidates: Blocks that may be recomputed.
        bandwidth: Bytes a second that can be sent to the host and back; None if nothing is to be.

    Attributes:
        menus: The menus. Blocks that are alike share one.
        of: For each block its menu's place.
        prices: What recomputing each candidate takes.
    """

    def __init__(
        self,
        forecast: InsideForecast,
        candidates: Sequence[int],
        bandwidth: float | None = None,
    ) -> None:
        self._bandwidth = bandwidth
        self.menus: list[Menu] = []
        self._going: list[list[tuple[Dropped, Dropped] | None]] = []
        self._graphs: list[str] = []
        count = forecast.profile.num_blocks
        self.of = [0] * count
        self.prices = _prices(forecast, candidates)
        freed = forecast.profile.freed or (0,) * count
        places: dict[object, int] = {}
        for block, activation in enumerate(forecast.profile.activation):
            inside = forecast.inside.get(block) if block in self.prices else None
            price = self.prices.get(block)
            # The last block's backward comes first: what it sent away would be back at once.
            last = block == count - 1
            key = (inside and id(inside.fit), activation, freed[block], price, last)
            place = places.get(key)
            if place is None:
                place = places[key] = len(self.menus)
                self._add(activation, freed[block], price, inside, last=last)
            self.of[block] = place

    def _add(
        self,
        activation: int,
        freed: int,
        price: float | None,
        inside: Inside | None,
        *,
        last: bool,
    ) -> None:
        """Add the menu of a block."""
        entries: list[Entry] = [(activation, 0.0, ((), ()))]
        if price is not None:
            if inside is not None:
                front = inside.fit.candidates.front(inside.bytes, inside.seconds, freed)
                sets = inside.fit.candidates.sets
                kept = (activation - front.freed).tolist()
                entries += [
                    (max(k, 0.0), s, (sets[p], ()))
                    for p, k, s in zip(front.places.tolist(), kept, front.seconds.tolist())
                    if s < price and k < activation
                ]
                if self._bandwidth is not None and not last:
                    room = room_to_send(price, self._bandwidth)
                    entries = [_offloading(e, inside, room) for e in entries]
            if activation > 0:
                entries.append((0.0, price, None))
        # Most memory first and no faster than the next; then the other way round.
        chosen = entries[:1]
        for entry in entries[1:]:
            if entry[0] < chosen[-1][0]:
                chosen.append(entry)
        chosen.reverse()
        self.menus.append(Menu(np.array([e[0] for e in chosen]), np.array([e[1] for e in chosen])))
        self._going.append([e[2] for e in chosen])
        self._graphs.append("" if inside is None else inside.fit.graph.digest)

    @property
    def num_entries(self) -> int:
        """How many entries all blocks have."""
        return sum(len(self.menus[place].kept) for place in self.of)

    def plan(self, chosen: Sequence[int]) -> Plan:
        """Return the plan of the chosen entries."""
        regions, remade = [], []
        for block, (place, entry) in enumerate(zip(self.of, chosen)):
            going = self._going[place][entry]
            if going is None:
                regions.append(Region(block, block))
            elif any(going):
                remade.append(Remade(block, *going, self._graphs[place]))
        return Plan(len(self.of), tuple(regions), (), tuple(remade))


def choose(
    forecast: Forecast,
    info: ModelInfo,
    situation: Situation,
    allowed_bytes: int,
    candidates: Sequence[int],
) -> Scheduled:
    """Return the plan of the least time that fits into ``allowed_bytes``.

    Mimose's own plan is made as well, and stays where nothing better is found, so that none that
    is predicted to be slower is ever returned.

    Args:
        forecast: What the step is predicted to take.
        info: The model.
        situation: The state at the start of the step.
        allowed_bytes: Bound on the predicted peak and what is lost to packing at it.
        candidates: Blocks that may be recomputed.
    """
    plain = schedule(forecast, info, situation, allowed_bytes, candidates)
    if (
        plain.plan.keeps_all
        or not isinstance(forecast, InsideForecast)
        or not forecast.inside
        or min((forecast.profile.forward_seconds[b] for b in candidates), default=0.0) <= 0
    ):
        return plain
    offers = Offers(forecast, candidates, info.copy_bandwidth)
    weighed = plain.candidates + offers.num_entries
    best = plain._replace(candidates=weighed)
    fits = plain.peak.bytes + plain.packed.waste_bytes <= allowed_bytes
    least = sum(offers.prices[b] for b in plain.plan.recomputed) if fits else float("inf")
    room = _room(forecast.profile, info, situation)
    search = _Search(float(allowed_bytes - situation.resident_bytes - plain.packed.waste_bytes))
    for _ in range(_ROUNDS):
        found = choice.choose(offers.menus, offers.of, room + search.bytes)
        if found is None:
            break
        seconds = choice.seconds_of(offers.menus, offers.of, found)
        plan = offers.plan(found)
        peak, packed = forecast.peak(plan, info, situation), forecast.packed(plan)
        weighed += forecast.profile.num_blocks
        left = allowed_bytes - peak.bytes - packed.waste_bytes
        if left >= 0 and seconds < least:
            best, least = Scheduled(plan, peak, packed, weighed), seconds
        if plan.keeps_all or not search.goes_on(left):
            break
    return best._replace(candidates=weighed)


def _offloading(entry: Entry, inside: Inside, room: float) -> Entry:
    """Return an entry that sends to the host what of the rest takes no longer than ``room`` bytes.

    Args:
        entry: An entry that drops values only.
        inside: What is inside the block.
        room: The bytes that can be copied while the next block runs.
    """
    kept, seconds, going = entry
    assert going is not None, "what is recomputed has nothing to send"
    chosen = sent_away(inside, going[0], room)
    if not chosen:
        return entry
    more = float(inside.bytes[[*chosen]].sum())
    return max(kept - more, 0.0), seconds, (going[0], chosen)


def room_to_send(seconds: float, bandwidth: float) -> float:
    """Return the bytes that can be copied, there and back, while the next block's forward runs.

    Args:
        seconds: What that takes.
        bandwidth: Bytes a second.
    """
    return _OVERLAP * seconds * bandwidth


def sent_away(inside: Inside, dropped: Dropped, room: float) -> Dropped:
    """Return which values go to the host beside those that are dropped, the largest first in.

    Args:
        inside: What is inside the block.
        dropped: Values that go anyway.
        room: Most bytes.
    """
    graph = inside.fit.graph
    rest = sorted(graph.saved - graph.fixed - set(dropped), key=lambda v: -inside.bytes[v])
    chosen, left = list[int](), room
    for value in rest:
        if _SMALLEST_COPY <= inside.bytes[value] <= left:
            chosen.append(value)
            left -= inside.bytes[value]
    return tuple(sorted(chosen))


class _Search:
    """Looks for the most bytes to choose for, so that what is chosen fits.

    What a plan takes beside what it keeps depends on the plan: input that is held meanwhile, and
    what is lost between tensors, which falls by whole segments.

    Attributes:
        bytes: The bytes to choose for now.
    """

    def __init__(self, start: float) -> None:
        self.bytes = start
        self._fitting: float | None = None
        self._too_much: float | None = None
        self._stride = 1.0

    def goes_on(self, left: float) -> bool:
        """Take note of what was left by a choice (less than 0: it was too much), and move on."""
        enough = _SLACK * abs(self.bytes)
        if left >= 0:
            if left <= enough:
                return False
            self._fitting = self.bytes
            target = self.bytes + left
        else:
            self._too_much = self.bytes
            # A little less may be the same choice again.
            target = self.bytes - self._stride * max(-left, _LEAST * abs(self.bytes))
            self._stride *= 2
        if self._fitting is not None and self._too_much is not None:
            if self._too_much - self._fitting <= enough:
                return False
            if not self._fitting < target < self._too_much:
                target = (self._fitting + self._too_much) / 2
        self.bytes = target
        return True


def _prices(forecast: InsideForecast, candidates: Sequence[int]) -> dict[int, float]:
    """Return what recomputing each candidate takes: for blocks that are alike their mean."""
    seconds = forecast.profile.forward_seconds
    prices = {b: seconds[b] for b in candidates}
    groups: dict[int, list[int]] = {}
    for block in candidates:
        if block in forecast.inside:
            groups.setdefault(id(forecast.inside[block].fit), []).append(block)
    for blocks in groups.values():
        mean = sum(seconds[b] for b in blocks) / len(blocks)
        prices.update(dict.fromkeys(blocks, mean))
    return prices


def _room(profile: Profile, info: ModelInfo, situation: Situation) -> Vector:
    """Return, for each block and the end of the forward pass, minus the level without activations.

    What blocks before it keep comes on top, at most until the bytes that a step may take.
    """
    count = profile.num_blocks
    grown: Sequence[int] = (0,) * (count + 1)
    if not situation.grads_resident:
        grown = grown_gradients(info, count)
    level = np.array(profile.level, np.float64)
    backward = np.array(profile.backward_peak, np.float64) + grown[:-1]
    # Whether a block is kept is not known yet: the lesser of both, and the peak model judges.
    forward = level + np.minimum(profile.kept_peak, profile.checkpoint_peak)
    if profile.passed:
        forward[1:] -= profile.passed[:-1]
    head = max(profile.head_peak + grown[-1], profile.loss_peak, profile.after_peak)
    return -np.append(np.maximum(backward, forward), head)
