"""What a unit of planning work costs this machine's host, measured with the planner itself.

The planner ``mimose`` plans for the paper's QA-Bert at 6 GB, its memory made of formulas (no
tensors), as in a run: sheltered steps first, then a new plan for one size after another. Each time
is divided by the work that the planner counted for it, so that counts and costs go together. The
units of tensor-level eviction are not measured: what they cost is assumed.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import TypeVar

from mimose.devices.sim.gpus import ASSUMED_EVICTION_SECONDS
from mimose.planners.mimose import Mimose
from mimose.records import BlockSample, Collected, Decision, ModelInfo, Situation, Size, StepRecord
from mimose.units import GIB, MIB

_BATCH, _NUM_BLOCKS, _HIDDEN, _HEADS = 12, 12, 768, 12
_SHELTERED_LENGTHS = (153, 500, 287, 333, 205, 250, 400, 438, 310, 222)
_INFO = ModelInfo(
    block_names=tuple(f"layer.{i}" for i in range(_NUM_BLOCKS)),
    exact=True,
    budget_bytes=6 * GIB,
    grad_bytes=(28 * MIB,) * _NUM_BLOCKS,
    other_grad_bytes=90 * MIB,
)
_SITUATION = Situation(1700 * MIB, reserved_bytes=2 * GIB)

_T = TypeVar("_T")


def measure_planning(rounds: int = 5) -> dict[str, float]:
    """Return the seconds of each unit of planning work, those of eviction as assumed.

    Args:
        rounds: How often everything is measured; medians are returned.
    """
    collecting = gc.isenabled()
    gc.disable()  # Python's own pauses are no part of planning.
    try:
        found = [_measure_once() for _ in range(rounds)]
    finally:
        if collecting:
            gc.enable()
    measured = {unit: statistics.median(costs[unit] for costs in found) for unit in found[0]}
    return {**measured, **ASSUMED_EVICTION_SECONDS}


def _measure_once() -> dict[str, float]:
    planner = Mimose()
    planner.bind(_INFO)
    updates = _updates(planner)
    lookups, estimates, candidates = [], [], []
    planner.plan((_BATCH, min(_SHELTERED_LENGTHS)), _SITUATION)  # The last step's fit.
    for length in range(160, 500, 5):
        made = planner.plan((_BATCH, length), _SITUATION)
        hit, seconds = _timed(lambda size=(_BATCH, length - 1): planner.plan(size, _SITUATION))
        if made.cache_hit or not hit.cache_hit:
            continue
        lookups.append(seconds)
        estimates.append(made.estimator_seconds / made.work.estimates)
        # The scheduler's time has the lookup's bookkeeping in it, too.
        candidates.append(max(made.scheduler_seconds - seconds, 0.0) / made.work.candidates)
    return {
        "lookup": statistics.median(lookups),
        "estimate": statistics.median(estimates),
        "candidate": statistics.median(candidates),
        "update": statistics.median(updates),
    }


def _updates(planner: Mimose) -> list[float]:
    """Take the planner through its sheltered steps; return the seconds of each one's updates."""
    costs: list[float] = []
    pending = 0.0
    figures = 0
    for length in _SHELTERED_LENGTHS:
        size = (_BATCH, length)
        decision = planner.plan(size, _SITUATION)
        if figures:
            # Sheltered steps fit to the samples before them, and that is what estimating takes.
            costs.append((pending + decision.estimator_seconds) / figures)
        record = _finished(decision, size)
        work, pending = _timed(lambda record=record: planner.observe(record))
        figures = work.updates
    return costs


def _timed(function: Callable[[], _T]) -> tuple[_T, float]:
    started = time.perf_counter()
    result = function()
    return result, time.perf_counter() - started


def _finished(decision: Decision, size: Size) -> StepRecord:
    return StepRecord(
        size=size,
        plan=decision.plan,
        phase=decision.phase,
        situation=_SITUATION,
        collected=_collected(size),
        optimizer_peak_bytes=30 * MIB,
    )


def _collected(size: Size) -> Collected:
    """Return what a collector sees of BERT-base: 16 hidden states and 3 score matrices a layer."""
    batch, length = size
    unit, scores = 4 * batch * length * _HIDDEN, 4 * batch * _HEADS * length**2
    saved = (*[unit] * 8, 4 * unit, 4 * unit, *[scores] * 3)
    kept, working = sum(saved), 6 * unit + 2 * scores
    blocks = tuple(
        BlockSample(
            block=i,
            level_bytes=(i + 1) * unit,
            activation_bytes=kept,
            output_bytes=unit,
            kept_peak_bytes=kept + 2 * unit,
            checkpoint_peak_bytes=working,
            backward_peak_bytes=(i + 1) * unit + kept + working,
            forward_seconds=1e-5 * length + 1e-8 * length**2,
            saved_storages=saved,
            output_storages=(unit,),
        )
        for i in range(_NUM_BLOCKS)
    )
    head, tail, first = (_NUM_BLOCKS + 2) * unit, 4 * unit, 2 * unit
    return Collected(blocks, head, tail, first, collector_seconds=0.1)
