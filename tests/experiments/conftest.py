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


def _metaspace(pieces):
    """A Unigram tokenizer over words of the tests, as XLNet and T5 have."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


@pytest.fixture
def other_tokenizers(tmp_path):
    """Folders with tokenizers of other families than BERT's, by the family."""
    from tokenizers import ByteLevelBPETokenizer

    folders = {name: tmp_path / name for name in ("roberta", "xlnet", "t5")}
    for folder in folders.values():
        folder.mkdir()
    byte_level = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    byte_level.train_from_iterator(
        [c[0] for c in CONTEXTS], 300, show_progress=False, special_tokens=special
    )
    byte_level.save_model(str(folders["roberta"]))
    letters = [
        "\u2581",
        *map(chr, range(33, 127)),
        *(f"\u2581{word}" for word in WORDS.split()[5:]),
    ]
    xlnet = _metaspace(["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", *letters])
    xlnet.save(str(folders["xlnet"] / "tokenizer.json"))
    t5 = _metaspace(["<unk>", "<pad>", "</s>", *letters])
    t5.save(str(folders["t5"] / "tokenizer.json"))
    return folders
