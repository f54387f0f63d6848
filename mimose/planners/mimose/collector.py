"""The shuttling collector's data: which samples are valid, and where they are kept.

Measuring itself belongs to the executor. What it saw of one sheltered step becomes one row of
numbers here, brought to the convention of :class:`mimose.costs.Profile` (every block recomputed on
its own).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mimose.plan import Plan
from mimose.records import BlockSample, Collected, Size
from mimose.schedule import AnyPlan
from mimose.solvers.packing import ROUND, SMALL, round_up

Row = NDArray[np.float64]
BlockStorages = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""For each block the bytes of each storage that it saves, and of each of its outputs."""

PER_BLOCK = (
    "activation",
    "output",
    "level",
    "kept_peak",
    "checkpoint_peak",
    "forward_activation",
    "freed",
    "shared",
    "passed",
    "measuring",
    "backward_peak",
)
"""Columns of a row, a run of one entry a block for each; ``OUTSIDE`` follows."""
OUTSIDE = ("first_peak", "loss_peak", "after_peak", "head_peak", "tail_peak")

_CAPACITY = 128


def valid(sample: BlockSample) -> bool:
    """Whether a sample says what its block costs, after the paper's data filter (section IV-B).

    1. A block that itself ran checkpointed is dropped: its activations were not there to measure.
    2. So is one around which something ran checkpointed, for the same reason.
    3. Everything else is valid.

    The paper drops a block with a checkpointed child, too, since there that child is a block whose
    checkpointing ends later. Here no block lies within another: a checkpoint within one is the
    model's own, which stays whatever the plan, and what was measured with it is what it costs.
    """
    return not (sample.checkpointed or sample.inside_checkpoint)


def tensor_bytes(sample: BlockSample) -> int:
    """Return the bytes of the tensors that a block keeps, of which its activations consist.

    What is allocated for them is more: the allocator leaves a tensor of over 1 MiB up to 1 MiB that
    a cached piece has too much, as chance will have it. No function of the batch's size tells how
    much, and what it costs counts as lost to packing. Where the tensors do not account for what
    was allocated (an operator may keep some out of sight), that counts instead.
    """
    sizes = [round_up(size, ROUND) for size in sample.saved_storages]
    rests = sum(size > SMALL for size in (*sizes, *sample.output_storages))
    total = sum(sizes) - sample.saved_copy_bytes
    known = total <= sample.activation_bytes <= total + rests * SMALL
    return total if known else sample.activation_bytes


def to_row(
    collected: Collected, plan: AnyPlan, num_blocks: int
) -> tuple[Row, Row, BlockStorages] | None:
    """Return one step's bytes, forward times and storages, or None if no block's sample is valid.

    Blocks that ``plan`` kept (they must not run twice, or save nothing) are counted out of later
    levels, since a profile's levels hold no activations. A block without a sample (layer drop
    skipped it, or the filter dropped it) is filled in from its neighbour: a plan must hold for the
    step in which it runs.

    Args:
        collected: What the collector saw.
        plan: The plan that was carried out meanwhile.
        num_blocks: The model's number of blocks.

    Returns:
        Bytes (``len(PER_BLOCK) * num_blocks + len(OUTSIDE)`` of them, in that order), seconds
        (one a block; NaN where the block was not called) and the storages that each block keeps.
    """
    seen = {s.block: s for s in collected.blocks if valid(s) and 0 <= s.block < num_blocks}
    if not seen:
        return None
    called = {s.block for s in collected.blocks}
    recomputed = plan.recomputed
    holding = _holding_their_inputs(collected, plan)
    rows: list[tuple[int, ...]] = []
    seconds: list[float] = []
    storages: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    # What this step kept and a profile's step would not, in the forward pass and from then on.
    kept = left = 0
    over = 0  # Part of it that such a step would have beside the next block, too.
    absent = 0  # Outputs of blocks that this step did not have.
    last = max(holding, default=-1)
    for block in range(num_blocks):
        sample = seen.get(block)
        shift, later = absent - kept + over, absent - left
        over = 0
        if sample is None:
            near = seen[min(seen, key=lambda b: (abs(b - block), b))]
            # The neighbour's own level, moved by the blocks in between.
            level = near.level_bytes + shift
            if rows and near.block < block:
                level = rows[-1][2] + rows[-1][1]
            moved = level - near.level_bytes
            rows.append(_columns(near, moved, moved))
            storages.append((near.saved_storages, near.output_storages))
            seconds.append(float("nan"))
            if block not in called:
                absent += near.output_bytes
            continue
        # A profile's blocks hold their inputs in backward.
        early, late = (0, 0) if block in holding else _freed(sample)
        rows.append(_columns(sample, shift, later + early + late))
        storages.append((sample.saved_storages, sample.output_storages))
        seconds.append(sample.forward_seconds)
        if block not in recomputed:
            held = sample.activation_bytes - sample.let_go_bytes
            kept += held - early
            over = sample.passed_bytes
            left += held + sample.saved_copy_bytes - early - late
            left -= sample.shared_bytes if block > last else 0
    shift, later = absent - kept, absent - left
    outside = (
        collected.first_peak_bytes,
        max(0, collected.loss_peak_bytes + shift + over) if collected.loss_peak_bytes else 0,
        max(0, collected.after_peak_bytes + later) if collected.after_peak_bytes else 0,
        collected.head_peak_bytes + later,
        collected.tail_peak_bytes,
    )
    by_column = np.array(rows, dtype=np.float64).T.ravel()
    levels = np.concatenate([by_column, np.array(outside, np.float64)])
    return levels, np.array(seconds), tuple(storages)


def _holding_their_inputs(collected: Collected, plan: AnyPlan) -> frozenset[int]:
    """Return the blocks that held their inputs until their backward, to run again from them."""
    graphs = {traced.block: traced.graph for traced in collected.traced}
    remade = plan.remade if isinstance(plan, Plan) else ()
    holding = (r.block for r in remade if r.block in graphs and graphs[r.block].holds(r.dropped))
    return frozenset(holding) | frozenset(plan.recomputed)


def _columns(sample: BlockSample, shift: int, later: int) -> tuple[int, ...]:
    """Return a block's columns, levels moved by ``shift`` in forward and ``later`` in backward."""
    backward = sample.backward_peak_bytes
    kept = tensor_bytes(sample)
    early, late = _freed(sample)
    return (
        kept + sample.saved_copy_bytes - early - late,
        sample.output_bytes,
        sample.level_bytes + shift,
        sample.kept_peak_bytes,
        sample.checkpoint_peak_bytes,
        kept - early,
        early + late,
        sample.shared_bytes,
        sample.passed_bytes,
        sample.measuring_bytes,
        # Without a gradient there is no backward, which costs no more than being there.
        sample.level_bytes + shift if backward is None else backward + later,
    )


def _freed(sample: BlockSample) -> tuple[int, int]:
    """Return how much of its input a kept block frees in the forward pass, and after it.

    No more than it keeps: one that keeps nothing, as it is not trained, is never recomputed.
    """
    kept = tensor_bytes(sample)
    early = min(sample.freed_bytes, kept)
    return early, min(sample.freed_late_bytes, kept + sample.saved_copy_bytes - early)


@dataclass(slots=True)
class Sample:
    """What is known of one size in one gradient state.

    Attributes:
        size: The size.
        grads_resident: Whether gradients were allocated already when the step began.
        bytes: A row as :func:`to_row` returns it.
        seconds: Forward time of each block, NaN where unknown.
        storages: The storages that each block keeps.
    """

    size: Size
    grads_resident: bool
    bytes: Row
    seconds: Row
    storages: BlockStorages = ()


class SampleStore:
    """Samples by size and gradient state.

    A size seen again keeps the larger bytes (a mixture of experts routes differently each time)
    and the shorter times (the least disturbed ones).
    """

    def __init__(self) -> None:
        self._samples: dict[tuple[Size, bool], Sample] = {}

    def __len__(self) -> int:
        return len(self._samples)

    def __iter__(self) -> Iterator[Sample]:
        return iter(self._samples.values())

    def add(self, sample: Sample) -> bool:
        """Take a sample; return whether the store says anything new about bytes."""
        key = (sample.size, sample.grads_resident)
        known = self._samples.get(key)
        if known is None:
            if len(self._samples) >= _CAPACITY:
                del self._samples[next(iter(self._samples))]
            self._samples[key] = sample
            return True
        larger = np.maximum(known.bytes, sample.bytes)
        news = bool((larger != known.bytes).any())
        known.bytes = larger
        known.seconds = np.fmin(known.seconds, sample.seconds)
        return news

    def to_json(self) -> list[dict[str, Any]]:
        """Return the samples as plain data."""
        return [
            {
                "size": list(s.size),
                "grads_resident": s.grads_resident,
                "bytes": [int(b) for b in s.bytes.tolist()],
                "seconds": [None if t != t else t for t in s.seconds.tolist()],
                "storages": [[list(kept), list(outputs)] for kept, outputs in s.storages],
            }
            for s in self._samples.values()
        ]

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> SampleStore:
        """Return the store that :meth:`to_json` wrote."""
        store = cls()
        for item in data:
            seconds = [float("nan") if t is None else float(t) for t in item["seconds"]]
            store.add(
                Sample(
                    tuple(int(x) for x in item["size"]),
                    bool(item["grads_resident"]),
                    np.array(item["bytes"], np.float64),
                    np.array(seconds, np.float64),
                    tuple((tuple(kept), tuple(outputs)) for kept, outputs in item["storages"]),
                )
            )
        return store
