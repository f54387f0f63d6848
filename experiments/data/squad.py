"""Reading questions and answers in the published format of SQuAD v1.1."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mimose_bench.experiments.data.omissions import Omissions


@dataclass(frozen=True, slots=True)
class Question:
    """A question, and where its answer stands in the context (characters, end excluded)."""

    name: str
    question: str
    context: str
    answer_start: int
    answer_end: int


class _MalformedError(Exception):
    """Why a record cannot be used."""


def read_squad(path: Path) -> tuple[list[Question], Omissions]:
    """Return the usable questions of a SQuAD v1.1 JSON file, and what was left out.

    Raises:
        ValueError: If the file is missing, unreadable, empty, cut off or not SQuAD, or if none of
            its questions is usable.
    """
    articles = _articles(path)
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
        answers = row.get("answers") or {}
        pairs = zip(answers.get("text", ()), answers.get("answer_start", ()))
        qa = dict(row, answers=[{"text": t, "answer_start": s} for t, s in pairs])
        name = str(row.get("id", f"row {number}"))
        try:
            questions.append(_question(name, qa, row.get("context")))
        except _MalformedError as error:
            omitted.add(str(error), name)
    return questions, omitted


def _articles(path: Path) -> list[Any]:
    if path.is_dir():
        raise ValueError(f"{path} is a folder: give the SQuAD JSON file in it")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise ValueError(f"there is no data file {path}") from None
    except OSError as error:
        raise ValueError(f"data file {path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a SQuAD file: it is not text in UTF-8") from None
    if not text.strip():
        raise ValueError(f"data file {path} is empty: download it again")
    wanted = 'a SQuAD v1.1 file is a JSON object with a list "data" of articles'
    if text.lstrip()[0] not in "{[":
        raise ValueError(f"{path} is not JSON: {wanted}")
    try:
        content = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
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
                if isinstance(qa, dict) and "id" in qa:
                    name = str(qa["id"])
                try:
                    yield _question(name, qa, paragraph.get("context"))
                except _MalformedError as error:
                    omitted.add(str(error), name)


def _question(name: str, qa: Any, context: Any) -> Question:
    if not isinstance(qa, dict):
        raise _MalformedError("not an object")
    question = _text(qa.get("question"), "a question")
    context = _text(context, "a context")
    answers = qa.get("answers")
    if not isinstance(answers, list) or not answers or not isinstance(answers[0], dict):
        raise _MalformedError("without an answer")
    answer = _text(answers[0].get("text"), "an answer text")
    start = answers[0].get("answer_start")
    if isinstance(start, bool) or not isinstance(start, int):
        raise _MalformedError("without a whole number answer_start")
    if start < 0 or context[start : start + len(answer)] != answer:
        raise _MalformedError("whose answer does not stand in its context at answer_start")
    return Question(name, question.lstrip(), context, start, start + len(answer))


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise _MalformedError(f"without {what}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _MalformedError(f"with half a character in {what}") from None
    return value
