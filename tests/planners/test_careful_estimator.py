"""Which sizes a few samples say something about."""

from __future__ import annotations

import numpy as np
import pytest

from mimose.planners.auto.estimator import CarefulEstimator
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, Sample
from mimose.planners.mimose.estimator import Estimator


def fitted(lengths, kind=CarefulEstimator, noise=0.0, batch=12):
    chance = np.random.default_rng(1)

    def sample(length):
        exact = batch * (5e5 + 5e4 * length + 100.0 * length * length)
        row = np.full(len(PER_BLOCK) + len(OUTSIDE), exact)
        return Sample((batch, length), True, row * (1 + noise * chance.normal()), np.ones(1))

    return kind([sample(x) for x in lengths], 1)


def test_samples_that_are_well_apart_reach_a_little_beyond_them():
    estimator = fitted([200, 330, 460])
    assert all(estimator.covers((12, x)) for x in (190, 200, 265, 460, 490))
    assert not any(estimator.covers((12, x)) for x in (580, 700))
    assert estimator.clip((12, 190)) == (12, 190)
    assert estimator.clip((12, 20)) == (12, 200)
    # More samples reach further, but never further than a quarter.
    more = fitted([100, 150, 200, 250, 300, 330, 370, 420, 460])
    assert more.covers((12, 530))
    assert not estimator.covers((12, 530))
    assert not more.covers((12, 580))


def test_two_nearly_equal_lengths_say_nothing_of_what_is_between_them_and_the_third():
    estimator = fitted([290, 292, 460])
    assert estimator.covers((12, 290))
    assert estimator.covers((12, 460))
    assert not estimator.covers((12, 380))
    assert fitted([290, 292, 460], Estimator).covers((12, 380))
    assert fitted([290, 292, 380, 460]).covers((12, 380))


def test_larger_batches_are_never_covered_and_smaller_ones_are():
    estimator = fitted([200, 330, 460])
    assert estimator.covers((6, 400))
    assert not estimator.covers((13, 200))


@pytest.mark.parametrize("lengths", [[300], [300, 400], [300, 300, 400]])
def test_fewer_than_three_lengths_are_judged_as_by_mimose(lengths):
    careful, plain = fitted(lengths), fitted(lengths, Estimator)
    for length in (200, 299, 300, 350, 400, 403, 500):
        size = (12, length)
        assert careful.covers(size, 4) == plain.covers(size, 4)
        assert careful.clip(size) == plain.clip(size)


def test_errors_within_what_is_covered_are_hardly_larger_than_the_samples():
    exact = fitted(range(64, 640, 8))
    for seed in range(20):
        lengths = np.random.default_rng(seed).integers(150, 500, 3)
        if len(set(lengths)) < 3:
            continue
        estimator = fitted(lengths.tolist(), noise=0.003)
        for length in range(100, 640, 20):
            if estimator.covers((12, length)):
                found, right = (e.predict((12, length)).level[0] for e in (estimator, exact))
                largest = exact.predict((12, int(lengths.max()))).level[0]
                assert abs(found - right) < 4 * 0.003 * 2 * largest
                assert abs(found - right) < estimator.doubt((12, length)) * 10


def test_far_away_the_doubt_is_large():
    estimator = fitted([300, 310, 320])
    assert estimator.doubt((12, 640)) > estimator.predict((12, 640)).level[0]
    assert estimator.doubt((12, 310)) < 0.01 * estimator.predict((12, 310)).level[0]
