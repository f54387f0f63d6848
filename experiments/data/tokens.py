"""Tokenizers, from local files or the hub, as models of any family can use them."""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from mimose_bench.experiments.data import hub
from mimose_bench.experiments.data.local import mode_of

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_CHUNK = 1024
_MOST_TOKENS = 10_000_000  # ten times the largest vocabulary in use
# Where a vocabulary has several of a role, as XLNet's has <s> and <cls>, the first is meant.
_ROLES = {
    "cls": ("[CLS]", "<cls>", "<s>"),
    "sep": ("[SEP]", "<sep>", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "eos": ("</s>", "[SEP]", "<sep>"),
    "mask": ("[MASK]", "<mask>"),
}
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_ROBERTA_SPECIAL = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


@dataclass(frozen=True, slots=True)
class TextTokenizer:
    """A tokenizer that adds no tokens of its own to a text, and the tokens that may be added.

    Args:
        tokenizer: Its own post-processing, truncation and padding are switched off.
        name: Where it comes from, for messages.

    Attributes:
        cls: Id of the token that begins a text (or stands for all of it); None if it has none.
        sep: Id of the token between two texts; likewise.
        pad: Id of the token that fills up a batch; likewise.
        eos: Id of the token that ends a text, ``sep`` where it has none for that; likewise.
        mask: Id of the token that hides another; likewise.
        vocab_size: Rows that an embedding of its ids needs.
        digest: Hexadecimal hash of everything that its output depends on.
        family: What kind of tokenizer it is, in words.
    """

    tokenizer: Tokenizer
    name: str
    cls: int | None = field(init=False)
    sep: int | None = field(init=False)
    pad: int | None = field(init=False)
    eos: int | None = field(init=False)
    mask: int | None = field(init=False)
    vocab_size: int = field(init=False)
    digest: str = field(init=False)
    family: str = field(init=False)

    def __post_init__(self) -> None:
        tokenizer = self.tokenizer
        tokenizer.post_processor = None
        tokenizer.no_truncation()
        tokenizer.no_padding()
        ids = tokenizer.get_vocab(with_added_tokens=True)
        if not ids:
            raise ValueError(f"the tokenizer {self.name} has no tokens")
        largest = max(ids.values())
        if largest >= _MOST_TOKENS:  # the library counts up to it, a model has a row for each
            raise ValueError(
                f"the tokenizer {self.name} gives a token the id {largest}: ids are below "
                f"{_MOST_TOKENS:,}, correct it or name another with --vocab"
            )
        roles = {
            role: next((ids[token] for token in tokens if token in ids), None)
            for role, tokens in _ROLES.items()
        }
        found = {
            **roles,
            "vocab_size": 1 + largest,
            "digest": hashlib.sha256(tokenizer.to_str().encode()).hexdigest(),
            "family": _family(tokenizer, ids),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)

    def role(self, name: str) -> int:
        """Return the id of the token for ``cls``, ``sep``, ``pad``, ``eos`` or ``mask``.

        Raises:
            ValueError: If the tokenizer has none.
        """
        found: int | None = getattr(self, name)
        if found is None:
            raise ValueError(
                f"the tokenizer {self.name} has none of the tokens {', '.join(_ROLES[name])}, "
                "which this task needs: name another with --vocab"
            )
        return found

    def encode(self, texts: Sequence[str]) -> Iterator[list[int]]:
        """Yield the token ids of each text.

        Raises:
            ValueError: If the tokenizer has no tokens for a text, as where none is for the unknown.
        """
        for first in range(0, len(texts), _CHUNK):
            chunk = texts[first : first + _CHUNK]
            try:
                encodings = self.tokenizer.encode_batch_fast(chunk, add_special_tokens=False)
            except Exception as error:  # the library raises no class of its own
                raise self._unable(error) from error
            for encoding in encodings:
                yield encoding.ids

    def encode_placed(self, texts: Sequence[str]) -> list[Encoding]:
        """Return the encoding of each text: its ids, and their ``offsets`` in characters.

        Raises:
            ValueError: As for :meth:`encode`.
        """
        try:
            return self.tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # the library raises no class of its own
            raise self._unable(error) from error

    def _unable(self, error: Exception) -> ValueError:
        return ValueError(
            f"the tokenizer {self.name} cannot tokenise the data ({_first_line(error)}): give it "
            "a token for what it does not know or name another with --vocab"
        )


def hub_tokenizer(name: str) -> TextTokenizer:
    """Return the tokenizer of a model of the hub.

    Raises:
        HubUnavailableError: If the hub does not answer, or fails, and no copy is cached.
    """
    return TextTokenizer(hub.load_tokenizer(name), name)


def find_tokenizer(data_path: Path) -> Path:
    """Return the tokenizer that lies next to the data, or in it if it is a folder.

    That is ``tokenizer.json``, ``vocab.json`` with ``merges.txt``, ``vocab.txt`` or the only
    ``*vocab*.txt``, the first of them that there is.

    Raises:
        ValueError: If there is none, or if several could be meant.
    """
    folder = data_path if data_path.is_dir() else data_path.parent
    for name, beside in (("tokenizer.json",) * 2, ("vocab.json", "merges.txt"), ("vocab.txt",) * 2):
        if (folder / name).is_file() and (folder / beside).is_file():
            return folder / name
    found = sorted(path for path in folder.glob("*vocab*.txt") if path.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{folder} holds several vocabularies ({names}): name one with --vocab")
    models = sorted(folder.glob("*.model"))
    if models:
        raise _sentencepiece(models[0])
    raise ValueError(
        f"no vocabulary next to {data_path}: put a tokenizer.json or BERT's vocab.txt there or "
        "name it with --vocab"
    )


def open_tokenizer(path: Path) -> TextTokenizer:
    """Return the tokenizer in a file or folder.

    Args:
        path: A ``tokenizer.json``; byte-level BPE's ``vocab.json`` with ``merges.txt`` beside it;
            WordPiece's vocabulary of one token a line, cased if tokens other than special ones
            have upper-case letters; or a folder that holds one of them.

    Raises:
        ValueError: If it is none of these or cannot be read.
    """
    try:
        if stat.S_ISDIR(mode_of(path, "vocabulary")):
            path = find_tokenizer(path)
        if path.suffix == ".model":
            raise _sentencepiece(path)
        if path.name == "merges.txt":
            path = path.with_name("vocab.json")
        if not stat.S_ISREG(mode_of(path, "vocabulary")):
            raise ValueError(f"{path} is not a file: name a vocabulary with --vocab")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"vocabulary {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a vocabulary: it is not text in UTF-8") from None
    if path.suffix == ".json":
        return TextTokenizer(_from_json(path, text), str(path))
    return TextTokenizer(_wordpiece(path, text), str(path))


def _from_json(path: Path, text: str) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError(f"{path} is not a tokenizer: it is not complete JSON") from None
    if not isinstance(content, dict) or not content:
        raise ValueError(f"{path} is not a tokenizer: it is not a JSON object")
    if all(type(number) is int for number in content.values()):
        return _byte_level(path)
    try:
        return Tokenizer.from_str(text)
    except Exception as error:  # the library raises no class of its own
        raise ValueError(f"{path} is not a tokenizer.json: {_first_line(error)}") from None


def _byte_level(vocabulary: Path) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    merges = vocabulary.with_name("merges.txt")
    if not merges.is_file():
        raise ValueError(
            f"{vocabulary} is half of a byte-level BPE: put its merges.txt into the same folder"
        )
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises no class of its own
        raise ValueError(f"{vocabulary} and {merges} do not fit: {_first_line(error)}") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    known = tokenizer.get_vocab()
    # As roberta-base's own tokenizer.json has them: <mask> takes the space before it along.
    tokenizer.add_special_tokens(
        [
            AddedToken(t, lstrip=t == "<mask>", normalized=False)
            for t in _ROBERTA_SPECIAL
            if t in known
        ]
    )
    return tokenizer


def _wordpiece(path: Path, text: str) -> Tokenizer:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    words = [line.rstrip() for line in text.removesuffix("\n").split("\n")]
    missing = [token for token in _SPECIAL if token not in words]
    if missing:
        raise ValueError(f"{path} is not a BERT vocabulary: it has no line {missing[0]}")
    # A to Z alone: copies whose other letters went through a wrong encoding look half upper-case.
    plain = (word for word in words if not (word.startswith("[") and word.endswith("]")))
    cased = any("A" <= letter <= "Z" for word in plain for letter in word)
    ids = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _family(tokenizer: Tokenizer, ids: dict[str, int]) -> str:
    model = type(tokenizer.model).__name__
    if model == "WordPiece":
        uncased = getattr(tokenizer.normalizer, "lowercase", False)
        return f"BERT's {'uncased' if uncased else 'cased'} WordPiece"
    if model == "BPE" and "<s>" in ids:
        return "RoBERTa's byte-level BPE"
    if model == "Unigram" and "<cls>" in ids:
        return "XLNet's Unigram"
    if model == "Unigram" and "</s>" in ids and "[CLS]" not in ids:
        return "T5's Unigram"
    return f"a {model} tokenizer"


def _sentencepiece(path: Path) -> ValueError:
    return ValueError(
        f"{path} is a sentencepiece model: convert it with transformers' "
        "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) and name the "
        "tokenizer.json that this writes with --vocab"
    )


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
