"""Questions and their contexts as a model reads them, a long context in several windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mimose_bench.experiments.data.examples import QaExample
from mimose_bench.experiments.data.omissions import Omissions
from mimose_bench.experiments.data.squad import Question
from mimose_bench.experiments.data.stored import NOTHING_LEFT
from mimose_bench.experiments.data.templates import TEMPLATES, Layout
from mimose_bench.experiments.data.tokens import TextTokenizer

if TYPE_CHECKING:
    from tokenizers import Encoding

_CHUNK = 1024


def tokenize(
    questions: Sequence[Question],
    tokenizer: TextTokenizer,
    template: str,
    max_length: int,
    stride: int,
) -> tuple[list[QaExample], Omissions]:
    """Return the examples made of ``questions``, several for a context beyond ``max_length``.

    As the training features of Hugging Face's ``run_qa`` script (``bert``: the question first) and
    ``run_qa_beam_search`` (``xlnet``: the context first, the classification token last): only the
    context cut, windows that overlap by ``stride`` tokens, and both positions on the classification
    token where a window does not hold the whole answer. (One difference: the scripts' search for an
    answer that starts at the window's last context token runs on and labels the token after it.)

    Args:
        questions: What to tokenise.
        tokenizer: A tokenizer of any family.
        template: ``bert`` or ``xlnet``.
        max_length: Tokens in the longest example.
        stride: Tokens that consecutive windows share.

    Returns:
        The examples, and the questions left out: of which, or of whose context, the tokenizer
        leaves nothing, or that leave no room for a window of their context.
    """
    layout = TEMPLATES[template].layout(tokenizer)
    omitted = Omissions()
    limit = max_length - stride - layout.added - 1
    examples: list[QaExample] = []
    for first in range(0, len(questions), _CHUNK):
        chunk = questions[first : first + _CHUNK]
        asked = tokenizer.encode([q.question for q in chunk])
        texts = list(dict.fromkeys(q.context for q in chunk))  # several questions share one
        contexts = dict(zip(texts, map(_Context, tokenizer.encode_placed(texts))))
        for question, ids in zip(chunk, asked):
            if len(ids) > limit:
                omitted.add(f"whose question is longer than {limit} tokens", question.name)
                continue
            context = contexts[question.context]
            if not ids or not context.ids:
                omitted.add(NOTHING_LEFT, question.name)
                continue
            room = max_length - layout.added - len(ids)
            for start, stop in _windows(len(context.ids), room, stride):
                place = context.find(question, start, stop)
                examples.append(
                    _example(template, layout, ids, context.ids[start:stop], place, start)
                )
    return examples, omitted


class _Context:
    """A context's token ids, and where each token begins and ends in characters."""

    def __init__(self, encoding: Encoding) -> None:
        self.ids = encoding.ids
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
        self.begins, self.ends = np.ascontiguousarray(offsets.T)

    def find(self, question: Question, start: int, stop: int) -> tuple[int, int] | None:
        """Return the answer's first and last token if tokens ``start`` to ``stop - 1`` hold it."""
        if self.begins[start] > question.answer_start or self.ends[stop - 1] < question.answer_end:
            return None
        begins, ends = self.begins[start:stop], self.ends[start:stop]
        first = int(np.searchsorted(begins, question.answer_start, "right")) - 1
        return start + first, start + int(np.searchsorted(ends, question.answer_end, "left"))


def _windows(num_tokens: int, room: int, stride: int) -> Iterator[tuple[int, int]]:
    """Yield where windows of ``room`` tokens begin and end; one at the least."""
    start = 0
    while start + room < num_tokens:
        yield start, start + room
        start += room - stride
    yield start, num_tokens


def _example(
    template: str,
    layout: Layout,
    question: list[int],
    context: list[int],
    place: tuple[int, int] | None,
    start: int,
) -> QaExample:
    """Return one window; ``place`` counts from the context's first token, this from ``start``."""
    if template == "xlnet":
        tokens, split = layout.pair(context, question)
        shift, absent = len(layout.before) - start, len(tokens) - 1
    else:
        tokens, split = layout.pair(question, context)
        shift, absent = split - start, 0
    if place is None:
        return QaExample(tokens, split, absent, absent)
    return QaExample(tokens, split, place[0] + shift, place[1] + shift)
