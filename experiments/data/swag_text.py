"""SWAG ready for training: opened from a file or from the hub, checked and tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.examples import ChoiceExample, StoredText
from mimose_bench.experiments.data.local import read_data
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.stored import (
    NOTHING_LEFT,
    Tokenised,
    digest_of,
    open_text,
    tokenizer_for,
)
from mimose_bench.experiments.data.swag import NUM_ENDINGS, WHAT, Scene, from_rows, parse_swag
from mimose_bench.experiments.data.templates import TEMPLATES
from mimose_bench.experiments.data.tokens import TextTokenizer, hub_tokenizer

_TEMPLATE = "roberta"


def open_path(
    path: Path, vocab: Path | None, max_length: int, reason: str
) -> StoredText[ChoiceExample]:
    """Return the contexts and endings of a SWAG CSV file.

    Args:
        path: The file.
        vocab: The tokenizer; None to look for it in the file's folder.
        max_length: Tokens in the longest choice.
        reason: Why this source was taken.

    Raises:
        ValueError: If the file or the tokenizer is missing or not what it should be.
    """
    data = read_data(path, WHAT)
    source = DataSource(kind="path", detail=str(path), reason=reason)
    tokenizer = tokenizer_for(path, vocab)
    return _open(source, tokenizer, max_length, digest_of(data), partial(parse_swag, path, data))


def open_hub(model: str, max_length: int, reason: str) -> StoredText[ChoiceExample]:
    """Return the training rows of the hub's ``swag``, tokenised for ``model``.

    Args:
        model: The model whose tokenizer is used.
        max_length: Tokens in the longest choice.
        reason: Why this source was taken.

    Raises:
        HubUnavailableError: If the hub does not answer and holds no copy here.
    """
    rows = hub.load_split(("allenai/swag", "swag"), "train", "regular")
    source = DataSource(kind="hub", detail="swag regular, split train", reason=reason)
    tokenizer = hub_tokenizer(model)
    return _open(source, tokenizer, max_length, digest_of(rows), partial(from_rows, rows))


def tokenize(scenes: Sequence[Scene], tokenizer: TextTokenizer, max_length: int) -> Tokenised:
    """Return ``<s> context </s></s> ending </s>`` of each ending, the longer part cut first.

    Args:
        scenes: What to tokenise.
        tokenizer: A tokenizer of any family.
        max_length: Tokens in the longest choice.
    """
    layout = TEMPLATES[_TEMPLATE].layout(tokenizer)
    omitted, examples, num_cut = Omissions(), [], 0
    contexts = tokenizer.encode([scene.context for scene in scenes])
    endings = tokenizer.encode([ending for scene in scenes for ending in scene.endings])
    for scene, context in zip(scenes, contexts):
        choices = [next(endings) for _ in range(NUM_ENDINGS)]
        if not context or not all(choices):
            omitted.add(NOTHING_LEFT, scene.name)
            continue
        rows = [layout.fitting_pair(context, choice, max_length) for choice in choices]
        tokens, splits, were_cut = zip(*rows)
        ends = np.cumsum([len(each) for each in tokens])
        examples.append(ChoiceExample(np.concatenate(tokens), ends, np.array(splits), scene.label))
        num_cut += any(were_cut)
    return Tokenised(examples, omitted, num_cut)


def _open(
    source: DataSource,
    tokenizer: TextTokenizer,
    max_length: int,
    content: str,
    read: Callable[[], tuple[Sequence[Scene], Omissions]],
) -> StoredText[ChoiceExample]:
    return open_text(
        ChoiceExample,
        source,
        tokenizer,
        _TEMPLATE,
        {"max_length": max_length},
        content,
        read,
        lambda scenes: tokenize(scenes, tokenizer, max_length),
        "row",
    )
