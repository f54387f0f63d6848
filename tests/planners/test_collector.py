from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mimose.plan import Plan
from mimose.planners.mimose.collector import (
    OUTSIDE,
    PER_BLOCK,
    Sample,
    SampleStore,
    to_row,
    valid,
)


def columns(machine, row):
    return row[: -len(OUTSIDE)].reshape(len(PER_BLOCK), machine.count)


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ({}, True),
        ({"checkpointed": True}, False),
        ({"inside_checkpoint": True}, False),
        ({"around_checkpoint": True}, True),
    ],
)
def test_data_filter(machine, flag, expected):
    sample = machine().collect((12, 100)).blocks[0]
    assert valid(replace(sample, **flag)) is expected


def test_a_full_step_is_taken_as_it_is(machine):
    m = machine()
    row, seconds, _ = to_row(m.collect((12, 100)), Plan.recompute_each(m.count), m.count)
    profile = m.profile((12, 100))
    assert tuple(columns(m, row)[0]) == profile.activation
    assert tuple(columns(m, row)[-1]) == profile.backward_peak
    outside = dict(zip(OUTSIDE, row[-len(OUTSIDE) :]))
    assert outside == {
        "first_peak": profile.first_peak,
        "loss_peak": 0,
        "after_peak": 0,
        "head_peak": profile.head_peak,
        "tail_peak": profile.tail_peak,
    }
    assert len(seconds) == m.count


def test_activations_that_the_step_kept_are_counted_out(machine):
    m = machine()
    profile, collected = m.profile((12, 100)), m.collect((12, 100))
    kept = profile.activation[2]
    shifted = replace(
        collected,
        head_peak_bytes=collected.head_peak_bytes + kept,
        blocks=tuple(
            replace(
                b,
                level_bytes=b.level_bytes + kept,
                backward_peak_bytes=b.backward_peak_bytes + kept,
            )
            if b.block > 2
            else b
            for b in collected.blocks
        ),
    )
    plan = Plan.recompute_each(m.count, set(range(m.count)) - {2})
    row, _, _ = to_row(shifted, plan, m.count)
    plain, _, _ = to_row(collected, Plan.recompute_each(m.count), m.count)
    np.testing.assert_array_equal(row, plain)


def test_copies_of_weights_and_inputs_that_are_let_go_are_told_from_activations(machine):
    m = machine()
    collected = m.collect((12, 100))
    block = replace(
        collected.blocks[0],
        activation_bytes=10_000,
        copy_bytes=700,
        saved_copy_bytes=500,
        freed_bytes=1_000,
        freed_late_bytes=200,
    )
    changed = replace(collected, blocks=(block, *collected.blocks[1:]), loss_peak_bytes=3_000_000)
    row, _, _ = to_row(changed, Plan.recompute_each(m.count), m.count)
    first = dict(zip(PER_BLOCK, columns(m, row)[:, 0]))
    assert first["forward_activation"] == 10_000 - 1_000
    assert first["activation"] == 10_000 + 500 - 1_200
    assert first["freed"] == 1_200
    assert dict(zip(OUTSIDE, row[-len(OUTSIDE) :]))["loss_peak"] == 3_000_000


def test_what_kept_blocks_free_of_their_inputs_is_counted_in(machine):
    """A step that keeps all shows what one that recomputes all does, whose blocks hold inputs."""
    m = machine()
    expected = replace(
        m.collect((12, 100)),
        blocks=tuple(
            replace(b, freed_bytes=1_000 + b.block, freed_late_bytes=200)
            for b in m.collect((12, 100)).blocks
        ),
    )
    kept, blocks = 0, []
    for b in expected.blocks:
        late = 200 * b.block
        gone = b.freed_bytes + b.freed_late_bytes
        level, peak = b.level_bytes + kept, b.backward_peak_bytes + kept - late - gone
        blocks.append(replace(b, level_bytes=level, backward_peak_bytes=peak))
        kept += b.activation_bytes - b.freed_bytes
    head = expected.head_peak_bytes + kept - 200 * m.count
    found = replace(expected, blocks=tuple(blocks), head_peak_bytes=head)
    row, _, _ = to_row(found, Plan.keep_all(m.count), m.count)
    plain, _, _ = to_row(expected, Plan.recompute_each(m.count), m.count)
    np.testing.assert_array_equal(row, plain)


@pytest.mark.parametrize("skipped", [(0,), (5,), (11,), (4, 5), (0, 1, 11)])
def test_skipped_blocks_are_filled_in(machine, skipped):
    """A step in which layer drop skipped blocks stands for one in which all of them ran."""
    m = machine()
    full = m.collect((12, 100))
    output = m.profile((12, 100)).output[0]
    missing = [sum(s < b for s in skipped) for b in range(m.count + 1)]
    blocks = tuple(
        replace(
            b,
            level_bytes=b.level_bytes - output * missing[b.block],
            backward_peak_bytes=b.backward_peak_bytes - output * missing[b.block],
        )
        for b in full.blocks
        if b.block not in skipped
    )
    head = full.head_peak_bytes - output * len(skipped)
    tail = full.tail_peak_bytes
    partial = replace(full, blocks=blocks, head_peak_bytes=head)
    row, seconds, _ = to_row(partial, Plan.recompute_each(m.count), m.count)
    expected, _, _ = to_row(full, Plan.recompute_each(m.count), m.count)
    # Neighbours differ by a few bytes of activation; levels must be exact.
    np.testing.assert_array_equal(columns(m, row)[2], columns(m, expected)[2])
    np.testing.assert_allclose(row[:-1], expected[:-1], rtol=1e-5)
    assert row[-1] >= tail
    assert np.isnan(seconds).nonzero()[0].tolist() == list(skipped)


def test_a_block_without_gradient_costs_no_backward(machine):
    m = machine()
    collected = m.collect((12, 100))
    frozen = replace(collected.blocks[0], backward_peak_bytes=None)
    collected = replace(collected, blocks=(frozen, *collected.blocks[1:]))
    row, _, _ = to_row(collected, Plan.recompute_each(m.count), m.count)
    assert columns(m, row)[-1][0] == columns(m, row)[2][0]


def test_nothing_valid_is_no_sample(machine):
    m = machine()
    collected = m.collect((12, 100))
    blocks = tuple(replace(b, checkpointed=True) for b in collected.blocks)
    plan = Plan.recompute_each(m.count)
    assert to_row(replace(collected, blocks=blocks), plan, m.count) is None


def sample(size=(12, 100), value=1.0, seconds=1.0, resident=True):
    return Sample(size, resident, np.array([value, 5.0]), np.array([seconds]))


def test_a_size_seen_again_keeps_the_larger_bytes_and_the_shorter_time():
    store = SampleStore()
    assert store.add(sample(seconds=float("nan")))
    assert not store.add(sample(value=0.5, seconds=3.0))
    assert not store.add(sample(seconds=2.0))
    assert store.add(sample(value=4.0, seconds=7.0))
    assert store.add(sample(resident=False))
    (resident, growing) = store
    assert resident.bytes.tolist() == [4.0, 5.0]
    assert resident.seconds.tolist() == [2.0]
    assert not growing.grads_resident


def test_store_is_bounded():
    store = SampleStore()
    for length in range(1, 500):
        store.add(sample(size=(12, length)))
    assert len(store) < 200
    assert max(s.size for s in store) == (12, 499)


def test_store_round_trips():
    store = SampleStore()
    store.add(sample(seconds=float("nan")))
    store.add(sample(size=(3, 7, 9), value=3.0))
    again = SampleStore.from_json(store.to_json())
    assert again.to_json() == store.to_json()
    assert np.isnan(next(iter(again)).seconds).all()
