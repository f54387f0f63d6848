"""Examples of text as padded batches, one function a kind.

The tensors borrow numpy's memory, which keeps a batch out of PyTorch's allocator until it is copied
in. All are ``int64`` where nothing else is said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np

from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.examples import (
    ChoiceExample,
    PairExample,
    QaExample,
    TranslationExample,
)

IGNORED = -100
"""What labels are padded with: no loss is taken there."""
_XLNET_CLS, _XLNET_PAD = 2, 3


def collate_qa(examples: Sequence[QaExample], pad_id: int) -> Batch:
    """Return questions padded to the longest of them, for BERT.

    The tensors are ``input_ids``, ``token_type_ids`` and ``attention_mask``, each of shape
    ``(batch, length)``, and ``start_positions`` and ``end_positions``, of shape ``(batch,)``.
    """
    arrays = {
        **_sentences([e.tokens for e in examples], [e.split for e in examples], pad_id),
        "start_positions": _column(e.start for e in examples),
        "end_positions": _column(e.end for e in examples),
    }
    return _batch(arrays, len(examples), sum(len(e.tokens) for e in examples))


def collate_qa_xlnet(examples: Sequence[QaExample], pad_id: int) -> Batch:
    """Return questions padded on the left to the longest of them, for XLNet with a beam search.

    The tensors are ``input_ids``, ``token_type_ids`` and ``attention_mask``, of shape ``(batch,
    length)``; likewise ``p_mask`` in floats, one where no answer can be; and of shape ``(batch,)``
    ``start_positions``, ``end_positions``, ``cls_index`` and, in floats, ``is_impossible``, one
    where the answer is on the classification token. As the features of Hugging Face's
    ``run_qa_beam_search.py``, an answer can be in the context or on that token.
    """
    texts = [e.tokens for e in examples]
    ids, mask = _padded(texts, pad_id, left=True)
    batch, length = ids.shape
    types = np.full(ids.shape, _XLNET_PAD, np.int64)
    hidden = np.ones(ids.shape, np.float32)
    for row, example in enumerate(examples):
        first = length - len(example.tokens)
        types[row, first : first + example.split] = 0
        types[row, first + example.split : -1] = 1
        hidden[row, first : first + example.split - 1] = 0.0
    types[:, -1] = _XLNET_CLS
    hidden[:, -1] = 0.0
    shifts = [length - len(text) for text in texts]
    starts = _column(e.start + shift for e, shift in zip(examples, shifts))
    arrays = {
        "input_ids": ids,
        "token_type_ids": types,
        "attention_mask": mask,
        "p_mask": hidden,
        "start_positions": starts,
        "end_positions": _column(e.end + shift for e, shift in zip(examples, shifts)),
        "cls_index": np.full(batch, length - 1, np.int64),
        "is_impossible": (starts == length - 1).astype(np.float32),
    }
    return _batch(arrays, batch, sum(map(len, texts)))


def collate_pairs(examples: Sequence[PairExample], pad_id: int) -> Batch:
    """Return pairs of sentences padded to the longest of them, for BERT.

    The tensors are ``input_ids``, ``token_type_ids`` and ``attention_mask``, each of shape
    ``(batch, length)``, and ``labels``, of shape ``(batch,)``.
    """
    arrays = {
        **_sentences([e.tokens for e in examples], [e.split for e in examples], pad_id),
        "labels": _column(e.label for e in examples),
    }
    return _batch(arrays, len(examples), sum(len(e.tokens) for e in examples))


def collate_choices(examples: Sequence[ChoiceExample], pad_id: int) -> Batch:
    """Return all choices padded to the longest of them, for RoBERTa, which knows no token types.

    The tensors are ``input_ids`` and ``attention_mask``, each of shape ``(batch, choices,
    length)``, and ``labels``, of shape ``(batch,)``.
    """
    texts = list(chain.from_iterable(example.choices for example in examples))
    ids, mask = _padded(texts, pad_id)
    shape = len(examples), len(texts) // len(examples), ids.shape[1]
    arrays = {
        "input_ids": ids.reshape(shape),
        "attention_mask": mask.reshape(shape),
        "labels": _column(e.label for e in examples),
    }
    return _batch(arrays, len(examples), sum(map(len, texts)))


def collate_translations(
    examples: Sequence[TranslationExample], pad_id: int, label_length: int | None
) -> Batch:
    """Return sentences and their translations, padded.

    The tensors are ``input_ids`` and ``attention_mask``, each of shape ``(batch, longest source)``,
    and ``labels``, of shape ``(batch, label length)``, filled up with ``IGNORED``.

    Args:
        examples: The sentences.
        pad_id: What sources are padded with.
        label_length: Length that labels are padded to; None for that of the longest.
    """
    ids, mask = _padded([e.source for e in examples], pad_id)
    labels, known = _padded([e.target for e in examples], IGNORED, length=label_length)
    arrays = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    batch = _batch(arrays, len(examples), int(mask.sum() + known.sum()))
    size = len(examples), ids.shape[1], labels.shape[1]
    return Batch(batch.tensors, size, ids.size + labels.size, len(examples), batch.num_tokens)


def _sentences(
    texts: Sequence[np.ndarray], splits: Sequence[int], pad_id: int
) -> dict[str, np.ndarray]:
    """Return what BERT takes of two texts each; padding is of type 0."""
    ids, mask = _padded(texts, pad_id)
    types = mask.copy()
    for row, split in enumerate(splits):
        types[row, :split] = 0
    return {"input_ids": ids, "token_type_ids": types, "attention_mask": mask}


def _padded(
    texts: Sequence[np.ndarray], fill: int, *, left: bool = False, length: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return ``texts`` in rows of one length, by default the longest's, and where they are."""
    width = max(map(len, texts)) if length is None else length
    ids = np.full((len(texts), width), fill, np.int64)
    mask = np.zeros(ids.shape, np.int64)
    for row, text in enumerate(texts):
        place = slice(width - len(text), width) if left else slice(len(text))
        ids[row, place] = text
        mask[row, place] = 1
    return ids, mask


def _column(values: Iterable[int]) -> np.ndarray:
    return np.fromiter(values, np.int64)


def _batch(arrays: Mapping[str, np.ndarray], num_samples: int, num_tokens: int) -> Batch:
    """Return a batch whose size is that of ``input_ids``, choices being rows of their own."""
    import torch

    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    *rows, length = arrays["input_ids"].shape
    number = int(np.prod(rows))
    return Batch(tensors, (number, length), number * length, num_samples, num_tokens)
