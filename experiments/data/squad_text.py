"""SQuAD ready for training: opened from a file or from the hub, checked and tokenised."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.qa import QaFeatures, TextQa
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.squad import Question, from_rows, read_squad
from mimose_bench.experiments.data.wordpiece import (
    find_vocabulary,
    read_vocabulary,
    tokenize,
    vocabulary_size,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer

log = logging.getLogger(__name__)


def open_path(path: Path, vocab: Path | None, max_length: int, stride: int, reason: str) -> TextQa:
    """Return the questions of a SQuAD v1.1 JSON file.

    Args:
        path: The file.
        vocab: BERT's vocabulary; None to look for it in the file's folder.
        max_length: Tokens in the longest example.
        stride: Tokens that consecutive windows of a long context share.
        reason: Why this source was taken.

    Raises:
        ValueError: If the file or the vocabulary is missing or not what it should be.
    """
    questions, omitted = read_squad(path)
    tokenizer = read_vocabulary(find_vocabulary(path) if vocab is None else vocab)
    source = DataSource(kind="path", detail=str(path), reason=reason)
    return _tokenized(questions, omitted, source, tokenizer, max_length, stride)


def open_hub(model: str, max_length: int, stride: int, reason: str) -> TextQa:
    """Return the training questions of the hub's ``squad``, tokenised for ``model``.

    Args:
        model: The model whose tokenizer is used.
        max_length: Tokens in the longest example.
        stride: Tokens that consecutive windows of a long context share.
        reason: Why this source was taken.

    Raises:
        HubUnavailableError: If the hub does not answer and holds no copy here.
    """
    rows = hub.load_split(("squad", "rajpurkar/squad"), "train")
    tokenizer = hub.load_tokenizer(model)
    questions, omitted = from_rows(rows)
    source = DataSource(kind="hub", detail="squad, split train", reason=reason)
    return _tokenized(questions, omitted, source, tokenizer, max_length, stride)


def _tokenized(
    questions: Sequence[Question],
    omitted: Omissions,
    source: DataSource,
    tokenizer: Tokenizer,
    max_length: int,
    stride: int,
) -> TextQa:
    started = time.perf_counter()
    examples, too_long = tokenize(questions, tokenizer, max_length, stride)
    log.info(
        "tokenised %d questions into %d examples in %.2f s",
        len(questions) - len(too_long),
        len(examples),
        time.perf_counter() - started,
    )
    total = len(questions) + len(omitted)
    omitted.extend(too_long)
    if not examples:
        raise ValueError(f"{source.detail} holds no usable question: {omitted.describe()}")
    notes = ()
    if len(omitted):
        notes = (f"left out {len(omitted)} of {total} records: {omitted.describe()}",)
    return TextQa(
        features=QaFeatures.pack(examples),
        source=replace(source, notes=notes),
        vocab_size=vocabulary_size(tokenizer),
        pad_id=tokenizer.token_to_id("[PAD]"),
    )
