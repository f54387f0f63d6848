from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimose.plan import Plan
from mimose.planners.mimose.collector import Sample, to_row
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.features import Features


def samples_of(machine, sizes):
    found = []
    for size in sizes:
        machine.steps += 1
        row = to_row(machine.collect(size), Plan.recompute_each(machine.count), machine.count)
        found.append(Sample(size, True, *row))
    return found


def assert_same(predicted, true):
    for name in ("activation", "output", "level", "kept_peak", "checkpoint_peak", "backward_peak"):
        np.testing.assert_allclose(getattr(predicted, name), getattr(true, name), rtol=0, atol=1)
    for name in ("first_peak", "head_peak", "tail_peak"):
        assert abs(getattr(predicted, name) - getattr(true, name)) <= 1
    np.testing.assert_allclose(predicted.forward_seconds, true.forward_seconds, rtol=1e-6)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(20, 512), min_size=3, max_size=10), st.integers(20, 512))
def test_exact_on_quadratics(machine, lengths, unseen):
    m = machine()
    estimator = Estimator(samples_of(m, [(12, x) for x in lengths]), m.count)
    for x in lengths:
        assert_same(estimator.predict((12, x)), m.profile((12, x)))
    if max(lengths) - min(lengths) > 50 and min(lengths) <= unseen <= max(lengths):
        assert_same(estimator.predict((12, unseen)), m.profile((12, unseen)))


@pytest.mark.parametrize("odd", range(10))
def test_the_doubt_covers_what_one_odd_sample_does(machine, odd):
    m = machine()
    sizes = [(12, x) for x in range(50, 70, 2)]
    samples = samples_of(m, sizes)
    # Even an exact sample is rounded to whole bytes.
    assert Estimator(samples, m.count).doubt((12, 128)) < 4096
    samples[odd].bytes[-2] -= 5 << 20
    estimator = Estimator(samples, m.count)
    for length in (60, 80, 128):
        error = estimator.predict((12, length)).head_peak - m.profile((12, length)).head_peak
        assert abs(error) <= estimator.doubt((12, length))
    assert estimator.doubt((12, 60)) < estimator.doubt((12, 80)) < estimator.doubt((12, 128))
    few = samples[max(0, odd - 4) :][:5]
    assert Estimator(few, m.count).doubt((12, 128)) == 0


def test_one_size_is_a_constant_scaled_by_the_batch(machine):
    m = machine()
    estimator = Estimator(samples_of(m, [(12, 100)]), m.count)
    assert_same(estimator.predict((12, 100)), m.profile((12, 100)))
    assert estimator.predict((12, 300)).activation == estimator.predict((12, 100)).activation
    assert estimator.predict((24, 100)).activation[0] == 2 * m.profile((12, 100)).activation[0]
    assert not estimator.covers((12, 101), slack=4)


def test_two_lengths_are_a_line_above_the_curve_between_them(machine):
    m = machine()
    estimator = Estimator(samples_of(m, [(12, 100), (12, 300)]), m.count)
    assert_same(estimator.predict((12, 300)), m.profile((12, 300)))
    between, true = estimator.predict((12, 200)), m.profile((12, 200))
    assert between.activation[0] > true.activation[0]


def test_two_kinds_of_length_have_a_cross_term(machine):
    m = machine()
    sizes = [(8, 20, 30), (8, 50, 40), (8, 90, 200), (8, 40, 90), (8, 120, 60), (8, 70, 150)]
    estimator = Estimator(samples_of(m, sizes), m.count)
    assert_same(estimator.predict((8, 100, 100)), m.profile((8, 100, 100)))
    assert Features(sizes).num_columns == 6


def test_a_constant_second_length_has_no_columns(machine):
    sizes = [(8, x, 512) for x in (20, 50, 90, 120)]
    assert Features(sizes).num_columns == 3
    m = machine()
    assert_same(
        Estimator(samples_of(m, sizes), m.count).predict((8, 70, 512)), m.profile((8, 70, 512))
    )


@pytest.mark.parametrize("batch", [1, 5, 12, 20])
def test_memory_that_ignores_the_batch_is_never_left_out(machine, batch):
    m = machine()
    m.fixed_head = 95 << 20
    estimator = Estimator(samples_of(m, [(12, x) for x in (100, 200, 300)]), m.count)
    predicted, true = estimator.predict((batch, 250)), m.profile((batch, 250))
    assert predicted.head_peak >= true.head_peak - 1
    assert predicted.tail_peak >= true.tail_peak - 1
    assert predicted.activation[0] == pytest.approx(true.activation[0], abs=1)


def test_several_batch_sizes_tell_what_scales_with_the_batch(machine):
    m = machine()
    m.fixed_head = 95 << 20
    sizes = [(12, 100), (12, 200), (12, 300), (5, 250)]
    estimator = Estimator(samples_of(m, sizes), m.count)
    for size in [(3, 150), (12, 280), (9, 210)]:
        assert_same(estimator.predict(size), m.profile(size))


def test_range(machine):
    m = machine()
    estimator = Estimator(samples_of(m, [(12, x) for x in (100, 200, 300)]), m.count)
    assert estimator.fitted_range == ((12, 100), (12, 300))
    assert estimator.covers((12, 300))
    assert estimator.covers((3, 20))
    assert not estimator.covers((12, 301))
    assert estimator.covers((12, 304), slack=4)
    assert not estimator.covers((13, 200))
    assert not estimator.covers((12, 200, 200))
    assert estimator.clip((3, 20)) == (3, 100)
    assert estimator.clip((3, 400)) == (3, 400)


def test_disturbed_and_unknown_times_do_not_count(machine):
    m = machine()
    samples = samples_of(m, [(12, x) for x in range(100, 300, 20)])
    samples[0].seconds[:] = np.nan
    samples[4].seconds *= 40
    estimator = Estimator(samples, m.count)
    expected = m.profile((12, 150)).forward_seconds
    np.testing.assert_allclose(estimator.predict((12, 150)).forward_seconds, expected, rtol=1e-6)


def test_no_known_time_predicts_none(machine):
    m = machine()
    samples = samples_of(m, [(12, 100)])
    samples[0].seconds[:] = np.nan
    assert Estimator(samples, m.count).predict((12, 100)).forward_seconds == (0.0,) * m.count


def test_rounded_bytes_stay_within_half_a_percent(machine):
    """As on a device: every figure is rounded up to 512 bytes."""
    m = machine()
    rng = np.random.default_rng(1)
    samples = samples_of(m, [(12, int(x)) for x in rng.integers(153, 512, 10)])
    for sample in samples:
        sample.bytes[:] = np.ceil(sample.bytes / 512) * 512
    estimator = Estimator(samples, m.count)
    for length in range(153, 513, 7):
        predicted = sum(estimator.predict((12, length)).activation)
        assert predicted == pytest.approx(sum(m.profile((12, length)).activation), rel=5e-3)


def test_a_fit_through_few_samples_of_many_extents_stays_between_what_they_showed(machine):
    """Five samples that differ in all of three extents: a polynomial goes through any of them."""
    m = machine()
    sizes = [(8, 69, 117), (4, 73, 25), (8, 53, 85), (2, 40, 90), (6, 20, 110)]
    rng = np.random.default_rng(0)
    samples = samples_of(m, sizes)
    for sample in samples:
        sample.bytes *= rng.uniform(0.8, 1.2)
    estimator = Estimator(samples, m.count)
    assert not estimator.determined
    within = (2, 39, 24)
    assert estimator.is_within(within)
    assert not estimator.is_within((8, 70, 118))
    least = min(s.bytes[0] for s in samples if all(x >= y for x, y in zip(s.size, within)))
    assert estimator.predict(within).activation[0] <= round(least)
    above = (9, 80, 120)
    most = max(s.bytes[0] for s in samples)
    assert estimator.predict(above).activation[0] >= round(most)
