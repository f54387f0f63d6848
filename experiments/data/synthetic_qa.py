"""Generated question answering: the lengths of SQuAD, and answers that can be learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mimose_bench.experiments.data.examples import QaExample
from mimose_bench.experiments.data.synthetic import XLNET, Generated, Ids


@dataclass(frozen=True, slots=True)
class SyntheticQa(Generated[QaExample]):
    """Random words in which two marks, one at each end, show the answer.

    ``[CLS] question [SEP] context [SEP]``, as BERT takes them.
    """

    dataset: ClassVar[str] = "SQuAD"
    floor: ClassVar[int] = 16  # room for a question of a few words and an answer

    def _example(self, rng: np.random.Generator, length: int) -> QaExample:
        ids = self.ids
        tokens = rng.integers(ids.words, self.vocab_size, length, dtype=np.int32)
        # SQuAD's questions have 12.6 tokens on average, with a deviation of 4.1.
        asked = int(np.clip(round(rng.normal(12.6, 4.1)), 1, max((length - 3) // 3, 1)))
        first = asked + 2
        tokens[0] = ids.cls
        tokens[first - 1] = tokens[length - 1] = ids.sep
        answer = int(rng.integers(2, 7))
        start = int(rng.integers(first, max(length - answer, first + 1)))
        end = min(start + answer, length - 1) - 1
        tokens[start], tokens[end] = ids.mark, ids.mark + 1
        return QaExample(tokens, first, start, end)


@dataclass(frozen=True, slots=True)
class SyntheticXlnetQa(SyntheticQa):
    """The same as XLNet takes it: ``context <sep> question <sep> <cls>``.

    The lengths are those of SQuAD as BERT's tokenizer cuts it, since the paper shows no others.
    """

    ids: ClassVar[Ids] = XLNET

    def _example(self, rng: np.random.Generator, length: int) -> QaExample:
        tokens, first, start, end = SyntheticQa._example(self, rng, length)
        turned = np.concatenate([tokens[first:], tokens[1:first], tokens[:1]])
        return QaExample(turned, length - first, start - first, end - first)
