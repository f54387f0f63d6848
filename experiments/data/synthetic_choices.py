"""Generated multiple choice: the lengths of SWAG, and right endings that can be learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mimose_bench.experiments.data.examples import ChoiceExample
from mimose_bench.experiments.data.synthetic import ROBERTA, Generated, Ids

NUM_CHOICES = 4
_NUM_ADDED = 4


@dataclass(frozen=True, slots=True)
class SyntheticChoices(Generated[ChoiceExample]):
    """Random words in which the right ending holds a mark.

    ``<s> context </s></s> ending </s>`` four times, as RoBERTa takes them. An example's length is
    that of its longest choice: the paper shows no more of SWAG. Assumed here: the context is a
    third to two thirds of that, and the other endings are at least half as long as the longest.
    """

    dataset: ClassVar[str] = "SWAG"
    floor: ClassVar[int] = 8  # room for two words and two
    ids: ClassVar[Ids] = ROBERTA

    def _example(self, rng: np.random.Generator, length: int) -> ChoiceExample:
        ids = self.ids
        words = length - _NUM_ADDED
        told = int(np.clip(round(words * rng.uniform(1 / 3, 2 / 3)), 1, words - 1))
        context = rng.integers(ids.words, self.vocab_size, told, dtype=np.int32)
        endings = np.ceil((words - told) * rng.uniform(0.5, 1.0, NUM_CHOICES)).astype(np.int64)
        endings[rng.integers(NUM_CHOICES)] = words - told
        lengths = endings + told + _NUM_ADDED
        label = int(rng.integers(NUM_CHOICES))
        ends = np.cumsum(lengths).astype(np.int32)
        tokens = rng.integers(ids.words, self.vocab_size, ends[-1], dtype=np.int32)
        for number, (end, size) in enumerate(zip(ends, lengths)):
            choice = tokens[end - size : end]
            choice[0] = ids.cls
            choice[1 : told + 1] = context
            choice[told + 1] = choice[told + 2] = choice[-1] = ids.sep
            if number == label:
                choice[rng.integers(told + 3, size - 1)] = ids.mark
        splits = np.full(NUM_CHOICES, told + 2, np.int32)
        return ChoiceExample(tokens, ends, splits, label)
