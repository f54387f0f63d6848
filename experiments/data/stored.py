"""Text ready for training: checked, tokenised and kept for the next run."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from mimose_bench.experiments.data.cache import Entry, cached, key_of
from mimose_bench.experiments.data.examples import Packed, StoredText, TextExample
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.templates import TEMPLATES
from mimose_bench.experiments.data.tokens import TextTokenizer, find_tokenizer, open_tokenizer

E = TypeVar("E", bound=TextExample)
R = TypeVar("R")
NOTHING_LEFT = "of which the tokenizer leaves nothing"
log = logging.getLogger(__name__)


class Tokenised(NamedTuple):
    """What became of records.

    Attributes:
        examples: Tuples of ``kind``.
        omitted: Records left out on the way.
        cut: How many examples were cut to the longest length allowed.
    """

    examples: Sequence[Any]
    omitted: Omissions
    cut: int = 0


def tokenizer_for(data_path: Path, vocab: Path | None) -> TextTokenizer:
    """Return the tokenizer in ``vocab``, or the one next to the data if that is None.

    Raises:
        ValueError: If there is none, or not one that can be used.
    """
    return open_tokenizer(find_tokenizer(data_path) if vocab is None else vocab)


def open_text(
    kind: type[E],
    source: DataSource,
    tokenizer: TextTokenizer,
    template: str,
    settings: dict[str, Any],
    content: str,
    read: Callable[[], tuple[Sequence[R], Omissions]],
    tokenize: Callable[[Sequence[R]], Tokenised],
    what: str,
) -> StoredText[E]:
    """Return tokenised examples, from the cache if they were made before.

    Args:
        kind: The kind of example.
        source: Where the data comes from; notes are added to it.
        tokenizer: What it is tokenised with.
        template: Name of the template.
        settings: What else the examples depend on, as plain data.
        content: Hash of the data itself.
        read: Reads the records.
        tokenize: Makes examples of them.
        what: What a record is, for messages: ``question``.

    Raises:
        ValueError: If the tokenizer does not fit the template or no record is usable.
    """
    form = TEMPLATES[template]
    form.layout(tokenizer)
    pad_id = tokenizer.role("pad")

    def build() -> Entry:
        started = time.perf_counter()
        records, omitted = read()
        total = len(records) + len(omitted)
        log.info("tokenising %d records of %s", len(records), source.detail)
        made = tokenize(records)
        omitted.extend(made.omitted)
        if not made.examples:
            why = omitted.describe() or "it has no rows"
            raise ValueError(f"{source.detail} holds no usable {what}: {why}")
        log.info(
            "read and tokenised %d records into %d examples in %.2f s",
            total - len(omitted),
            len(made.examples),
            time.perf_counter() - started,
        )
        notes = []
        if len(omitted):
            notes.append(f"left out {len(omitted)} of {total} records: {omitted.describe()}")
        if made.cut:
            longest = settings["max_length"]
            notes.append(f"cut {made.cut} of {len(made.examples)} examples to {longest} tokens")
        return Entry(Packed.pack(kind, made.examples).columns, {"notes": notes})

    parts = {"kind": kind.__name__, "template": template, "content": content, **settings}
    key = key_of({**parts, "tokenizer": tokenizer.digest})
    started = time.perf_counter()
    entry, was_kept = cached(kind.__name__.lower(), key, build, lambda e: _fits(kind, e))
    examples = Packed(kind, entry.arrays)
    if was_kept:
        seconds = time.perf_counter() - started
        log.info("read %d tokenised examples of an earlier run in %.2f s", len(examples), seconds)
    own = form.remark(tokenizer) if source.kind == "path" else ()
    source = replace(
        source,
        detail=f"{source.detail}, tokenised with {tokenizer.name}",
        notes=(*source.notes, *own, *entry.facts["notes"]),
    )
    return StoredText(examples, source, tokenizer.vocab_size, pad_id)


def digest_of(content: bytes | Sequence[Any]) -> str:
    """Return a hash of a file's content, or of rows of a data set."""
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    fingerprint = getattr(content, "_fingerprint", None)  # as datasets names a data set's state
    if isinstance(fingerprint, str):
        return fingerprint
    whole = json.dumps(list(content), sort_keys=True, default=str)
    return hashlib.sha256(whole.encode()).hexdigest()


def _fits(kind: type[TextExample], entry: Entry) -> bool:
    """Return whether an entry holds the columns of at least one example of this kind."""
    notes = entry.facts.get("notes") if isinstance(entry.facts, dict) else None
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        return False
    return Packed(kind, entry.arrays).is_whole()
