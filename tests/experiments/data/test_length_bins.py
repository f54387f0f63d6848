from __future__ import annotations

import numpy as np
import pytest

from mimose_bench.experiments.data.examples import Packed, QaExample, StoredText
from mimose_bench.experiments.data.lengths import LengthBin, bins_of, paper_batches
from mimose_bench.experiments.data.sources import DataSource

SOURCE = DataSource(kind="path", detail="a file", reason="test")


def test_lengths_in_bins_are_their_mean_and_share():
    bins = bins_of([10, 12, 14, 21, 30, 30, 30, 30], 10.0)
    assert bins == (LengthBin(12, 3 / 8), LengthBin(21, 1 / 8), LengthBin(30, 4 / 8))


def test_one_length_is_one_bin():
    assert bins_of([512] * 3, 7.18) == (LengthBin(512, 1.0),)


@pytest.mark.parametrize("max_length", [512, 128])
def test_generated_bins_are_the_distribution_that_is_drawn_from(max_length):
    lengths = paper_batches("SQuAD", max_length, 16)
    bins = lengths.bins()
    assert sum(b.share for b in bins) == pytest.approx(1.0)
    assert [b.length for b in bins] == sorted({b.length for b in bins})
    rng = np.random.default_rng(3)
    drawn = np.array([lengths.draw(rng, 4).max() for _ in range(4000)])
    for power in (1, 2):
        expected = sum(b.share * b.length**power for b in bins)
        assert np.mean(drawn.astype(float) ** power) == pytest.approx(expected, rel=0.01 * power)
    assert bins[-1].length == max_length
    assert bins[-1].share == pytest.approx(np.mean(drawn == max_length), abs=0.01)


def test_real_data_is_binned_over_its_own_epoch():
    rng = np.random.default_rng(0)
    examples = [QaExample(np.zeros(int(n), np.int32), 3, 0, 0) for n in rng.integers(20, 100, 103)]
    data = StoredText(Packed.pack(QaExample, examples), SOURCE, 100, 0)
    bins = data.length_bins(4, seed=5, width=8.0)
    padded = [max(len(e.tokens) for e in batch) for batch in data.batches(4, 26, 5)]
    assert sum(b.share for b in bins) == pytest.approx(1.0)
    assert sum(b.share * b.length for b in bins) == pytest.approx(np.mean(padded), abs=0.5)
    assert len(bins) > 3
    assert min(padded) <= bins[0].length
    assert bins[-1].length <= max(padded)
