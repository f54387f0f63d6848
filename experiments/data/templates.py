"""How each model family puts one or two texts together, whatever tokenizer cut them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from mimose_bench.experiments.data.tokens import TextTokenizer


class Layout(NamedTuple):
    """The tokens that a template adds, of one tokenizer.

    Attributes:
        before: Ids before the first text.
        between: Ids after the first text and before the second.
        after: Ids after the second text, or after the first where there is no other.
    """

    before: list[int]
    between: list[int]
    after: list[int]

    @property
    def added(self) -> int:
        """Tokens added to a pair."""
        return sum(map(len, self))

    def single(self, text: list[int], max_length: int) -> np.ndarray:
        """Return one text of at most ``max_length`` tokens, its end cut off if need be."""
        room = max_length - len(self.before) - len(self.after)
        return np.array([*self.before, *text[:room], *self.after], np.int32)

    def pair(self, first: list[int], second: list[int]) -> tuple[np.ndarray, int]:
        """Return two texts together, and how many tokens come before the second."""
        head = [*self.before, *first, *self.between]
        return np.array([*head, *second, *self.after], np.int32), len(head)

    def fitting_pair(
        self, first: list[int], second: list[int], max_length: int
    ) -> tuple[np.ndarray, int, bool]:
        """Return a pair of at most ``max_length`` tokens, its ``split``, and whether it was cut."""
        kept = longest_first(len(first), len(second), max_length - self.added)
        tokens, split = self.pair(first[: kept[0]], second[: kept[1]])
        return tokens, split, kept != (len(first), len(second))


@dataclass(frozen=True, slots=True)
class Template:
    """The places of special tokens in a model family's input.

    Attributes:
        name: Name of the family.
        model: The model of it that the paper trains.
        tokenizer: What kind of tokenizer that model was trained with.
        before: Roles of the tokens before the first text; see ``TextTokenizer``.
        between: Roles of those before the second.
        after: Roles of those at the end.
    """

    name: str
    model: str
    tokenizer: str
    before: tuple[str, ...]
    between: tuple[str, ...]
    after: tuple[str, ...]

    def layout(self, tokenizer: TextTokenizer) -> Layout:
        """Return the template with the ids of a tokenizer.

        Raises:
            ValueError: If the tokenizer lacks one of the tokens.
        """
        places = self.before, self.between, self.after
        return Layout(*([tokenizer.role(role) for role in roles] for roles in places))

    def remark(self, tokenizer: TextTokenizer) -> tuple[str, ...]:
        """Return a note if a tokenizer is not of the kind that the model was trained with."""
        if tokenizer.family == self.tokenizer:
            return ()
        return (
            f"tokenised with {tokenizer.family}, not {self.model}'s own tokenizer: lengths differ",
        )


TEMPLATES = {
    template.name: template
    for template in (
        Template(
            "bert", "bert-base-uncased", "BERT's uncased WordPiece", ("cls",), ("sep",), ("sep",)
        ),
        Template(
            "roberta",
            "roberta-base",
            "RoBERTa's byte-level BPE",
            ("cls",),
            ("sep", "sep"),
            ("sep",),
        ),
        Template("xlnet", "xlnet-base-cased", "XLNet's Unigram", (), ("sep",), ("sep", "cls")),
        Template("t5", "t5-base", "T5's Unigram", (), (), ("eos",)),
    )
}


def longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many tokens of two texts to keep, taken from the longer one first.

    Both are cut to half of ``room`` where neither fits that half; an odd one out then goes to the
    longer, as in Hugging Face's ``longest_first``.
    """
    if first + second <= room:
        return first, second
    short, long = min(first, second), max(first, second)
    long = max(short, room - short) if short <= room else short
    if short + long > room:
        short = room // 2
        long = room - short
    return (long, short) if first > second else (short, long)
