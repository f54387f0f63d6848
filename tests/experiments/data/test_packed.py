import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimose_bench.experiments.data.examples import (
    ChoiceExample,
    Packed,
    PairExample,
    QaExample,
    StoredText,
    TranslationExample,
)
from mimose_bench.experiments.data.sources import DataSource


def _tokens(rng, least=1):
    return rng.integers(0, 1000, rng.integers(least, 40)).astype(np.int32)


def _choice(rng):
    choices = [_tokens(rng) for _ in range(4)]
    ends = np.cumsum([len(c) for c in choices])
    return ChoiceExample(np.concatenate(choices), ends, rng.integers(0, 9, 4), 2)


MAKERS = {
    QaExample: lambda rng: QaExample(_tokens(rng), 3, 1, 2),
    PairExample: lambda rng: PairExample(_tokens(rng), 2, int(rng.integers(2))),
    ChoiceExample: _choice,
    TranslationExample: lambda rng: TranslationExample(_tokens(rng), _tokens(rng, 0)),
}


@pytest.mark.parametrize("kind", MAKERS)
@given(seed=st.integers(0, 99), count=st.integers(1, 9))
def test_examples_unpack_to_what_was_packed(kind, seed, count):
    rng = np.random.default_rng(seed)
    examples = [MAKERS[kind](rng) for _ in range(count)]
    packed = Packed.pack(kind, examples)
    assert packed.is_whole()
    assert len(packed) == count
    for index, example in enumerate(examples):
        for left, right in zip(packed[index], example):
            assert np.array_equal(left, right)
    lengths = StoredText(packed, DataSource(kind="path", detail="", reason=""), 1000, 0).lengths
    assert [tuple(row) for row in lengths.tolist()] == [e.lengths for e in examples]


@pytest.mark.parametrize("kind", MAKERS)
def test_columns_that_are_not_those_of_the_kind_are_noticed(kind):
    rng = np.random.default_rng(0)
    columns = Packed.pack(kind, [MAKERS[kind](rng) for _ in range(3)]).columns
    for name, column in columns.items():
        for spoilt in (column[:-1], column[None], column.astype(float), column[:0]):
            assert not Packed(kind, {**columns, name: spoilt}).is_whole()
        without = {other: array for other, array in columns.items() if other != name}
        assert not Packed(kind, without).is_whole()
        if name.endswith(".bounds"):
            assert not Packed(kind, {**columns, name: column[::-1]}).is_whole()
    assert not Packed(kind, {}).is_whole()
