"""The planner's own time is inside the step it delays: medians, with bounds for a busy machine."""

from __future__ import annotations

import gc
import statistics
import time
from dataclasses import replace

import pytest

from mimose.costs import predict_peak
from mimose.plan import Plan
from mimose.planners.mimose import Mimose

GB = 1 << 30
LENGTHS = [153, 500, 287, 333, 205, 250, 400, 438, 310, 222]


@pytest.fixture(autouse=True)
def _no_garbage_collection():
    gc.disable()
    yield
    gc.enable()


BUSY = 3
"""By how much a busy machine may be slower than the one that the bounds were set on."""


def seconds(function, *arguments):
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def with_storages(machine):
    """Let the machine list what a BERT layer keeps: 16 hidden states, 3 score matrices."""
    collect = machine.collect

    def collect_storages(size):
        hidden, scores = 4 * size[0] * size[1] * 768, 4 * size[0] * 12 * size[1] ** 2
        saved = (*[hidden] * 10, 4 * hidden, 4 * hidden, *[scores] * 3)
        found = collect(size)
        blocks = [replace(b, saved_storages=saved, output_storages=(hidden,)) for b in found.blocks]
        return replace(found, blocks=tuple(blocks))

    machine.collect = collect_storages
    return machine


def trained(machine, num_blocks):
    """A planner whose budget lies midway, so that about half of all sizes recompute."""
    m = machine(num_blocks=num_blocks)
    peaks = [
        predict_peak(m.profile((12, 500)), plan, m.info, m.situation()).bytes
        for plan in (Plan.recompute_each(num_blocks), Plan.keep_all(num_blocks))
    ]
    m = with_storages(machine(num_blocks=num_blocks, budget=sum(peaks) // 2))
    planner = Mimose()
    planner.bind(m.info)
    for length in LENGTHS:
        m.step(planner, (12, length))
    planner.plan((12, 153), m.situation())  # The fit itself belongs to the sheltered phase.
    return m, planner


@pytest.mark.parametrize("num_blocks", [12, 200])
def test_a_miss_takes_less_than_a_millisecond_or_so(machine, num_blocks):
    m, planner = trained(machine, num_blocks)
    situation, times = m.situation(), []
    for i in range(200):
        # Another batch size for every third round: each plan is a new one.
        size = (12 - i // 70, 156 + 5 * (i % 69))
        times.append(seconds(planner.plan, size, situation))
    print(f"miss, {num_blocks} blocks: {statistics.median(times):.6f} s, {max(times):.6f} at most")
    assert statistics.median(times) < BUSY * 1e-3


@pytest.mark.parametrize("num_blocks", [12, 200])
def test_a_hit_takes_microseconds(machine, num_blocks):
    m, planner = trained(machine, num_blocks)
    situation = m.situation()
    assert not planner.plan((12, 400), situation).cache_hit
    assert planner.plan((12, 399), situation).cache_hit
    times = [seconds(planner.plan, (12, 398), situation) for _ in range(300)]
    print(f"hit, {num_blocks} blocks: {statistics.median(times):.7f} s, {max(times):.7f} at most")
    assert statistics.median(times) < BUSY * 20e-6


@pytest.mark.parametrize(("num_blocks", "bound"), [(12, 50e-6), (200, 500e-6)])
def test_the_peak_model_is_fast(machine, num_blocks, bound):
    m = machine(num_blocks=num_blocks)
    profile, situation = m.profile((12, 300)), m.situation()
    plan = Plan.recompute_each(num_blocks, range(0, num_blocks, 2))
    times = [seconds(predict_peak, profile, plan, m.info, situation) for _ in range(200)]
    assert statistics.median(times) < BUSY * bound
