"""What a step costs in bytes and seconds, by size, and whether a plan for it fits.

A :class:`Profile` holds, for one size, the memory levels of a step in which *every block is
recomputed on its own* and all gradients are resident. Memory adds up, so the level of any other
plan at any moment is that level plus the activations that the plan keeps alive then, minus the
outputs inside its regions, plus the gradients grown so far if they were not resident. That makes
:func:`predict_peak` exact up to what the profile itself misses, and it serves every planner.

Recomputing the block whose backward comes first frees nothing (its activations are back at once),
which the timeline shows by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import add

from mimose.plan import Plan, Region
from mimose.records import ModelInfo, Situation


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

    @property
    def num_blocks(self) -> int:
        """Number of blocks."""
        return len(self.activation)


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


def predict_peak(profile: Profile, plan: Plan, info: ModelInfo, situation: Situation) -> Peak:
    """Return the highest level of allocated bytes in a step that carries out ``plan``.

    The maximum over the timeline: before the first block; each block's forward; the head; each
    region's recomputation and each block's backward, last block first; the end of backward; the
    optimizer step. One pass over the blocks for one-block regions; one pass a level of nesting
    otherwise.

    Args:
        profile: Costs of the step at its size.
        plan: What is recomputed.
        info: The model; its gradient bytes count where ``situation`` says that they grow.
        situation: The state at the start of the step.

    Raises:
        ValueError: If plan and profile have different numbers of blocks.
    """
    count = profile.num_blocks
    if plan.num_blocks != count:
        raise ValueError(f"the plan covers {plan.num_blocks} blocks, the profile {count}")
    grown = None if situation.grads_resident else grown_gradients(info, count)
    kept = list(profile.activation)
    forward = list(profile.kept_peak)
    for region in plan.regions:
        if region.first != region.last:
            return _Timeline(profile, grown).run(plan, situation)
        kept[region.first] = 0
        forward[region.first] = profile.checkpoint_peak[region.first]

    # One-block regions only: no output is dropped, and a block's backward costs the same whether
    # its activations were kept or have just come back.
    bases = list(accumulate(kept, initial=0))
    backward_peak: Sequence[int] = profile.backward_peak
    if grown is not None:
        backward_peak = list(map(add, backward_peak, grown))
    forwards = list(map(add, map(add, profile.level, bases), forward))
    backwards = list(map(add, backward_peak, bases))
    highest_forward, highest_backward = max(forwards), max(backwards)
    top, where = _outside(profile, bases[-1], grown, situation)
    if highest_forward > top:
        top, where = highest_forward, f"forward of block {forwards.index(highest_forward)}"
    if highest_backward > top:
        top, where = highest_backward, f"backward of block {backwards.index(highest_backward)}"
    return Peak(situation.resident_bytes + top, where)


def _outside(
    profile: Profile, base: int, grown: Sequence[int] | None, situation: Situation
) -> tuple[int, str]:
    """Return the highest level outside all blocks; ``base`` is what the plan adds at the head."""
    at_head, at_end = (0, 0) if grown is None else (grown[-1], grown[0])
    optimizer = profile.optimizer_peak + at_end
    if not situation.optimizer_ready:
        optimizer += profile.optimizer_state
    top, where = profile.head_peak + base + at_head, "head"
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

    def run(self, plan: Plan, situation: Situation) -> Peak:
        items = _items(plan.regions, 0, plan.num_blocks - 1)
        bases = self.forward(items, 0, 0, "forward of block {}")
        self.backward(items, bases)
        grown = None if situation.grads_resident else self.grown
        top, where = _outside(self.profile, bases[-1], grown, situation)
        if self.top > top:
            top, where = self.top, self.where
        return Peak(situation.resident_bytes + top, where)

    def see(self, level: int, where: str, number: int) -> None:
        if level > self.top:
            self.top, self.where = level, where.format(number)

    def forward(self, items: Sequence[Region | int], base: int, extra: int, name: str) -> list[int]:
        """Run ``items`` once; return the base before each of them and after the last."""
        profile, bases = self.profile, [base]
        for item in items:
            if isinstance(item, int):
                self.see(profile.level[item] + base + extra + profile.kept_peak[item], name, item)
                base += profile.activation[item]
            else:
                dropped = previous = 0
                for block in range(item.first, item.last + 1):
                    # A block's input lives until the block is done; earlier ones are gone.
                    level = profile.level[block] + base + extra - dropped
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
                self.see(level, "backward of block {}", block)
                continue
            inner = _items(item.inner, item.first, item.last)
            # Recomputation stops at the input of its last item, whose own backward goes on from
            # there. The gradient at the region's output is alive meanwhile, and so is whatever the
            # step holds outside the blocks: the last block's own recomputation, which stops short
            # of its output, bounds both.
            last = item.last
            recomputing = profile.level[last] + profile.kept_peak[last] - profile.output[last]
            held = profile.backward_peak[last] - recomputing
            extra = max(held, profile.output[last]) + grown[last + 1]
            name = "recomputation of block {}"
            before = self.forward(inner[:-1], base, extra, name)
            self.backward(inner, [*before, 0])


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
