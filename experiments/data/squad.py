"""Reading questions and answers in the published format of SQuAD v1.1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimose_bench.experiments.data.fields import MalformedError, text_of
from mimose_bench.experiments.data.local import read_data
from mimose_bench.experiments.data.omissions import Omissions


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and where its answer stands in the context (characters, end excluded)."""

    name: str
    question: str
    context: str
    answer_start: int
    answer_end: int


def read_squad(path: Path) -> tuple[list[Question], Omissions]:
    """Return the usable questions of a SQuAD v1.1 JSON file, and what was left out.

    Raises:
        ValueError: If the file is missing, unreadable, empty, cut off or not SQuAD, or if none of
            its questions is usable.
    """
    return parse_squad(path, read_data(path, "SQuAD JSON file"))


def parse_squad(path: Path, data: bytes) -> tuple[list[Question], Omissions]:
    """Return the same of a file's content; ``path`` is for messages."""
    articles = _articles(path, data)
    omitted = Omissions()
    questions = list(_questions(articles, omitted))
    if not questions:
        why = omitted.describe() or "it has no questions"
        raise ValueError(f"{path} holds no usable question: {why}")
    return questions, omitted


def from_rows(rows: Iterable[dict[str, Any]]) -> tuple[list[Question], Omissions]:
    """Return the usable questions of rows as the hub's ``squad`` has them, and what was left out.

    Args:
        rows: Mappings with ``id``, ``question``, ``context`` and ``answers``, itself a mapping
            with the lists ``text`` and ``answer_start``.
    """
    omitted = Omissions()
    questions = []
    for number, row in enumerate(rows):
        name = str(row.get("id", f"row {number}"))
        answers = row.get("answers")
        fields = (
            [answers.get(f) for f in ("text", "answer_start")] if isinstance(answers, dict) else []
        )
        pairs = zip(*(field if isinstance(field, (list, tuple)) else () for field in fields))
        qa = dict(row, answers=[{"text": t, "answer_start": s} for t, s in pairs])
        try:
            questions.append(_question(name, qa, row.get("context")))
        except MalformedError as error:
            omitted.add(str(error), name)
    return questions, omitted


def _articles(path: Path, data: bytes) -> list[Any]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a SQuAD file: it is not text in UTF-8") from None
    wanted = 'a SQuAD v1.1 file is a JSON object with a list "data" of articles'
    if text.lstrip()[0] not in "{[":
        raise ValueError(f"{path} is not JSON: {wanted}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ValueError(
            f"{path} breaks off or is damaged{where}: it is not complete JSON, download it again"
        ) from None
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list) or not any(
        isinstance(article, dict) and "paragraphs" in article for article in articles
    ):
        raise ValueError(f'{path} is not SQuAD: {wanted}, each with "paragraphs"')
    return articles


def _questions(articles: list[Any], omitted: Omissions) -> Iterator[Question]:
    for number, article in enumerate(articles):
        paragraphs = article.get("paragraphs") if isinstance(article, dict) else None
        if not isinstance(paragraphs, list):
            omitted.add("without paragraphs", f"article {number}")
            continue
        for index, paragraph in enumerate(paragraphs):
            place = f"article {number} paragraph {index}"
            qas = paragraph.get("qas") if isinstance(paragraph, dict) else None
            if not isinstance(qas, list):
                omitted.add("without questions", place)
                continue
            for position, qa in enumerate(qas):
                name = f"{place} question {position}"
                if isinstance(qa, dict) and isinstance(qa.get("id"), (str, int)):
                    name = str(qa["id"])
                try:
                    yield _question(name, qa, paragraph.get("context"))
                except MalformedError as error:
                    omitted.add(str(error), name)


def _question(name: str, qa: Any, context: Any) -> Question:
    if not isinstance(qa, dict):
        raise MalformedError("not an object")
    question = text_of(qa.get("question"), "a question")
    context = text_of(context, "a context")
    answers = qa.get("answers")
    if not isinstance(answers, list) or not answers or not isinstance(answers[0], dict):
        raise MalformedError("without an answer")
    answer = text_of(answers[0].get("text"), "an answer text")
    start = answers[0].get("answer_start")
    if isinstance(start, bool) or not isinstance(start, int):
        raise MalformedError("without a whole number answer_start")
    if start < 0 or context[start : start + len(answer)] != answer:
        raise MalformedError("whose answer does not stand in its context at answer_start")
    return Question(name, question.lstrip(), context, start, start + len(answer))
