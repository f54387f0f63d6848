"""Generated translation: the lengths of UN_PC, and a language that can be learnt."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mimose_bench.experiments.data.examples import TranslationExample
from mimose_bench.experiments.data.synthetic import Generated, Ids

T5 = Ids(pad=0, cls=0, sep=1, mark=3, words=8)
"""T5 has no classification token; the marks are the words of its prompt."""
_PROMPT = np.arange(T5.mark, T5.words, dtype=np.int32)  # "translate English to French:"
# Assumed of French: 1.15 tokens for one of English. So many words are translated by two.
_IN_TWO_WORDS = 0.15
_SKEW = 1.5
"""The k-th most frequent word is ``k ** -_SKEW`` as frequent as the first."""


@dataclass(frozen=True, slots=True)
class SyntheticTranslation(Generated[TranslationExample]):
    """Words from a skewed distribution, each with one translation, of one word or of two.

    ``prompt words </s>`` and ``words </s>``, as T5 takes them. Which words take two is fixed, and
    chosen so that a target has 1.15 words for one of its source, more or less by chance.
    """

    dataset: ClassVar[str] = "UN_PC"
    floor: ClassVar[int] = 8  # room for the prompt and two words
    ids: ClassVar[Ids] = T5

    @property
    def longest(self) -> tuple[int, int]:
        """The greatest lengths that can be drawn, in tokens: targets are cut at the model's."""
        return self._lengths().greatest, self.max_length

    def examples_of_size(
        self, batch_size: int, lengths: tuple[int, ...], seed: int
    ) -> list[TranslationExample]:
        """Return examples of which one has these lengths and none is longer."""
        longest, longest_target = lengths
        examples = Generated.examples_of_size(self, batch_size, (longest,), seed)
        first = next(i for i, e in enumerate(examples) if len(e.source) == longest)
        return [
            TranslationExample(
                source, _of_length(target, longest_target if i == first else None, longest_target)
            )
            for i, (source, target) in enumerate(examples)
        ]

    def _example(self, rng: np.random.Generator, length: int) -> TranslationExample:
        reached, translations, in_two = _language(self.vocab_size)
        words = np.searchsorted(reached, rng.random(length - len(_PROMPT) - 1))
        end = np.array([self.ids.sep], np.int32)
        source = np.concatenate([_PROMPT, words.astype(np.int32) + self.ids.words, end])
        target = translations[words][np.stack([np.ones_like(in_two[words]), in_two[words]], 1)]
        return TranslationExample(source, np.concatenate([target[: self.max_length - 1], end]))


def _of_length(target: np.ndarray, length: int | None, longest: int) -> np.ndarray:
    """Return a target cut to ``longest``, or repeated to ``length``, its end kept."""
    words, end = target[:-1], target[-1:]
    if length is not None:
        words = np.resize(words, length - 1)
    return np.concatenate([words[: longest - 1], end])


@functools.lru_cache(maxsize=4)
def _language(vocab_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a language's words, numbered from zero by how frequent they are.

    Returns:
        The share of text that each word and all more frequent ones make up; each word's two words
        of translation, as tokens; and whether it takes both.
    """
    rng = np.random.default_rng(0x7E57)  # one language for all data, whatever its seed
    number = vocab_size - T5.words
    shares = np.arange(1, number + 1) ** -_SKEW
    shares /= shares.sum()
    firsts, seconds = (T5.words + rng.permutation(number) for _ in range(2))
    in_two, total = np.zeros(number, np.bool_), 0.0
    for word, share in enumerate(shares):
        if total + share <= _IN_TWO_WORDS:
            in_two[word], total = True, total + share
    translations = np.stack([firsts, seconds], 1).astype(np.int32)
    return np.cumsum(shares), translations, in_two
