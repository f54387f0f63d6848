"""BERT's WordPiece tokenizer, and questions tokenised with it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mimose_bench.experiments.data.examples import QaExample
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.squad import Question

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
_CHUNK = 1024
_NUM_ADDED = 3  # [CLS] question [SEP] context [SEP]


def find_vocabulary(data_path: Path) -> Path:
    """Return the vocabulary in the folder of ``data_path``: vocab.txt, or the only ``*vocab*.txt``.

    Raises:
        ValueError: If there is none, or if several could be meant.
    """
    folder = data_path.parent
    if (folder / "vocab.txt").is_file():
        return folder / "vocab.txt"
    found = sorted(path for path in folder.glob("*vocab*.txt") if path.is_file())
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{folder} holds several vocabularies ({names}): name one with --vocab")
    raise ValueError(
        f"no vocabulary next to {data_path}: put BERT's vocab.txt there or name it with --vocab"
    )


def read_vocabulary(path: Path) -> Tokenizer:
    """Return BERT's uncased tokenizer over the vocabulary in ``path``, one token a line.

    Raises:
        ValueError: If the file cannot be read or is not such a vocabulary.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    try:
        words = path.read_bytes().decode("utf-8").splitlines()
    except FileNotFoundError:
        raise ValueError(f"there is no vocabulary {path}") from None
    except OSError as error:
        raise ValueError(f"vocabulary {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a vocabulary: it is not text in UTF-8") from None
    missing = [token for token in _SPECIAL if token not in words]
    if missing:
        raise ValueError(f"{path} is not a BERT vocabulary: it has no line {missing[0]}")
    tokenizer = Tokenizer(models.WordPiece.from_file(str(path), unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    vocabulary = tokenizer.get_vocab()
    tokenizer.post_processor = processors.BertProcessing(
        ("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"])
    )
    return tokenizer


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Return the number of rows that an embedding of the tokenizer's ids needs."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values())


def tokenize(
    questions: Sequence[Question], tokenizer: Tokenizer, max_length: int, stride: int
) -> tuple[list[QaExample], Omissions]:
    """Return the examples made of ``questions``, several for a context beyond ``max_length``.

    As the training features of Hugging Face's ``run_qa`` script: the question first, only the
    context cut, windows that overlap by ``stride`` tokens, and both positions on ``[CLS]`` where a
    window does not hold the whole answer. (One difference: the script's search for an answer that
    starts at the window's last context token runs on and labels the ``[SEP]`` after it.)

    Args:
        questions: What to tokenise.
        tokenizer: A fast tokenizer; its truncation and padding settings are changed.
        max_length: Tokens in the longest example.
        stride: Tokens that consecutive windows share.

    Returns:
        The examples, and the questions that leave no room for a window of their context.
    """
    tokenizer.no_padding()
    kept, omitted = _drop_long(questions, tokenizer, max_length - stride - _NUM_ADDED - 1)
    tokenizer.enable_truncation(max_length, stride=stride, strategy="only_second")
    examples: list[QaExample] = []
    for first in range(0, len(kept), _CHUNK):
        chunk = kept[first : first + _CHUNK]
        encodings = tokenizer.encode_batch([(q.question, q.context) for q in chunk])
        for question, encoding in zip(chunk, encodings):
            examples.extend(_windows(question, encoding))
    return examples, omitted


def _drop_long(
    questions: Sequence[Question], tokenizer: Tokenizer, limit: int
) -> tuple[list[Question], Omissions]:
    omitted = Omissions()
    # A token is at least a character, so that only long texts need a closer look.
    suspects = [q for q in questions if len(q.question) > limit]
    tokenizer.no_truncation()
    encodings = tokenizer.encode_batch([q.question for q in suspects], add_special_tokens=False)
    for question, encoding in zip(suspects, encodings):
        if len(encoding.ids) > limit:
            omitted.add(f"whose question is longer than {limit} tokens", question.name)
    too_long = {id(q) for q, e in zip(suspects, encodings) if len(e.ids) > limit}
    return [q for q in questions if id(q) not in too_long], omitted


def _windows(question: Question, encoding: Encoding) -> Iterator[QaExample]:
    for window in (encoding, *encoding.overflowing):
        tokens = np.array(window.ids, dtype=np.int32)
        first = window.type_ids.index(1)
        start, end = _locate(question, window.offsets, first, len(tokens) - 1)
        yield QaExample(tokens, first, start, end)


def _locate(
    question: Question, offsets: list[tuple[int, int]], first: int, stop: int
) -> tuple[int, int]:
    """Return the answer's first and last token among the context's, ``first`` to ``stop - 1``."""
    if (
        first == stop
        or offsets[first][0] > question.answer_start
        or offsets[stop - 1][1] < question.answer_end
    ):
        return 0, 0
    start = bisect_right(offsets, question.answer_start, first, stop, key=itemgetter(0)) - 1
    end = bisect_left(offsets, question.answer_end, first, stop, key=itemgetter(1))
    return start, end
