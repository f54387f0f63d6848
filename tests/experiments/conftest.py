import json
from pathlib import Path

import pytest

WORDS = """
[PAD] [UNK] [CLS] [SEP] [MASK] the river runs through old town and past a mill where who when
built it is was in stone bridge by monks 18 ##12 ##s ? . ,
"""
CONTEXTS = (
    ("The old mill was built by monks in 1812.", "Who built the mill?", "monks"),
    ("The river runs through town and past a stone bridge.", "Where is the bridge?", "town"),
    ("It was built in 1812, by the river.", "When was it built?", "1812"),
)


@pytest.fixture
def squad():
    """A tiny file in the format of SQuAD v1.1, as an object."""
    paragraphs = [
        {
            "context": context,
            "qas": [
                {
                    "id": f"q{number}",
                    "question": question,
                    "answers": [{"text": answer, "answer_start": context.index(answer)}],
                }
            ],
        }
        for number, (context, question, answer) in enumerate(CONTEXTS)
    ]
    return {"version": "1.1", "data": [{"title": "A mill", "paragraphs": paragraphs}]}


@pytest.fixture
def vocab_path(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(WORDS.split()) + "\n")
    return path


@pytest.fixture
def write_squad(tmp_path):
    """Return a function that writes an object as JSON and returns the file's path."""

    def write(content, name: str = "train.json") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(content))
        return path

    return write
