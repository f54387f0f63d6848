"""Batches of extractive question answering."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.examples import QaExample


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
