"""What the allocator holds beyond what a step needs: the margin, and when to hand memory back.

The budget bounds reserved bytes, the peak model predicts allocated ones. Three things lie between:

- what is lost to packing tensors into segments, which follows from their sizes
  (:mod:`mimose.solvers.packing`) and is part of what a step is planned to need.
- what that estimate misses: the order of requests, temporaries, everything outside the blocks. The
  *margin* leaves room for it in every plan.
- what earlier steps left cached in pieces that this step cannot use. No plan can do anything about
  it. Handing cached memory back *before* a step does; being flushed in the middle of one is an
  allocator retry, and counts as a violation.

Reserved bytes are a high-water mark: after a long batch every short one shows the same figure. So
a step tells something about the margin only if reserved bytes grew in it and it needed about as
much as any since memory was last handed back, and what was cached beyond need before it began is
not its doing.

With expandable segments nothing is lost to packing and hardly anything is cached in vain: the
margin starts lower, and memory is handed back only before steps of a size that was flushed once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from mimose.records import Situation, Size, StepRecord
from mimose.solvers.packing import SMALL_SEGMENT, Segments

WINDOW = 50
"""How many telling steps are remembered."""
_START_SHARE = 0.05
_START_SHARE_OF_PAGES = 0.03
"""With expandable segments. (Tried on a simulated V100 with 300 steps of BERT: no retry with 3 %,
one or two with 2 %.)"""
_ABOUT = 0.97
_ALIKE = 4 / 3
_ENOUGH_TOLD = 2


@dataclass(frozen=True, slots=True)
class Need:
    """What a step needs of the allocator.

    Attributes:
        bytes: Peak of allocated bytes and what is lost to packing at it, resident bytes included.
        segments: The segments of the blocks' tensors; None where those are unknown.
        waste: The part of ``bytes`` that is lost to packing.
    """

    bytes: int
    segments: Segments | None = None
    waste: int = 0


class Reserve:
    """Learns the margin, and watches what the cache holds.

    Args:
        budget_bytes: Bound on reserved bytes; see :meth:`align`.
        fixed: The margin in bytes, if it is not to be learned.
        segment_bytes: Least start of the margin: what the allocator reserves at a time, of which
            the last piece is rarely full. Under a budget of gigabytes a share of it is more.
        expandable: Whether segments grow and shrink by pages.
    """

    def __init__(
        self,
        budget_bytes: int,
        fixed: int | None = None,
        segment_bytes: int = 0,
        *,
        expandable: bool = False,
    ) -> None:
        self._given = self.budget_bytes = budget_bytes
        self._odd = 0
        self._fixed = fixed
        self._expandable = expandable
        share = _START_SHARE_OF_PAGES if expandable else _START_SHARE
        start = max(int(share * budget_bytes), segment_bytes)
        self._fragmentation = deque([start], WINDOW)
        # Growth of reserved bytes in steps that should have found all they need in the cache.
        self._growth = deque([start], WINDOW)
        self._margin = start if fixed is None else fixed
        self._blind: tuple[int, int] | None = None
        self._told = 0
        # Sizes whose steps did not find room in what was cached, for all that it was enough.
        self._fragile: set[Size] = set()
        self._forget_cache()

    def _forget_cache(self) -> None:
        self._largest = 0
        self._cached = Segments()
        self._seen: set[Size] = set()
        self._run: set[tuple[Size, Segments | None]] = set()

    def align(self, reserved_bytes: int) -> None:
        """Round the budget down to what can be reserved: whole segments on top of what is there.

        Args:
            reserved_bytes: Bytes reserved now. On the CPU some of them may be a model's that was
                there before, and no multiple of any segment.
        """
        self._odd = reserved_bytes % SMALL_SEGMENT
        unusable = (self._given - self._odd) % SMALL_SEGMENT
        self.budget_bytes = max(self._given - unusable, 1)

    def round_up(self, num_bytes: int) -> int:
        """Return the least budget of which so many bytes can be reserved, see :meth:`align`."""
        return num_bytes + (self._odd - num_bytes) % SMALL_SEGMENT

    @property
    def given_bytes(self) -> int:
        """The budget as it was given."""
        return self._given

    @property
    def margin_bytes(self) -> int:
        """Bytes to leave between what a step is planned to need and the budget.

        The largest of (peak reserved - what was planned) over the last 50 telling steps, sheltered
        ones included; it starts at a share of the budget or one segment.
        """
        return self._margin

    def needs_release(
        self, size: Size, need: Need, situation: Situation, *, sure: bool = True
    ) -> bool:
        """Whether cached memory should be handed back before a step.

        Args:
            size: The step's size.
            need: What it needs.
            situation: The state at its start.
            sure: Whether its need is known well enough to count on what is cached.
        """
        reserved, resident = situation.reserved_bytes, situation.resident_bytes
        room = self.budget_bytes - reserved
        # No step grows by more than this, even if nothing that is cached is of use to it.
        most = need.bytes - resident + self._margin
        if most <= room or reserved <= resident:
            return False
        if size in self._fragile or not sure:
            return True
        if (size, need.segments) in self._run:
            return False
        if self._expandable:
            # Free pages serve any request. Where they do not the allocator unmaps them itself,
            # once in a hundred steps; doing so ahead of each would cost as much every time.
            return False
        if need.segments is None:
            return self._is_novel(size, need.bytes) or max(self._growth) > room
        if self._is_far(size):
            return True
        # At equality, too: the next segment after the largest growth seen would not fit.
        return need.segments.beyond(self._cached).bytes + max(self._growth) >= room

    def released(self) -> None:
        """Take note that cached memory was handed back."""
        self._forget_cache()

    def observe(
        self, record: StepRecord, need: Need | None, waste: Callable[[], int] | None = None
    ) -> None:
        """Learn from a finished step.

        What a step loses to packing of which nothing was predicted counts as its margin, to be on
        the safe side, until two responsive steps have told what the margin really is.

        Args:
            record: The step.
            need: What it was planned to need, if that was predicted.
            waste: If not, returns what it is found to have lost to packing after all.
        """
        reserved, allocated = record.peak_reserved_bytes, record.peak_allocated_bytes
        if reserved is None or allocated is None:
            return
        if need is None:
            need = Need(allocated)
        elif record.phase == "sheltered":
            # A sheltered step is there because its prediction is not to be trusted yet.
            need = replace(need, bytes=allocated + need.waste)
        before = record.situation.reserved_bytes
        grew = max(0, reserved - before)
        if record.outcome == "retried" or record.num_alloc_retries:
            # It did not fit: more than what was left is needed, by an unknown amount.
            self._learn(self.budget_bytes - need.bytes + self.budget_bytes // 100)
        elif grew and need.bytes >= _ABOUT * self._largest:
            found = max(0, reserved - need.bytes - self._unneeded(before, need))
            if waste is not None and self._blind is None:
                self._blind = found, max(0, found - waste())
            self._told += record.phase == "responsive"
            self._learn(found)
        if need.segments is not None:
            anew = need.segments.beyond(self._cached)
            more = anew.bytes
            if self._run:
                self._growth.append(max(0, grew - more))
            if more:
                self._cached = self._cached.plus(anew)
        elif self._run and not self._is_novel(record.size, need.bytes):
            self._growth.append(grew)
        if record.outcome == "retried" or record.num_alloc_retries:
            self._forget_cache()
            self._fragile.add(record.size)
        self._largest = max(self._largest, need.bytes)
        self._seen.add(record.size)
        self._run.add((record.size, need.segments))

    def _unneeded(self, before: int, need: Need) -> int:
        """Return the bytes that were cached before a step and of no use to it."""
        if not self._largest:
            return 0
        unneeded = max(0, before - self._largest)
        if need.segments is None:
            return unneeded
        used = need.segments.bytes - need.segments.beyond(self._cached).bytes
        return max(unneeded, self._cached.bytes - used)

    def _is_novel(self, size: Size, predicted: int) -> bool:
        """Whether what is cached may be of no use to a step.

        A cached piece serves what is a little smaller. Much smaller tensors come from other pools
        or leave most of a piece unused, larger ones do not fit, and a step that needs more than
        any before needs more pieces.
        """
        return predicted > self._largest or not any(
            all(x <= y <= _ALIKE * x for x, y in zip(size, seen)) for seen in self._seen
        )

    def _is_far(self, size: Size) -> bool:
        """Whether a size is so far beyond all seen that its need is hardly more than a guess."""
        return bool(self._seen) and any(
            x > _ALIKE * max(seen) for x, seen in zip(size, zip(*self._seen))
        )

    def _learn(self, fragmentation: int) -> None:
        self._fragmentation.append(max(0, fragmentation))
        if self._blind is not None and self._told >= _ENOUGH_TOLD:
            raw, found = self._blind
            self._blind = raw, raw
            if raw in self._fragmentation:
                self._fragmentation[self._fragmentation.index(raw)] = found
        if self._fixed is None:
            self._margin = max(self._fragmentation)

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned, as plain data."""
        return {"fragmentation": list(self._fragmentation), "growth": list(self._growth)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what :meth:`state_dict` returned."""
        self._growth = deque((int(x) for x in state["growth"]), WINDOW)
        self._fragmentation = deque((int(x) for x in state["fragmentation"]), WINDOW)
        if self._fixed is None and self._fragmentation:
            self._margin = max(self._fragmentation)
