"""Generated question answering: the lengths of SQuAD, and answers that can be learnt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np

from mimose_bench.experiments.data.lengths import BatchLengths, LengthBin
from mimose_bench.experiments.data.qa import QaExample
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.paper import length_histogram

SQUAD_LONGEST = 512
SHORTEST = 8
_PAD, _CLS, _SEP, _FIRST, _LAST, _WORDS = range(6)
_FLOOR = 16  # room for a question of a few words and an answer
_STREAM = 0x51AD  # keeps these draws apart from others with the same seed


def squad_lengths(max_length: int) -> BatchLengths:
    """Return the lengths of SQuAD's batches, shortened in proportion for models below 512 tokens.

    The histogram of the longest is the paper's Fig 3; the body, a lognormal, was fitted so that
    the longest of 12 features has that histogram's mean and quantiles.
    """
    return BatchLengths(
        histogram=length_histogram("SQuAD"),
        body=NormalDist(5.032, 0.397),
        longest=SQUAD_LONGEST,
        cut=True,
        stretch=max_length / SQUAD_LONGEST,
        floor=_FLOOR,
    )


@dataclass(frozen=True, slots=True)
class SyntheticQa:
    """Random words in which two marks, one at each end, show the answer.

    Every example is new; an epoch only decides where a smaller last batch comes.

    Attributes:
        source: What to say of this data.
        max_length: Greatest length in tokens.
        vocab_size: Token ids run below it; over 5.
        num_examples: Number of examples in an epoch.
    """

    source: DataSource
    max_length: int
    vocab_size: int
    num_examples: int
    pad_id: int = field(default=_PAD, init=False)

    @property
    def longest(self) -> int:
        """Length of the longest example that can be drawn, in tokens."""
        return self.max_length

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[QaExample]]:
        """Yield the examples of ``steps`` batches, the last of an epoch possibly smaller."""
        lengths = squad_lengths(self.max_length)
        full, rest = divmod(self.num_examples, batch_size)
        sizes = [batch_size] * full + [rest] * (rest > 0)
        for step in range(steps):
            rng = np.random.default_rng((seed, _STREAM, step))
            drawn = lengths.draw(rng, sizes[step % len(sizes)])
            yield [self._example(rng, int(length)) for length in drawn]

    def length_bins(self, batch_size: int, seed: int, width: float) -> tuple[LengthBin, ...]:
        """Return what the padded lengths are drawn from, whatever the batch size and seed."""
        return squad_lengths(self.max_length).bins()

    def examples_of_size(self, batch_size: int, length: int, seed: int) -> list[QaExample]:
        """Return examples of which one has ``length`` tokens and none has more."""
        rng = np.random.default_rng((seed, _STREAM))
        drawn = squad_lengths(self.max_length).draw_below(rng, batch_size, length)
        return [self._example(rng, int(each)) for each in drawn]

    def _example(self, rng: np.random.Generator, length: int) -> QaExample:
        tokens = rng.integers(_WORDS, self.vocab_size, length, dtype=np.int32)
        # SQuAD's questions have 12.6 tokens on average, with a deviation of 4.1.
        asked = int(np.clip(round(rng.normal(12.6, 4.1)), 1, max((length - 3) // 3, 1)))
        first = asked + 2
        tokens[0] = _CLS
        tokens[first - 1] = tokens[length - 1] = _SEP
        answer = int(rng.integers(2, 7))
        start = int(rng.integers(first, max(length - answer, first + 1)))
        end = min(start + answer, length - 1) - 1
        tokens[start], tokens[end] = _FIRST, _LAST
        return QaExample(tokens, first, start, end)
