"""What a step costs in bytes and seconds, by size, and whether a plan for it fits.

A :class:`Profile` holds, for one size, the memory levels of a step in which *every block is
recomputed on its own* and all gradients are resident. Memory adds up, so the level of any other
plan at any moment is that level plus the activations that the plan keeps alive then (less what it
lets go of them), minus the outputs inside its regions, plus the gradients grown so far if they were
not resident. That makes
:func:`predict_peak` exact up to what the profile itself misses, and it serves every planner.

Recomputing the block whose backward comes first frees nothing (its activations are back at once),
which the timeline shows by itself.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import add, sub

from mimose.plan import Plan, Region
from mimose.records import ModelInfo, Situation
from mimose.schedule import BlockPlan, Moment, Schedule


class Infeasible(Exception):  # noqa: N818 - a result of planning, not a fault
    """No allowed plan keeps the step within the budget.

    Attributes:
        least_budget_bytes: The least budget that would do.
    """

    def __init__(self, message: str, least_budget_bytes: int) -> None:
        super().__init__(message)
        self.least_budget_bytes = least_budget_bytes


@dataclass(frozen=True, slots=True)
class Profile:
    """Memory levels and times of one step at one size. See the module's text for the convention.

    Sequences have one entry a block, in forward order. Levels are bytes above the start of the
    step; ``kept_peak``, ``checkpoint_peak``, ``activation`` and ``output`` are bytes above the
    level before the block's forward.

    ``activation`` is what a kept block holds from the end of the model's forward to its own
    backward. Until then it may hold more or less, ``forward_activation``: autocast's copies of its
    weights are in all later levels anyway while autocast is on, and its input may be held by its
    caller. ``freed`` is the part of its input that is gone when its backward comes, since it is
    kept and saves none of it; a recomputed block holds its input. ``shared`` are inputs that
    several blocks take, at the first of them; they are taken to be gone unless that one or a later
    block is recomputed. ``loss_peak`` is the part of ``head_peak`` that is still forward, as long
    as blocks' inputs are held, and ``after_peak`` the rest of that part. Without these a block's
    inputs stay, whatever the plan. ``passed`` is the part of its activation that the next block's
    level holds in any case: what its caller was given and holds until then.
    ``measuring`` is by how much more a recomputed block's backward takes in a step that measures
    beside its plan, in which the block runs again to its end.

    Times and FLOPs are there where a planner asked for a profile of its own; mimose's estimator
    predicts forward times only. ``recompute_*`` is what running the block again for its own
    backward takes: less than its forward, since that stops at the last tensor that is needed.
    ``outside_*`` is the rest of the step's forward and backward pass.
    """

    activation: tuple[int, ...]
    output: tuple[int, ...]
    level: tuple[int, ...]
    kept_peak: tuple[int, ...]
    checkpoint_peak: tuple[int, ...]
    backward_peak: tuple[int, ...]
    forward_seconds: tuple[float, ...]
    first_peak: int
    head_peak: int
    tail_peak: int
    optimizer_peak: int
    optimizer_state: int = 0
    recompute_seconds: tuple[float, ...] = ()
    backward_seconds: tuple[float, ...] = ()
    outside_seconds: float = 0.0
    forward_flops: tuple[int, ...] = ()
    recompute_flops: tuple[int, ...] = ()
    backward_flops: tuple[int, ...] = ()
    outside_flops: int = 0
    forward_activation: tuple[int, ...] = ()
    freed: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()
    loss_peak: int = 0
    after_peak: int = 0
    passed: tuple[int, ...] = ()
    measuring: tuple[int, ...] = ()

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.activation)

    def measured(self) -> Profile:
        """Return the profile of a step that measures beside its plan."""
        if not self.measuring:
            return self
        backward = tuple(map(add, self.backward_peak, self.measuring))
        return replace(self, backward_peak=backward, measuring=())


@dataclass(frozen=True, slots=True)
class Peak:
    """A predicted peak of allocated bytes, resident bytes included, and where it falls."""

    bytes: int
    where: str


def grown_gradients(info: ModelInfo, num_blocks: int) -> tuple[int, ...]:
    """Return how many bytes of gradients may exist in each block's backward, at most.

    Entry ``i`` is for the backward of block ``i``: its own gradients and those of later blocks;
    entry ``num_blocks`` is for the head, before any block's. Gradients outside the blocks count
    from the head on, since a tied embedding's gradient is born there. Entry 0 is all of them.
    """
    grads = info.grad_bytes if len(info.grad_bytes) == num_blocks else (0,) * num_blocks
    grown = list(accumulate(reversed(grads), initial=info.other_grad_bytes))
    grown.reverse()
    return tuple(grown)


def recomputation(
    plan: BlockPlan, whole: Sequence[float], leaf: Sequence[float], cuts: Container[int] = ()
) -> float:
    """Return the sum of what a plan runs again.

    Args:
        plan: The plan; a tree is taken to be cut already.
        whole: For each block, what a run to its end costs.
        leaf: For each block, what a run for its own backward alone costs, which stops early.
        cuts: Blocks whose input is kept as the model gave it, whatever a schedule says.
    """
    if isinstance(plan, Plan):
        return sum(_again(region, whole, leaf) for region in plan.regions)
    return sum(
        (leaf if moment.ends_early(cuts) else whole)[moment.block]
        for moment in plan.moments()
        if not (moment.backward or moment.first or moment.idle(cuts))
    )


def _again(region: Region, whole: Sequence[float], leaf: Sequence[float]) -> float:
    cost, end, last = 0.0, region.first, region.last
    for inner in region.inner:
        cost += sum(whole[end : inner.first])
        if inner.last != last:
            cost += sum(whole[inner.first : inner.last + 1])
        cost += _again(inner, whole, leaf)
        end = inner.last + 1
    if end <= last:
        cost += sum(whole[end:last]) + leaf[last]
    return cost


def predict_seconds(profile: Profile, plan: BlockPlan, cuts: Container[int] = ()) -> float:
    """Return how long a step's two passes take under ``plan``.

    ``cuts`` are as in :func:`recomputation`.
    """
    once = sum(profile.forward_seconds) + sum(profile.backward_seconds) + profile.outside_seconds
    return once + recomputation(plan, profile.forward_seconds, profile.recompute_seconds, cuts)


def predict_backward_flops(profile: Profile, plan: BlockPlan, cuts: Container[int] = ()) -> int:
    """Return the FLOPs of the blocks' backward under ``plan``, recomputation included.

    ``cuts`` are as in :func:`recomputation`.
    """
    again = recomputation(plan, profile.forward_flops, profile.recompute_flops, cuts)
    return sum(profile.backward_flops) + round(again)


def predict_peak(
    profile: Profile,
    plan: BlockPlan,
    info: ModelInfo,
    situation: Situation,
    let_go: Mapping[int, int] | None = None,
    rises: Mapping[int, int] | None = None,
    holding: Collection[int] = (),
) -> Peak:
    """Return the highest level of allocated bytes in a step that carries out ``plan``.

    The maximum over the timeline: before the first block; each block's forward; the head; each
    region's recomputation and each block's backward, last block first; the end of backward; the
    optimizer step. One pass over the blocks for one-block regions; one pass a level of nesting
    otherwise.

    Args:
        profile: Costs of the step at its size.
        plan: What is recomputed.
        info: The model; its gradient bytes count where ``situation`` says that they grow, and its
            cuts where a schedule would let an output go that something else still holds.
        situation: The state at the start of the step.
        let_go: For blocks that are remade, the bytes of their activations that are not kept. Those
            that are not named let nothing go. What such a one does not save of its input is gone
            all the same, unless something is made again from it.
        rises: For blocks that are remade, by how many bytes their backward takes more than that of
            a recomputed one; as much if they are not named.
        holding: Those remade blocks that hold their input like a recomputed one, to make something
            again from it.

    Raises:
        ValueError: If plan and profile have different numbers of blocks.
    """
    count = profile.num_blocks
    if plan.num_blocks != count:
        raise ValueError(f"the plan covers {plan.num_blocks} blocks, the profile {count}")
    grown = None if situation.grads_resident else grown_gradients(info, count)
    if isinstance(plan, Schedule):
        return _ScheduleTimeline(profile, grown, info.cuts or ()).run(plan, situation)
    if plan.remade:
        profile = _letting_values_go(profile, plan, let_go or {}, rises or {}, holding)
    kept = list(profile.activation)
    adding = list(profile.forward_activation)
    forward = list(profile.kept_peak)
    freed = list(profile.freed)
    passed = list(profile.passed)
    for region in plan.regions:
        first = region.first
        if first != region.last:
            return _Timeline(profile, grown).run(plan, situation, holding)
        kept[first] = 0
        forward[first] = profile.checkpoint_peak[first]
        if adding:
            adding[first] = 0
        if freed:
            freed[first] = 0
        if passed:
            passed[first] = 0
    if profile.shared and not adding:
        adding = list(kept)  # What is shared is held until the forward pass is over.
    for block in _letting_go(profile, plan, holding):
        kept[block] -= profile.shared[block]

    # One-block regions only: no output is dropped, and a block's backward costs the same whether
    # its activations were kept or have just come back, but for its input.
    bases = list(accumulate(kept, initial=0))
    before = list(accumulate(adding, initial=0)) if adding else bases
    backward_peak: Sequence[int] = profile.backward_peak
    if grown is not None:
        backward_peak = list(map(add, backward_peak, grown))
    if freed:
        backward_peak = list(map(sub, backward_peak, freed))
    forwards = list(map(add, map(add, profile.level, before), forward))
    if passed:
        forwards[1:] = map(sub, forwards[1:], passed)
    backwards = list(map(add, backward_peak, bases))
    highest_forward, highest_backward = max(forwards), max(backwards)
    top, where = _outside(profile, before[-1], bases[-1], grown, situation)
    if highest_forward > top:
        top, where = highest_forward, f"forward of block {forwards.index(highest_forward)}"
    if highest_backward > top:
        top, where = highest_backward, f"backward of block {backwards.index(highest_backward)}"
    return Peak(situation.resident_bytes + top, where)


def _letting_values_go(
    profile: Profile,
    plan: Plan,
    let_go: Mapping[int, int],
    rises: Mapping[int, int],
    holding: Collection[int],
) -> Profile:
    """Return the profile of a step whose kept blocks keep less of their activations."""
    activation, forward = list(profile.activation), list(profile.forward_activation)
    freed = list(profile.freed)
    backward = list(profile.backward_peak)
    for block, rise in rises.items():
        backward[block] += rise
    for block in (r.block for r in plan.remade):
        less = before = let_go.get(block, 0)
        if freed and block in holding:
            # What was gone is held now; what its caller holds is in the forward levels anyway.
            less -= freed[block]
            late = max(0, forward[block] - activation[block]) if forward else 0
            before -= max(0, freed[block] - late)
            freed[block] = 0
        activation[block] = max(0, activation[block] - less)
        if forward:
            forward[block] = max(0, forward[block] - before)
    return replace(
        profile,
        activation=tuple(activation),
        freed=tuple(freed),
        forward_activation=tuple(forward),
        backward_peak=tuple(backward),
    )


def _outside(
    profile: Profile, before: int, base: int, grown: Sequence[int] | None, situation: Situation
) -> tuple[int, str]:
    """Return the highest level outside all blocks.

    What the plan adds at the head is ``before`` in the forward pass and ``base`` from then on.
    """
    at_head, at_end = (0, 0) if grown is None else (grown[-1], grown[0])
    optimizer = profile.optimizer_peak + at_end
    if not situation.optimizer_ready:
        optimizer += profile.optimizer_state
    top, where = profile.head_peak + base + at_head, "head"
    if profile.loss_peak + before > top:
        top = profile.loss_peak + before
    if profile.after_peak and profile.after_peak + base > top:
        top = profile.after_peak + base
    if profile.first_peak > top:
        top, where = profile.first_peak, "before the first block"
    if profile.tail_peak + at_end > top:
        top, where = profile.tail_peak + at_end, "end of backward"
    if optimizer > top:
        top, where = optimizer, "optimizer step"
    return top, where


class _Timeline:
    """Runs any plan through a profile and remembers the highest level.

    ``base`` throughout is what the plan adds to the profile's own levels: activations kept so far
    less outputs dropped so far.
    """

    def __init__(self, profile: Profile, grown: Sequence[int] | None) -> None:
        self.profile = profile
        self.grown = (0,) * (profile.num_blocks + 1) if grown is None else grown
        self.top = -1
        self.where = ""

    def run(self, plan: Plan, situation: Situation, holding: Collection[int] = ()) -> Peak:
        items = _items(plan.regions, 0, plan.num_blocks - 1)
        profile = self.profile
        adding = profile.forward_activation or profile.activation
        before = self.forward(items, 0, 0, "forward of block {}", adding)
        bases = _bases(profile, plan, items, holding)
        self.backward(items, bases)
        grown = None if situation.grads_resident else self.grown
        top, where = _outside(profile, before[-1], bases[-1], grown, situation)
        if self.top > top:
            top, where = self.top, self.where
        return Peak(situation.resident_bytes + top, where)

    def see(self, level: int, where: str, number: int) -> None:
        if level > self.top:
            self.top, self.where = level, where.format(number)

    def forward(
        self,
        items: Sequence[Region | int],
        base: int,
        extra: int,
        name: str,
        adding: Sequence[int],
    ) -> list[int]:
        """Run ``items`` once; return the base before each of them and after the last.

        ``adding`` is what each block adds to it if it is kept.
        """
        profile, bases = self.profile, [base]
        twice = 0  # What the block before has passed on is in the base and in the level.
        for item in items:
            if isinstance(item, int):
                level = profile.level[item] + base + extra - twice
                self.see(level + profile.kept_peak[item], name, item)
                base += adding[item]
                twice = profile.passed[item] if profile.passed else 0
            else:
                dropped = previous = 0
                for block in range(item.first, item.last + 1):
                    # A block's input lives until the block is done; earlier ones are gone.
                    level = profile.level[block] + base + extra - dropped - twice
                    twice = 0
                    self.see(level + profile.checkpoint_peak[block], name, block)
                    dropped += previous
                    previous = profile.output[block]
                base -= dropped
            bases.append(base)
        return bases

    def backward(self, items: Sequence[Region | int], bases: Sequence[int]) -> None:
        """Go back through ``items``, each of which left its base in ``bases``."""
        profile, grown = self.profile, self.grown
        for item, base in zip(reversed(items), reversed(bases[:-1])):
            if isinstance(item, int) or item.first == item.last:
                block = item if isinstance(item, int) else item.first
                level = profile.backward_peak[block] + base + grown[block]
                if profile.freed and isinstance(item, int):
                    level -= profile.freed[item]
                self.see(level, "backward of block {}", block)
                continue
            inner = _items(item.inner, item.first, item.last)
            # Recomputation stops at the input of its last item, whose own backward goes on from
            # there.
            extra = held_meanwhile(profile, grown, item.last)
            name = "recomputation of block {}"
            before = self.forward(inner[:-1], base, extra, name, profile.activation)
            self.backward(inner, [*before, 0])


class _ScheduleTimeline:
    """Runs an explicit schedule through a profile and remembers the highest level.

    The profile's levels hold the outputs of all blocks before the one at hand and no activations.
    """

    def __init__(self, profile: Profile, grown: Sequence[int] | None, cuts: Sequence[int]) -> None:
        self.profile = profile
        # A schedule may have dropped a block's input already: what is freed is not counted twice.
        self.activation: Sequence[int] = profile.activation
        if profile.freed:
            self.activation = list(map(add, profile.activation, profile.freed))
        self.no_growth = grown is None
        self.grown = (0,) * (profile.num_blocks + 1) if grown is None else grown
        self.cuts = frozenset(cuts)
        self.pinned = frozenset(c - 1 for c in cuts)

    def run(self, schedule: Schedule, situation: Situation) -> Peak:
        top, where = -1, ""
        at_head: int | None = None
        for moment in schedule.moments():
            level, what = self.level(moment)
            if level > top:
                top, where = level, what
            if at_head is None and moment.stage is not None:
                at_head = self.before(moment, schedule.num_blocks - 1)
        assert at_head is not None, "every schedule has a backward"
        grown = None if self.no_growth else self.grown
        outside, what = _outside(self.profile, at_head, at_head, grown, situation)
        if outside > top:
            top, where = outside, what
        return Peak(situation.resident_bytes + top, where)

    def base(self, moment: Moment) -> int:
        """Return what the schedule adds to the profile's level before a block, at a moment."""
        profile, block = self.profile, moment.block
        base = self.before(moment, block)
        if moment.backward:
            base -= self.activation[block]
        # While something is run again, outputs behind it may be waiting for their own use.
        if not moment.first and not moment.backward:
            base += sum(profile.output[b] for b in moment.outputs if b >= block)
        return base

    def before(self, moment: Moment, block: int) -> int:
        """Return activations held at a moment, less outputs not held of what precedes a block."""
        profile, outputs = self.profile, moment.outputs | self.pinned
        dropped = sum(profile.output[b] for b in range(block) if b not in outputs)
        return sum(self.activation[b] for b in moment.saved) - dropped

    def level(self, moment: Moment) -> tuple[int, str]:
        profile, block = self.profile, moment.block
        if moment.backward:
            level = profile.backward_peak[block] + self.base(moment) + self.grown[block]
            return level, f"backward of block {block}"
        if moment.idle(self.cuts):
            return -1, ""
        if moment.stage == block and moment.saves:
            return -1, ""  # Part of its backward, whose peak was measured with it.
        running = profile.kept_peak if moment.saves else profile.checkpoint_peak
        level = profile.level[block] + self.base(moment) + running[block]
        if moment.first:
            return level, f"forward of block {block}"
        if moment.stage is not None:
            level += held_meanwhile(profile, self.grown, moment.stage)
        return level, f"recomputation of block {block}"


def held_meanwhile(profile: Profile, grown: Sequence[int], last: int) -> int:
    """Return what is held beside the blocks while they are recomputed for block ``last``'s sake.

    The gradient at its output, and whatever the step holds outside the blocks: its own
    recomputation, which stops short of its output, bounds both.
    """
    recomputing = profile.level[last] + profile.kept_peak[last] - profile.output[last]
    held = profile.backward_peak[last] - recomputing
    return max(held, profile.output[last]) + grown[last + 1]


def _letting_go(profile: Profile, plan: Plan, holding: Collection[int]) -> range:
    """Return the blocks of whose shared inputs nothing is held in backward."""
    if not profile.shared:
        return range(0)
    first = plan.regions[-1].last + 1 if plan.regions else 0
    first = max(first, max(holding, default=-1) + 1)
    return range(first, profile.num_blocks)


def _bases(
    profile: Profile, plan: Plan, items: Sequence[Region | int], holding: Collection[int]
) -> list[int]:
    """Return what a plan adds to the levels before each item and after the last, in backward."""
    bases, letting_go = [0], _letting_go(profile, plan, holding)
    for item in items:
        if isinstance(item, int):
            shared = profile.shared[item] if item in letting_go else 0
            bases.append(bases[-1] + profile.activation[item] - shared)
        else:
            bases.append(bases[-1] - sum(profile.output[item.first : item.last]))
    return bases


def _items(regions: Sequence[Region], first: int, last: int) -> list[Region | int]:
    """Return blocks ``first..last`` as kept blocks (their numbers) and regions, in order."""
    items: list[Region | int] = []
    position = first
    for region in regions:
        items.extend(range(position, region.first))
        items.append(region)
        position = region.last + 1
    items.extend(range(position, last + 1))
    return items
