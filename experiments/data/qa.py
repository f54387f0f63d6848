"""Extractive question answering: its examples, tokenised, and their batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.examples import QaExample
from mimose_bench.experiments.data.lengths import LengthBin, bins_of
from mimose_bench.experiments.data.order import epoch_batches
from mimose_bench.experiments.data.sources import DataSource


@dataclass(frozen=True, slots=True)
class QaFeatures:
    """Many examples, stored end to end.

    Attributes:
        tokens: Token ids of all of them, 1-D ``int32``.
        bounds: Where each begins, and the end of the last; one more than there are examples.
        num_question_tokens: See :class:`QaExample`, one entry an example.
        starts: Likewise.
        ends: Likewise.
    """

    tokens: np.ndarray
    bounds: np.ndarray
    num_question_tokens: np.ndarray
    starts: np.ndarray
    ends: np.ndarray

    @classmethod
    def pack(cls, examples: Sequence[QaExample]) -> QaFeatures:
        """Return ``examples`` end to end."""
        lengths = [len(e.tokens) for e in examples]
        return cls(
            np.concatenate([e.tokens for e in examples]).astype(np.int32),
            np.concatenate([[0], np.cumsum(lengths)]),
            *(np.array([e[field] for e in examples], dtype=np.int32) for field in (1, 2, 3)),
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> QaExample:
        return QaExample(
            self.tokens[self.bounds[index] : self.bounds[index + 1]],
            int(self.num_question_tokens[index]),
            int(self.starts[index]),
            int(self.ends[index]),
        )

    @property
    def lengths(self) -> np.ndarray:
        """Length of each example in tokens."""
        return np.diff(self.bounds)


@dataclass(frozen=True, slots=True)
class TextQa:
    """Tokenised questions, visited in a new order every epoch."""

    features: QaFeatures
    source: DataSource
    vocab_size: int
    pad_id: int

    @property
    def num_examples(self) -> int:
        """Number of examples."""
        return len(self.features)

    @property
    def longest(self) -> int:
        """Length of the longest example, in tokens."""
        return int(self.features.lengths.max())

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[QaExample]]:
        """Yield the examples of ``steps`` batches, the last of an epoch possibly smaller."""
        for _, chosen in epoch_batches(len(self.features), batch_size, steps, seed):
            yield [self.features[index] for index in chosen]

    def length_bins(self, batch_size: int, seed: int, width: float) -> tuple[LengthBin, ...]:
        """Return the distribution of the first epoch's padded batch lengths."""
        lengths = self.features.lengths
        steps = -(-len(lengths) // batch_size)
        order = epoch_batches(len(lengths), batch_size, steps, seed)
        return bins_of((int(lengths[chosen].max()) for _, chosen in order), width)


def collate(examples: Sequence[QaExample], pad_id: int) -> Batch:
    """Return ``examples`` padded to the longest of them.

    The tensors are ``input_ids``, ``token_type_ids`` and ``attention_mask``, each ``int64`` of
    shape ``(batch, length)``, and ``start_positions`` and ``end_positions``, of shape ``(batch,)``.
    """
    import torch

    lengths = [len(e.tokens) for e in examples]
    shape = len(examples), max(lengths)
    ids = np.full(shape, pad_id, dtype=np.int64)
    types = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.int64)
    for row, (example, length) in enumerate(zip(examples, lengths)):
        ids[row, :length] = example.tokens
        types[row, example.split : length] = 1
        mask[row, :length] = 1
    arrays = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": mask,
        "start_positions": np.array([e.start for e in examples], dtype=np.int64),
        "end_positions": np.array([e.end for e in examples], dtype=np.int64),
    }
    # Borrowing numpy's memory keeps the batch out of PyTorch's allocator until it is copied in.
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    return Batch(tensors, shape, shape[0] * shape[1], shape[0], sum(lengths))
