"""Generated text: the lengths of the paper's data sets, and something that can be learnt."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from mimose_bench.experiments.data.examples import TextExample
from mimose_bench.experiments.data.lengths import BatchLengths, LengthBin, paper_batches
from mimose_bench.experiments.data.sources import DataSource

E = TypeVar("E", bound=TextExample)
_STREAM = 0x51AD  # keeps these draws apart from others with the same seed


class Ids(NamedTuple):
    """Ids of special tokens, where a family of models has them.

    Attributes:
        pad: Fills a batch.
        cls: Stands for the whole sequence.
        sep: Ends a text.
        mark: The first of some that stand for what is to be learnt.
        words: The first of all others.
    """

    pad: int
    cls: int
    sep: int
    mark: int
    words: int


BERT = Ids(pad=0, cls=1, sep=2, mark=3, words=5)
ROBERTA = Ids(pad=1, cls=0, sep=2, mark=4, words=6)
XLNET = Ids(pad=5, cls=3, sep=4, mark=7, words=9)


@dataclass(frozen=True, slots=True)
class Generated(ABC, Generic[E]):
    """Examples of random words, in batches of the paper's padded lengths.

    Every example is new; an epoch only decides where a smaller last batch comes.

    Attributes:
        dataset: Whose lengths, as the paper's Fig 3 calls it.
        floor: Least length of an example.
        ids: Its special tokens.
        source: What to say of this data.
        max_length: Greatest length in tokens that the model takes.
        vocab_size: Token ids run below it.
        num_examples: Number of examples in an epoch.
    """

    dataset: ClassVar[str]
    floor: ClassVar[int]
    ids: ClassVar[Ids] = BERT

    source: DataSource
    max_length: int
    vocab_size: int
    num_examples: int

    @abstractmethod
    def _example(self, rng: np.random.Generator, length: int) -> E:
        """Return an example whose first length is ``length``."""

    @property
    def pad_id(self) -> int:
        """The token that batches are padded with."""
        return self.ids.pad

    @property
    def longest(self) -> tuple[int, ...]:
        """The greatest lengths that can be drawn, in tokens."""
        return (self._lengths().greatest,)

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[E]]:
        """Yield the examples of ``steps`` batches, the last of an epoch possibly smaller."""
        for rng, drawn in self._draw(batch_size, steps, seed):
            yield [self._example(rng, int(length)) for length in drawn]

    def lengths(self, batch_size: int, steps: int, seed: int) -> Iterator[list[int]]:
        """Yield the first lengths of the examples that :meth:`batches` would yield."""
        for _, drawn in self._draw(batch_size, steps, seed):
            yield [int(length) for length in drawn]

    def _draw(
        self, batch_size: int, steps: int, seed: int
    ) -> Iterator[tuple[np.random.Generator, np.ndarray]]:
        lengths = self._lengths()
        full, rest = divmod(self.num_examples, batch_size)
        for step in range(steps):
            number = step % (full + (rest > 0))
            rng = np.random.default_rng((seed, _STREAM, step))
            yield rng, lengths.draw(rng, batch_size if number < full else rest)

    def length_bins(self, batch_size: int, seed: int, width: float) -> tuple[LengthBin, ...]:
        """Return what the padded lengths are drawn from, whatever the batch size and seed."""
        return self._lengths().bins()

    def examples_of_size(self, batch_size: int, lengths: tuple[int, ...], seed: int) -> list[E]:
        """Return examples of which one has these lengths and none is longer."""
        rng = np.random.default_rng((seed, _STREAM))
        drawn = self._lengths().draw_below(rng, batch_size, lengths[0])
        return [self._example(rng, int(each)) for each in drawn]

    def _lengths(self) -> BatchLengths:
        return paper_batches(self.dataset, self.max_length, self.floor)
