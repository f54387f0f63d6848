import numpy as np
import pytest

from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.synthetic_choices import SyntheticChoices
from mimose_bench.experiments.data.synthetic_pairs import SyntheticPairs
from mimose_bench.experiments.data.synthetic_qa import SyntheticQa, SyntheticXlnetQa
from mimose_bench.experiments.data.synthetic_translation import SyntheticTranslation

SOURCE = DataSource(kind="synthetic", detail="words", reason="test")


def _data(max_length=512, vocab_size=30522, num_examples=87599):
    return SyntheticQa(SOURCE, max_length, vocab_size, num_examples)


def _lengths(data, batch_size, steps, seed=0):
    return [[len(e.tokens) for e in batch] for batch in data.batches(batch_size, steps, seed)]


# Mean and quantiles of padded batch lengths in Fig 3, IPDPS 2023 (10.1109/IPDPS54959.2023.00025).
PAPER = {
    SyntheticQa: (12, 299.0, 209, 287, 438),
    SyntheticXlnetQa: (16, 299.0, 209, 287, 438),
    SyntheticPairs: (32, 69.9, 49, 66, 103),
    SyntheticChoices: (16, 55.5, 42, 53, 77),
    SyntheticTranslation: (8, 73.1, 39, 68, 123),
}


@pytest.mark.parametrize("kind", PAPER)
@pytest.mark.parametrize("seed", [0, 1])
def test_padded_lengths_follow_the_paper(kind, seed):
    batch_size, mean, *quantiles = PAPER[kind]
    data = kind(SOURCE, 512, 30522, 87599)
    drawn = data.lengths(batch_size, 6000, seed)
    longest = np.array([max(each) for each in drawn])
    assert longest.mean() == pytest.approx(mean, rel=0.03)
    assert np.percentile(longest, (5, 50, 95)) == pytest.approx(quantiles, rel=0.03)
    assert longest.max() <= data.longest[0]


@pytest.mark.parametrize("kind", PAPER)
def test_lengths_are_those_of_the_examples(kind):
    data = kind(SOURCE, 96, 1024, 21)
    batches = [[e.lengths[0] for e in batch] for batch in data.batches(8, 12, 3)]
    assert batches == [list(each) for each in data.lengths(8, 12, 3)]
    assert max(map(max, batches)) <= data.longest[0]


@pytest.mark.parametrize("batch_size", [4, 12])
def test_padded_lengths_of_squad_do_not_depend_on_the_batch_size(batch_size):
    longest = np.array([max(each) for each in _data().lengths(batch_size, 4000, 0)])
    assert longest.mean() == pytest.approx(299.0, rel=0.03)
    assert longest.min() >= 153
    assert longest.max() == 512


def test_the_other_rows_are_shorter_and_differ():
    batches = _lengths(_data(), 12, 200)
    rows = np.concatenate(batches)
    assert 130 < rows.mean() < 200
    assert np.mean([len(set(each)) for each in batches]) > 10
    places = {each.index(max(each)) for each in batches}
    assert len(places) == 12


def test_short_models_see_the_same_lengths_shortened():
    longest = np.array([max(each) for each in _lengths(_data(max_length=128), 4, 2000)])
    assert longest.mean() == pytest.approx(299.0 / 4, rel=0.03)
    assert longest.max() == 128


@pytest.mark.parametrize("max_length", [128, 512])
def test_the_marks_stand_at_the_answers_ends(max_length):
    data = _data(max_length, vocab_size=64)
    for batch in data.batches(4, 50, seed=3):
        for example in batch:
            tokens = example.tokens
            assert 0 < example.split <= example.start < example.end < len(tokens) - 1
            assert (tokens == tokens[example.start]).sum() == 1
            assert (tokens == tokens[example.end]).sum() == 1
            assert tokens[0] == 1
            assert np.flatnonzero(tokens == 2).tolist() == [
                example.split - 1,
                len(tokens) - 1,
            ]
            assert 0 < tokens.min() <= tokens.max() < 64


def test_an_epoch_ends_with_a_smaller_batch():
    sizes = [len(each) for each in _lengths(_data(num_examples=10), 4, 7)]
    assert sizes == [4, 4, 2, 4, 4, 2, 4]


def test_seed_fixes_content_and_number_of_steps_does_not_matter():
    def content(steps, seed):
        return [[e.tokens.tolist() for e in b] for b in _data(128).batches(4, steps, seed)]

    assert content(6, 1)[:3] == content(3, 1)
    assert content(3, 1) != content(3, 2)


@pytest.mark.parametrize("length", [8, 9, 15, 16, 17, 100, 512])
def test_examples_of_a_given_size(length):
    examples = _data().examples_of_size(6, (length,), seed=0)
    assert len(examples) == 6
    assert max(len(e.tokens) for e in examples) == length
    assert all(e.start < e.end < len(e.tokens) - 1 for e in examples)
