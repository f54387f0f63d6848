"""Which functions of the size are fitted: as few as tell the samples apart, and explain them."""

from __future__ import annotations

import numpy as np
import pytest

from mimose.plan import Plan
from mimose.planners.mimose.cache import least_of, round_up
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, Sample, tensor_bytes, to_row
from mimose.planners.mimose.estimator import Estimator
from mimose.planners.mimose.features import Features
from mimose.planners.mimose.knowledge import Knowledge
from mimose.records import NO_AUTOCAST, BlockSample

MIB = 1 << 20
COLUMNS = (*PER_BLOCK, *OUTSIDE)
KEPT = ("activation", "kept_peak", "forward_activation", "backward_peak")
# Swin's areas in pixels for sides of 256 to 448: the image's, then each stage's in whole windows.
WINDOWS = [
    (65536, 78400, 78400, 112896, 200704),
    (82944, 94864, 112896, 112896, 200704),
    (102400, 112896, 112896, 112896, 200704),
    (123904, 132496, 153664, 200704, 200704),
    (147456, 153664, 153664, 200704, 200704),
    (173056, 176400, 200704, 200704, 200704),
    (200704, 200704, 200704, 200704, 200704),
]


def fit(rows, sizes, seconds=None, **options):
    """Return an estimator for one block that keeps ``rows`` bytes."""
    samples = [
        Sample(
            size,
            True,
            np.array([kept if column in KEPT else 0 for column in COLUMNS], np.float64),
            np.array([np.nan if seconds is None else seconds[i]], np.float64),
        )
        for i, (size, kept) in enumerate(zip(sizes, rows, strict=True))
    ]
    return Estimator(samples, 1, **options)


def linear(size, per_pixel=(3.0, 5.0, 2.0, 1.0, 0.25)):
    return size[0] * sum(a * x for a, x in zip(per_pixel, size[1:]))


def test_many_extents_are_linear_and_only_those_that_differ_count():
    sizes = [(32, *areas) for areas in WINDOWS]
    features = Features(sizes)
    assert (
        features.num_columns == 5
    )  # the intercept, the area and three stages: the last is constant
    estimator = fit([linear(s) for s in sizes], sizes)
    for size in sizes:
        assert estimator.predict(size).activation[0] == pytest.approx(linear(size), rel=1e-6)


def test_an_extent_that_followed_another_is_expected_to_go_on():
    # Whole windows throughout: the padded area is the area.
    sizes = [(8, x, x, 4 * x) for x in (100, 200, 400)]
    estimator = fit([linear(s) for s in sizes], sizes)
    assert estimator.covers((8, 300, 300, 1200))
    assert estimator.covers((8, 300, 250, 1200))
    assert not estimator.covers((8, 300, 380, 1200))
    assert estimator.predict((8, 300, 300, 1200)).activation[0] == pytest.approx(
        linear((8, 300, 300, 1200)), rel=1e-6
    )


def test_few_samples_of_many_extents_say_little():
    sizes = [(8, *areas) for areas in WINDOWS[:2]]
    estimator = fit([linear(s) for s in sizes], sizes)
    assert Features(sizes).num_columns == 2
    # Larger than the straight line between the two has it.
    assert not estimator.covers((8, 70000, 94864, 112896, 112896, 200704))


def test_memory_linear_in_the_area_gets_no_square():
    rng = np.random.default_rng(0)
    sizes = [(8, int(x) * 1024) for x in rng.integers(300, 1200, 10)]
    noise = rng.uniform(-1, 1, len(sizes)) * 512
    targets = np.array([[1000.0 * s[1] + n] for s, n in zip(sizes, noise)])
    assert Features(sizes, targets).num_columns <= 3
    exact = np.array([[1000.0 * s[1]] for s in sizes])
    assert Features(sizes, exact).num_columns == 2
    square = exact + np.array([[1e-3 * s[1] ** 2] for s in sizes])
    assert Features(sizes, square).num_columns == 3


def test_nearly_equal_extents_do_not_blow_up_noisy_times():
    rng = np.random.default_rng(3)
    areas = [WINDOWS[i] for i in (0, 1, 2, 3, 4, 5, 6, 2, 4, 0)]
    sizes = [(32, *a) for a in areas]
    seconds = [1e-6 * a[0] * (1 + 0.05 * rng.standard_normal()) for a in areas]
    estimator = fit([linear(s) for s in sizes], sizes, seconds)
    for size in sizes:
        assert estimator.predict(size).forward_seconds[0] == pytest.approx(1e-6 * size[1], rel=0.15)


@pytest.mark.parametrize("batch", [1, 3, 7])
def test_a_smaller_batch_of_a_constant_extent_is_bounded(batch):
    """A decoder of 512 tokens hides in the intercept: what it keeps is not a constant."""

    def kept(size):
        return size[0] * (4000 * size[1] + 90_000 * 512) + 3_000_000

    sizes = [(8, x, 512) for x in (40, 60, 100, 130)]
    rows = [kept(s) for s in sizes]
    size = (batch, 80, 512)
    unbounded = fit(rows, sizes).predict(size).activation[0]
    bounded = fit(rows, sizes, fixed=np.full(len(COLUMNS), 5e6)).predict(size).activation[0]
    assert kept(size) - 1 <= bounded <= kept(size) + 2_000_001
    assert bounded < unbounded


def test_without_autocast_blocks_hold_nothing_of_the_parameters_size(machine):
    def predicted(signature):
        m = machine()
        knowledge = Knowledge(m.info.block_names, casts=NO_AUTOCAST not in signature)
        for length in (40, 60, 100):
            size = (8, length, 512)
            row = to_row(m.collect(size), Plan.recompute_each(m.count), m.count)
            knowledge._store.add(Sample(size, True, *row))
        again = Knowledge.from_json(knowledge.to_json())
        assert again.casts == knowledge.casts
        return again.estimator(True, m.info).predict((2, 60, 512)).activation[0]

    exact = machine().profile((2, 60, 512)).activation[0]
    assert predicted("torch.float32, autocast None, 5 trainable") == pytest.approx(exact, rel=1e-3)
    assert exact < predicted("torch.float32, autocast torch.bfloat16") <= exact + 28 * MIB


def test_sizes_of_many_extents_are_not_rounded():
    assert round_up((8, 301, 512), 5) == (8, 305, 515)
    assert least_of((8, 305, 515), 5) == (8, 301, 511)
    assert round_up((8, *WINDOWS[3]), 5) == (8, *WINDOWS[3])
    assert least_of((8, *WINDOWS[3]), 5) == (8, *WINDOWS[3])


def sample(activation, saved, outputs=()):
    return BlockSample(0, 0, activation, 0, 0, 0, None, 0.0, saved, outputs)


def test_an_activation_is_what_its_tensors_take():
    saved = (3 * MIB, 5000, 2 * MIB)
    total = 5 * MIB + 5120
    assert tensor_bytes(sample(total, saved)) == total
    assert tensor_bytes(sample(total + 2 * MIB, saved)) == total  # a rest with either large one
    # More or less than the tensors can account for: what was allocated counts.
    assert tensor_bytes(sample(total + 2 * MIB + 1, saved)) == total + 2 * MIB + 1
    assert tensor_bytes(sample(total + 3 * MIB, saved, (4 * MIB,))) == total
    assert tensor_bytes(sample(total - 1, saved)) == total - 1
    assert tensor_bytes(sample(7, ())) == 7
