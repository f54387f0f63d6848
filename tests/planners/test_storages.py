"""Sizes of storages that are polynomials of the length come back exactly."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mimose.planners.mimose.collector import Sample
from mimose.planners.mimose.estimator import Features
from mimose.planners.mimose.storages import Packed, Storages
from mimose.solvers.packing import Segments, allocated_bytes, segments

BATCH = 12
MIB = 1 << 20
LENGTHS = [64, 100, 150, 210, 333, 384, 500]
HIDDEN, SCORES, NORM = (0, 3072, 0), (0, 0, 48), (0, 4, 0)
ALIKE = [((HIDDEN, HIDDEN, SCORES, NORM), (HIDDEN,))] * 6
MIXED = [
    ((HIDDEN, SCORES), (HIDDEN,)),
    ((), ()),
    ((HIDDEN, NORM, NORM), (HIDDEN, SCORES)),
    (((70_000, 0, 0),), ()),
]


def amount(polynomial, length):
    return BATCH * sum(c * length**power for power, c in enumerate(polynomial))


def listed(structure, length):
    """For each block the bytes of what it saves and of its outputs, as a sample has them."""
    return tuple(
        tuple(tuple(amount(p, length) for p in group) for group in block) for block in structure
    )


def sample(structure, length):
    return Sample((BATCH, length), True, np.zeros(1), np.zeros(1), listed(structure, length))


def fitted(samples):
    features = Features([s.size for s in samples])
    design = np.array([features.row(s.size) for s in samples])
    storages = Storages(samples, design)
    return lambda length: storages.predict(np.array(features.row((BATCH, length))))


def expected(structure, length, recomputed):
    """What lies there at the peak: outputs of all blocks, the rest of kept ones and the last."""
    sizes = []
    last = len(structure) - 1
    for block, (saved, outputs) in enumerate(listed(structure, length)):
        sizes.extend(outputs)
        if block not in recomputed or block == last:
            sizes.extend(saved)
    ones = [1] * len(sizes)
    found = segments(sizes, ones)
    return Packed(found, found.bytes - allocated_bytes(sizes, ones))


@pytest.mark.parametrize("structure", [ALIKE, MIXED], ids=["alike", "mixed"])
@pytest.mark.parametrize("length", [65, 128, 211, 499, 512])
def test_exact_on_unseen_lengths(structure, length):
    packing = fitted([sample(structure, x) for x in LENGTHS])(length)
    count = len(structure)
    for recomputed in ([], [0], [count - 1], [0, 2], list(range(count))):
        assert packing.pack(recomputed) == expected(structure, length, recomputed)


polynomials = st.tuples(st.integers(0, 50_000), st.integers(0, 4000), st.integers(0, 60))
groups = st.lists(polynomials, max_size=4).map(tuple)


@settings(deadline=None)
@given(
    st.lists(st.tuples(groups, groups), min_size=1, max_size=5).filter(lambda s: any(map(any, s))),
    st.integers(64, 500),
    st.randoms(use_true_random=False),
)
def test_any_structure_is_recovered(structure, length, rng):
    packing = fitted([sample(structure, x) for x in LENGTHS])(length)
    recomputed = [b for b in range(len(structure)) if rng.random() < 0.5]
    assert packing.pack(recomputed) == expected(structure, length, recomputed)


def test_waste_is_what_segments_hold_beyond_the_tensors():
    # 7 MiB a tensor: two to a segment of 20 MiB.
    structure = [(((7 * MIB // BATCH, 0, 0),) * 2, ())] * 4
    packing = fitted([sample(structure, x) for x in LENGTHS])(200)
    kept = packing.pack([])
    assert kept.segments == Segments(medium=4)
    assert kept.waste_bytes == pytest.approx(4 * 6 * MIB, abs=8 * 512)
    # The last block's two tensors are back when its backward starts.
    assert packing.pack([0, 1, 2, 3]) == packing.pack([0, 1, 2])
    assert packing.pack([0, 1, 2, 3]).segments.medium == 1


def test_a_sample_of_another_structure_is_left_out():
    samples = [sample(ALIKE, x) for x in LENGTHS]
    odd = sample(MIXED, 280)
    without = fitted(samples)(300)
    with_odd = fitted([*samples[:3], odd, *samples[3:]])(300)
    assert with_odd.pack([0]) == without.pack([0]) == expected(ALIKE, 300, [0])
    # Of another number of blocks, and with fewer tensors in one.
    for other in (ALIKE[:5], [*ALIKE[:5], (ALIKE[5][0][1:], ALIKE[5][1])]):
        assert fitted([sample(other, 280), *samples])(300).pack([1]) == without.pack([1])


def test_a_last_sample_unlike_all_others_says_too_little():
    samples = [sample(ALIKE, x) for x in LENGTHS]
    assert fitted([*samples, sample(MIXED, 280)])(300) is None


def test_nothing_listed_is_nothing_known():
    nothing = [((), ())] * 4
    assert fitted([sample(nothing, x) for x in LENGTHS])(300) is None
    bare = [Sample((BATCH, x), True, np.zeros(1), np.zeros(1)) for x in LENGTHS]
    assert fitted(bare)(300) is None


def test_one_length_is_a_constant_and_two_are_a_line():
    assert fitted([sample(ALIKE, 200)])(200).pack([]) == expected(ALIKE, 200, [])
    assert fitted([sample(ALIKE, 200)])(400).pack([]) == expected(ALIKE, 200, [])
    line = [((HIDDEN, NORM), (HIDDEN,))] * 3
    assert fitted([sample(line, 100), sample(line, 300)])(217).pack([1]) == expected(line, 217, [1])


def test_sizes_below_zero_are_none():
    falling = [((((400 * MIB) // BATCH, -MIB // BATCH, 0),), ())]
    packing = fitted([sample(falling, x) for x in (100, 200, 300)])(500)
    assert packing.pack([]).segments.bytes == 0
    assert packing.pack([]).waste_bytes == 0


def test_the_order_of_samples_does_not_matter():
    samples = [sample(MIXED, x) for x in LENGTHS]
    first = fitted(samples)(257).pack([0])
    random.Random(0).shuffle(samples)
    assert fitted(samples)(257).pack([0]) == first


@pytest.mark.parametrize("length", [65, 211, 500])
def test_values_that_are_let_go_are_taken_out(length):
    packing = fitted([sample(ALIKE, x) for x in LENGTHS])(length)
    scores, hidden = (amount(p, length) for p in (SCORES, HIDDEN))
    without = [((HIDDEN, HIDDEN, NORM), (HIDDEN,)), *ALIKE[1:]]
    # Sizes predicted by other fits may be rounded up otherwise.
    for value in (scores, scores + 512, scores - 512):
        assert packing.pack([2], {0: [value]}) == expected(without, length, [2])
    neither = [((NORM,), (HIDDEN,)), *ALIKE[1:]]
    gone = [scores, hidden, hidden, hidden]
    assert packing.pack([], {0: gone}) == expected(neither, length, [])
    # What the block is not known to keep is there still; and so is all of the last block.
    for let_go in ({0: [scores + 5000]}, {5: [scores]}, {}):
        assert packing.pack([], let_go) == packing.pack([])
