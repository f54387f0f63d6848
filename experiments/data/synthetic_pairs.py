"""Generated pairs of sentences: the lengths of GLUE-QQP, and duplicates that can be learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mimose_bench.experiments.data.examples import PairExample
from mimose_bench.experiments.data.synthetic import Generated

_DUPLICATES = 0.369  # QQP's share


@dataclass(frozen=True, slots=True)
class SyntheticPairs(Generated[PairExample]):
    """Random words in which the two sentences of a duplicate hold the same mark.

    ``[CLS] A [SEP] B [SEP]``, as BERT takes them; label 1 is a duplicate.
    """

    dataset: ClassVar[str] = "GLUE-QQP"
    floor: ClassVar[int] = 8  # room for two words and two

    def _example(self, rng: np.random.Generator, length: int) -> PairExample:
        ids = self.ids
        tokens = rng.integers(ids.words, self.vocab_size, length, dtype=np.int32)
        words = length - 3
        split = 2 + int(np.clip(round(words * rng.uniform(0.3, 0.7)), 1, words - 1))
        tokens[0] = ids.cls
        tokens[split - 1] = tokens[length - 1] = ids.sep
        label = int(rng.random() < _DUPLICATES)
        if label:
            tokens[rng.integers(1, split - 1)] = ids.mark
            tokens[rng.integers(split, length - 1)] = ids.mark
        return PairExample(tokens, split, label)
