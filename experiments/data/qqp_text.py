"""GLUE-QQP ready for training: opened from a file or from the hub, checked and tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.examples import PairExample, StoredText
from mimose_bench.experiments.data.local import read_data
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.qqp import WHAT, QuestionPair, from_rows, parse_qqp
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.stored import (
    NOTHING_LEFT,
    Tokenised,
    digest_of,
    open_text,
    tokenizer_for,
)
from mimose_bench.experiments.data.templates import TEMPLATES
from mimose_bench.experiments.data.tokens import TextTokenizer, hub_tokenizer

_TEMPLATE = "bert"


def open_path(
    path: Path, vocab: Path | None, max_length: int, reason: str
) -> StoredText[PairExample]:
    """Return the question pairs of a GLUE-QQP TSV file.

    Args:
        path: The file.
        vocab: The tokenizer; None to look for it in the file's folder.
        max_length: Tokens in the longest example.
        reason: Why this source was taken.

    Raises:
        ValueError: If the file or the tokenizer is missing or not what it should be.
    """
    data = read_data(path, WHAT)
    source = DataSource(kind="path", detail=str(path), reason=reason)
    tokenizer = tokenizer_for(path, vocab)
    return _open(source, tokenizer, max_length, digest_of(data), partial(parse_qqp, path, data))


def open_hub(model: str, max_length: int, reason: str) -> StoredText[PairExample]:
    """Return the training pairs of the hub's ``glue``, tokenised for ``model``.

    Args:
        model: The model whose tokenizer is used.
        max_length: Tokens in the longest example.
        reason: Why this source was taken.

    Raises:
        HubUnavailableError: If the hub does not answer and holds no copy here.
    """
    rows = hub.load_split(("nyu-mll/glue", "glue"), "train", "qqp")
    source = DataSource(kind="hub", detail="glue qqp, split train", reason=reason)
    tokenizer = hub_tokenizer(model)
    return _open(source, tokenizer, max_length, digest_of(rows), partial(from_rows, rows))


def tokenize(pairs: Sequence[QuestionPair], tokenizer: TextTokenizer, max_length: int) -> Tokenised:
    """Return ``[CLS] question [SEP] question [SEP]`` of each pair, the longer question cut first.

    Args:
        pairs: What to tokenise.
        tokenizer: A tokenizer of any family.
        max_length: Tokens in the longest example.
    """
    layout = TEMPLATES[_TEMPLATE].layout(tokenizer)
    omitted, examples, num_cut = Omissions(), [], 0
    sides = ([pair.first for pair in pairs], [pair.second for pair in pairs])
    for pair, first, second in zip(pairs, *map(tokenizer.encode, sides)):
        if not first or not second:
            omitted.add(NOTHING_LEFT, pair.name)
            continue
        tokens, split, was_cut = layout.fitting_pair(first, second, max_length)
        examples.append(PairExample(tokens, split, pair.label))
        num_cut += was_cut
    return Tokenised(examples, omitted, num_cut)


def _open(
    source: DataSource,
    tokenizer: TextTokenizer,
    max_length: int,
    content: str,
    read: Callable[[], tuple[Sequence[QuestionPair], Omissions]],
) -> StoredText[PairExample]:
    return open_text(
        PairExample,
        source,
        tokenizer,
        _TEMPLATE,
        {"max_length": max_length},
        content,
        read,
        lambda pairs: tokenize(pairs, tokenizer, max_length),
        "question pair",
    )
