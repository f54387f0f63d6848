from __future__ import annotations

import numpy as np
import pytest

from mimose.planners.mimose.collector import Sample
from mimose.planners.mimose.storages import Storages
from mimose.solvers.packing import Segments

MIB = 1 << 20
LENGTHS = (100, 180, 260, 300)


def design(lengths=LENGTHS):
    return np.array([[1.0, x, x * x] for x in lengths])


def block(length, heads=2):
    """A hidden state and a score matrix a head, and an output like the hidden state."""
    return (4096 * length, *[12 * length * length] * heads), (4096 * length,)


def sample(length, *blocks):
    size = (4, length)
    return Sample(size, True, np.zeros(1), np.zeros(1), tuple(blocks))


def test_sizes_that_are_polynomials_of_the_length_are_found_again():
    storages = Storages([sample(x, block(x), block(x)) for x in LENGTHS], design())
    packing = storages.predict(np.array([1.0, 512, 512 * 512]))
    assert packing is not None
    packed = packing.pack([])
    # 2 MiB and 3 MiB: four of each, and six of the first that stay with the outputs.
    sizes = {4096 * 512: 4, 12 * 512 * 512: 4}
    assert packed.segments == Segments(medium=1)
    assert packed.waste_bytes == 20 * MIB - sum(s * n for s, n in sizes.items())


def test_recomputed_blocks_keep_their_outputs_only():
    count = 12
    storages = Storages([sample(x, *[block(x, heads=3)] * count) for x in LENGTHS], design())
    packing = storages.predict(np.array([1.0, 512, 512 * 512]))
    assert packing is not None

    def held(packed):
        return packed.segments.bytes - packed.waste_bytes

    everything = held(packing.pack([]))
    output, whole = 4096 * 512, 2 * 4096 * 512 + 3 * 12 * 512 * 512
    assert everything == count * whole
    assert held(packing.pack([0, 1, 2])) == everything - 3 * (whole - output)
    # The last block's backward comes first: its activations are there at the peak.
    assert held(packing.pack([count - 1])) == everything
    assert held(packing.pack(list(range(count)))) == whole + (count - 1) * output


def test_blocks_may_differ():
    samples = [sample(x, block(x, heads=1), block(x, heads=4), ((), (512,))) for x in LENGTHS]
    packing = Storages(samples, design()).predict(np.array([1.0, 256, 256 * 256]))
    assert packing is not None
    held = packing.pack([])
    assert held.segments is not None
    bytes_held = 4 * 4096 * 256 + 5 * 12 * 256 * 256 + 512
    assert held.segments.bytes - held.waste_bytes == bytes_held


def test_samples_of_another_structure_are_left_out():
    odd = sample(400, block(400, heads=5), block(400))
    samples = [odd, *[sample(x, block(x), block(x)) for x in LENGTHS]]
    packing = Storages(samples, design((400, *LENGTHS))).predict(np.array([1.0, 200, 200 * 200]))
    alike = Storages(samples[1:], design()).predict(np.array([1.0, 200, 200 * 200]))
    assert packing is not None
    assert alike is not None
    assert packing.pack([]) == alike.pack([])


@pytest.mark.parametrize("storages", [(), (((), ()), ((), ()))])
def test_without_storages_nothing_is_predicted(storages):
    samples = [Sample((4, x), True, np.zeros(1), np.zeros(1), storages) for x in LENGTHS]
    found = Storages(samples, design())
    if not storages:
        assert found.predict(np.array([1.0, 1, 1])) is None
    else:
        packing = found.predict(np.array([1.0, 1, 1]))
        assert packing is None or packing.pack([]).waste_bytes == 0
