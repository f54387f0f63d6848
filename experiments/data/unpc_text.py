"""UN_PC ready for training: opened from files or from the hub, checked and tokenised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.examples import StoredText, TranslationExample
from mimose_bench.experiments.data.omissions import Omissions
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
from mimose_bench.experiments.data.unpc import SentencePair, from_rows, parse_unpc, read_files

PREFIX = "translate English to French: "
_TEMPLATE = "t5"


def open_path(
    path: Path,
    vocab: Path | None,
    max_length: int,
    reason: str,
    max_samples: int | None = None,
) -> StoredText[TranslationExample]:
    """Return the sentence pairs of OPUS's two files or of a file of JSON lines.

    Args:
        path: ``NAME.en`` or ``NAME.fr``, a folder with such a pair, or the file of JSON lines.
        vocab: The tokenizer; None to look for it in the data's folder.
        max_length: Tokens in the longest source and target.
        reason: Why this source was taken.
        max_samples: How many sentence pairs to take, from the first on; None for all.

    Raises:
        ValueError: If the data or the tokenizer is missing or not what it should be.
    """
    files = read_files(path, max_samples)
    notes = () if files.is_whole else (f"took the first {max_samples:,} lines only",)
    source = DataSource(kind="path", detail=str(path), reason=reason, notes=notes)
    tokenizer = tokenizer_for(path, vocab)
    content = " ".join(map(digest_of, files.contents))
    return _open(source, tokenizer, max_length, content, partial(parse_unpc, files))


def open_hub(
    model: str, max_length: int, max_samples: int | None, reason: str
) -> StoredText[TranslationExample]:
    """Return training pairs of the hub's ``un_pc``, English to French, tokenised for ``model``.

    Args:
        model: The model whose tokenizer is used.
        max_length: Tokens in the longest source and target.
        max_samples: How many sentence pairs to take, from the first on; None for all.
        reason: Why this source was taken.

    Raises:
        HubUnavailableError: If the hub does not answer and holds no copy here.
    """
    rows = hub.load_split(("Helsinki-NLP/un_pc", "un_pc"), "train", "en-fr", max_samples)
    first = "" if max_samples is None else f", first {max_samples:,} rows"
    source = DataSource(kind="hub", detail=f"un_pc en-fr, split train{first}", reason=reason)
    tokenizer = hub_tokenizer(model)
    return _open(source, tokenizer, max_length, digest_of(rows), partial(from_rows, rows))


def tokenize(pairs: Sequence[SentencePair], tokenizer: TextTokenizer, max_length: int) -> Tokenised:
    """Return source and target of each pair, each ended by ``</s>``, the source told what to do.

    As Hugging Face's ``run_translation`` script makes them, ``source_prefix`` included.

    Args:
        pairs: What to tokenise.
        tokenizer: A tokenizer of any family.
        max_length: Tokens in the longest source and target.
    """
    layout = TEMPLATES[_TEMPLATE].layout(tokenizer)
    omitted, examples, num_cut = Omissions(), [], 0
    room = max_length - layout.added
    sides = ([PREFIX + pair.english for pair in pairs], [pair.french for pair in pairs])
    for pair, english, french in zip(pairs, *map(tokenizer.encode, sides)):
        if not french:
            omitted.add(NOTHING_LEFT, pair.name)
            continue
        texts = (layout.single(text, max_length) for text in (english, french))
        examples.append(TranslationExample(*texts))
        num_cut += max(len(english), len(french)) > room
    return Tokenised(examples, omitted, num_cut)


def _open(
    source: DataSource,
    tokenizer: TextTokenizer,
    max_length: int,
    content: str,
    read: Callable[[], tuple[Sequence[SentencePair], Omissions]],
) -> StoredText[TranslationExample]:
    return open_text(
        TranslationExample,
        source,
        tokenizer,
        _TEMPLATE,
        {"max_length": max_length, "prefix": PREFIX},
        content,
        read,
        lambda pairs: tokenize(pairs, tokenizer, max_length),
        "sentence pair",
    )
