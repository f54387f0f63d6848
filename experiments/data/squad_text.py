"""SQuAD ready for training: opened from a file or from the hub, checked and tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.examples import QaExample, StoredText
from mimose_bench.experiments.data.local import read_data
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.squad import Question, from_rows, parse_squad
from mimose_bench.experiments.data.squad_windows import tokenize
from mimose_bench.experiments.data.stored import Tokenised, digest_of, open_text, tokenizer_for
from mimose_bench.experiments.data.tokens import TextTokenizer, hub_tokenizer


def open_path(
    path: Path, vocab: Path | None, template: str, max_length: int, stride: int, reason: str
) -> StoredText[QaExample]:
    """Return the questions of a SQuAD v1.1 JSON file.

    Args:
        path: The file.
        vocab: The tokenizer; None to look for it in the file's folder.
        template: ``bert`` or ``xlnet``.
        max_length: Tokens in the longest example.
        stride: Tokens that consecutive windows of a long context share.
        reason: Why this source was taken.

    Raises:
        ValueError: If the file or the tokenizer is missing or not what it should be.
    """
    data = read_data(path, "SQuAD JSON file")
    source = DataSource(kind="path", detail=str(path), reason=reason)
    tokenizer = tokenizer_for(path, vocab)
    read = partial(parse_squad, path, data)
    return _open(source, tokenizer, template, max_length, stride, digest_of(data), read)


def open_hub(
    model: str, template: str, max_length: int, stride: int, reason: str
) -> StoredText[QaExample]:
    """Return the training questions of the hub's ``squad``, tokenised for ``model``.

    Args:
        model: The model whose tokenizer is used.
        template: ``bert`` or ``xlnet``.
        max_length: Tokens in the longest example.
        stride: Tokens that consecutive windows of a long context share.
        reason: Why this source was taken.

    Raises:
        HubUnavailableError: If the hub does not answer and holds no copy here.
    """
    rows = hub.load_split(("rajpurkar/squad", "squad"), "train")
    source = DataSource(kind="hub", detail="squad, split train", reason=reason)
    tokenizer = hub_tokenizer(model)
    read = partial(from_rows, rows)
    return _open(source, tokenizer, template, max_length, stride, digest_of(rows), read)


def _open(
    source: DataSource,
    tokenizer: TextTokenizer,
    template: str,
    max_length: int,
    stride: int,
    content: str,
    read: Callable[[], tuple[Sequence[Question], Omissions]],
) -> StoredText[QaExample]:
    return open_text(
        QaExample,
        source,
        tokenizer,
        template,
        {"max_length": max_length, "stride": stride},
        content,
        read,
        lambda asked: Tokenised(*tokenize(asked, tokenizer, template, max_length, stride)),
        "question",
    )
