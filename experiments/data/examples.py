"""Tokenised examples: what one of each kind holds, and many of them stored end to end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from mimose_bench.experiments.data.lengths import LengthBin, bins_of
from mimose_bench.experiments.data.order import epoch_batches
from mimose_bench.experiments.data.sources import DataSource


class QaExample(NamedTuple):
    """A question and a context as the model takes them, with the answer's place.

    Attributes:
        tokens: Token ids, special ones included, 1-D, not padded.
        split: How many of them belong to the first of the two texts, its separators included.
        start: Position of the answer's first token; where the window does not hold the answer,
            that of the classification token.
        end: Position of its last token; likewise.
    """

    tokens: np.ndarray
    split: int
    start: int
    end: int

    @property
    def lengths(self) -> tuple[int]:
        """Length in tokens."""
        return (len(self.tokens),)

    @staticmethod
    def lengths_in(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the lengths of many examples; see :class:`TextExample`."""
        return np.diff(columns["tokens.bounds"])[:, None]


class PairExample(NamedTuple):
    """Two sentences and the class that the pair is of.

    Attributes:
        tokens: Token ids of both, special ones included, 1-D, not padded.
        split: How many of them belong to the first sentence, its separators included.
        label: Number of the class.
    """

    tokens: np.ndarray
    split: int
    label: int

    @property
    def lengths(self) -> tuple[int]:
        """Length in tokens."""
        return (len(self.tokens),)

    @staticmethod
    def lengths_in(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the lengths of many examples; see :class:`TextExample`."""
        return np.diff(columns["tokens.bounds"])[:, None]


class ChoiceExample(NamedTuple):
    """A context with several endings, one of which is right.

    Attributes:
        tokens: Token ids of every choice (context and ending), one choice after the other, 1-D.
        ends: Where each choice ends in ``tokens``.
        splits: How many of each choice's tokens belong to the context, its separators included.
        label: Number of the right choice.
    """

    tokens: np.ndarray
    ends: np.ndarray
    splits: np.ndarray
    label: int

    @property
    def choices(self) -> list[np.ndarray]:
        """Token ids of each choice."""
        return np.split(self.tokens, self.ends[:-1])

    @property
    def lengths(self) -> tuple[int]:
        """Length of the longest choice in tokens."""
        return (int(np.diff(self.ends, prepend=0).max()),)

    @staticmethod
    def lengths_in(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the lengths of many examples; see :class:`TextExample`."""
        ends, first = columns["ends"], columns["ends.bounds"][:-1]
        lengths = np.diff(ends, prepend=0)
        lengths[first] = ends[first]
        return np.maximum.reduceat(lengths, first)[:, None]


class TranslationExample(NamedTuple):
    """A sentence in two languages.

    Attributes:
        source: Token ids of what the encoder reads, special ones included, 1-D, not padded.
        target: Token ids of what the decoder is to write; likewise.
    """

    source: np.ndarray
    target: np.ndarray

    @property
    def lengths(self) -> tuple[int, int]:
        """Lengths of source and target in tokens."""
        return len(self.source), len(self.target)

    @staticmethod
    def lengths_in(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the lengths of many examples; see :class:`TextExample`."""
        bounds = columns["source.bounds"], columns["target.bounds"]
        return np.stack([np.diff(each) for each in bounds], axis=1)


class TextExample(Protocol):
    """Any of the above."""

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths that a batch is padded to, one for each of a model's inputs."""

    @staticmethod
    def lengths_in(columns: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return ``lengths`` of the examples in a :class:`Packed`'s columns, one a row."""


E = TypeVar("E", bound=TextExample)
E_co = TypeVar("E_co", bound=TextExample, covariant=True)


class TextData(Protocol[E_co]):
    """Examples from anywhere, in batches.

    Attributes:
        source: What to say of this data.
        vocab_size: Token ids lie below it.
        pad_id: The token that batches are padded with.
    """

    source: DataSource
    vocab_size: int
    pad_id: int

    @property
    def num_examples(self) -> int:
        """Number of examples in an epoch."""

    @property
    def longest(self) -> tuple[int, ...]:
        """The greatest lengths that a batch can have."""

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[Sequence[E_co]]:
        """Yield the examples of ``steps`` batches; equal seeds give equal batches."""

    def length_bins(self, batch_size: int, seed: int, width: float) -> tuple[LengthBin, ...]:
        """Return the distribution of an epoch's padded batch lengths, by the first of them.

        Args:
            batch_size: Samples in a batch.
            seed: The seed of the epoch, for data whose batches depend on their order.
            width: Width of a bin in tokens, for data that brings none of its own.
        """


class Packed(Generic[E]):
    """Many examples of one kind, each field of all of them in one array.

    Args:
        kind: A class of named tuples whose fields are 1-D integer arrays or integers.
        columns: An array a field, and for a field of arrays ``NAME.bounds``: where each example's
            begins, and the end of the last.
    """

    def __init__(self, kind: type[E], columns: Mapping[str, np.ndarray]) -> None:
        self.kind = kind
        self.columns = dict(columns)
        self._fields: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        self._ragged = {name for name in self._fields if f"{name}.bounds" in self.columns}

    @classmethod
    def pack(cls, kind: type[E], examples: Sequence[E]) -> Packed[E]:
        """Return ``examples``, at least one, end to end."""
        columns: dict[str, np.ndarray] = {}
        for name in kind._fields:  # type: ignore[attr-defined]
            values = [getattr(example, name) for example in examples]
            if isinstance(values[0], np.ndarray):
                columns[name] = np.concatenate(values).astype(np.int32)
                columns[f"{name}.bounds"] = np.cumsum([0, *map(len, values)], dtype=np.int64)
            else:
                columns[name] = np.array(values, np.int32)
        return cls(kind, columns)

    def __len__(self) -> int:
        return min(len(self.columns[n]) - 1 for n in self._bounds) if self._bounds else 0

    def is_whole(self) -> bool:
        """Return whether the columns are those of at least one example of the kind."""
        counts = set()
        for name in self._fields:
            column = self.columns.get(name, np.zeros(0))
            bounds = self.columns.get(f"{name}.bounds")
            parts = [column] if bounds is None else [column, bounds]
            if any(part.ndim != 1 or part.dtype.kind != "i" for part in parts):
                return False
            if bounds is None:
                counts.add(len(column))
            else:
                ends = len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == len(column)
                if not ends or (np.diff(bounds) < 0).any():
                    return False
                counts.add(len(bounds) - 1)
        return bool(self._ragged) and len(counts) == 1 and counts.pop() > 0

    @property
    def _bounds(self) -> list[str]:
        return [f"{name}.bounds" for name in self._ragged]

    def __getitem__(self, index: int) -> E:
        fields: list[Any] = []
        for name in self._fields:
            column = self.columns[name]
            if name in self._ragged:
                bounds = self.columns[f"{name}.bounds"]
                fields.append(column[bounds[index] : bounds[index + 1]])
            else:
                fields.append(int(column[index]))
        return self.kind(*fields)


@dataclass(frozen=True, slots=True)
class StoredText(Generic[E]):
    """Tokenised examples, visited in a new order every epoch; see :class:`TextData`."""

    examples: Packed[E]
    source: DataSource
    vocab_size: int
    pad_id: int

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return len(self.examples)

    @property
    def lengths(self) -> np.ndarray:
        """Lengths of each example in tokens, of shape ``(examples, number of lengths)``."""
        return self.examples.kind.lengths_in(self.examples.columns)

    @property
    def longest(self) -> tuple[int, ...]:
        """Greatest lengths of any example, in tokens."""
        return tuple(int(x) for x in self.lengths.max(axis=0))

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[E]]:
        """Yield the examples of ``steps`` batches, the last of an epoch possibly smaller."""
        for _, chosen in epoch_batches(len(self.examples), batch_size, steps, seed):
            yield [self.examples[int(index)] for index in chosen]

    def length_bins(self, batch_size: int, seed: int, width: float) -> tuple[LengthBin, ...]:
        """Return the distribution of the first epoch's padded batch lengths."""
        lengths = self.lengths[:, 0]
        steps = -(-len(lengths) // batch_size)
        order = epoch_batches(len(lengths), batch_size, steps, seed)
        return bins_of((int(lengths[chosen].max()) for _, chosen in order), width)
