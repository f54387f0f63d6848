"""The data sets of text as tasks open them, from files and from the hub."""

import logging

import datasets
import numpy as np
import pytest

from mimose_bench.experiments.data import (
    hub,
    qqp_text,
    squad_text,
    stored,
    swag_text,
    tokens,
    unpc_text,
)
from mimose_bench.experiments.data.sources import HubUnavailableError
from mimose_bench.experiments.data.tokens import open_tokenizer

QQP = [("Who built the mill?", "Was the mill built?", 0), ("the mill", "a mill", 1)]
SWAG = {"sent1": "The river runs.", "sent2": "It", "label": 2}
SWAG |= {f"ending{n}": end for n, end in enumerate(["is old", "was a mill", "runs", "is it ?"])}
UNPC = [("The old mill.", "the river runs"), ("a town", "a bridge of stone")]


@pytest.fixture
def files(tmp_path, vocab_path, squad, write_squad):
    """Return a file or folder of each data set, all with BERT's vocabulary beside them."""
    write_squad(squad)
    lines = ["question1\tquestion2\tlabel", *("\t".join(map(str, row)) for row in QQP)]
    (tmp_path / "train.tsv").write_text("\n".join(lines))
    rows = [",".join(SWAG), ",".join(map(str, SWAG.values()))]
    (tmp_path / "train.csv").write_text("\n".join(rows))
    for column, language in enumerate(("en", "fr")):
        text = "".join(pair[column] + "\n" for pair in UNPC)
        (tmp_path / f"UN.{language}").write_text(text)
    return {
        "squad": tmp_path / "train.json",
        "qqp": tmp_path / "train.tsv",
        "swag": tmp_path / "train.csv",
        "unpc": tmp_path,
    }


OPENERS = {
    "squad": lambda path, vocab=None: squad_text.open_path(path, vocab, "bert", 32, 8, "test"),
    "qqp": lambda path, vocab=None: qqp_text.open_path(path, vocab, 32, "test"),
    "swag": lambda path, vocab=None: swag_text.open_path(path, vocab, 32, "test"),
    "unpc": lambda path, vocab=None: unpc_text.open_path(path, vocab, 32, "test"),
}


def _equal(left, right):
    columns = left.examples.columns
    return columns.keys() == right.examples.columns.keys() and all(
        np.array_equal(array, right.examples.columns[name]) for name, array in columns.items()
    )


def _text(tokenizer, ids):
    return " ".join(tokenizer.tokenizer.id_to_token(i) for i in ids.tolist())


@pytest.mark.parametrize("name", OPENERS)
def test_files_open_with_the_vocabulary_beside_them(files, name, vocab_path):
    data = OPENERS[name](files[name])
    assert data.num_examples == {"squad": 3, "qqp": 2, "swag": 1, "unpc": 2}[name]
    assert (data.vocab_size, data.pad_id) == (len(vocab_path.read_text().split()), 0)
    assert data.source.kind == "path"
    assert data.source.detail.startswith(f"{files[name]}, tokenised with ")
    own = {"squad": [], "qqp": [], "swag": ["roberta-base"], "unpc": ["t5-base"]}[name]
    assert [note for note in data.source.notes if "own tokenizer" in note] == [
        f"tokenised with BERT's uncased WordPiece, not {model}'s own tokenizer: lengths differ"
        for model in own
    ]


def test_pairs_read_as_bert_takes_them(files, vocab_path):
    data = OPENERS["qqp"](files["qqp"])
    example = data.examples[0]
    text = "[CLS] who built the mill ? [SEP] was the mill built ? [SEP]"
    assert _text(open_tokenizer(vocab_path), example.tokens) == text
    assert (example.split, example.label, data.examples[1].label) == (7, 0, 1)


def test_choices_read_as_roberta_takes_them(files, vocab_path):
    (example,) = next(OPENERS["swag"](files["swag"]).batches(1, 1, 0))
    tokenizer = open_tokenizer(vocab_path)
    assert [_text(tokenizer, choice) for choice in example.choices] == [
        f"[CLS] the river runs . [SEP] [SEP] it {end} [SEP]"
        for end in ("is old", "was a mill", "runs", "is it ?")
    ]
    assert example.splits.tolist() == [7] * 4
    assert (example.label, example.lengths) == (2, (12,))


def test_translations_read_as_t5_takes_them(files, other_tokenizers):
    tokenizer = open_tokenizer(other_tokenizers["t5"])
    data = unpc_text.open_path(files["unpc"], other_tokenizers["t5"], 64, "test")
    assert data.source.notes == ()
    example = data.examples[1]
    source, target = (tokenizer.tokenizer.decode(ids.tolist(), False) for ids in example)
    assert source == "translate English to French: a town</s>"
    assert target == "a bridge of stone</s>"


@pytest.mark.parametrize("name", ["qqp", "swag", "unpc"])
def test_what_is_too_long_is_cut_and_counted(files, name, vocab_path):
    opener = {"qqp": qqp_text, "swag": swag_text, "unpc": unpc_text}[name]
    data = opener.open_path(files[name], vocab_path, 8, "test")
    assert max(data.longest) == 8
    (note,) = [note for note in data.source.notes if note.startswith("cut")]
    assert (
        note
        == {
            "qqp": "cut 1 of 2 examples to 8 tokens",
            "swag": "cut 1 of 1 examples to 8 tokens",
            "unpc": "cut 1 of 2 examples to 8 tokens",
        }[name]
    )


def test_first_samples_of_files(files):
    data = unpc_text.open_path(files["unpc"], None, 32, "test", max_samples=1)
    assert data.num_examples == 1
    assert data.source.notes[0] == "took the first 1 lines only"
    for enough in (2, 4000):
        data = unpc_text.open_path(files["unpc"], None, 32, "test", max_samples=enough)
        assert data.num_examples == 2
        assert "lines only" not in "".join(data.source.notes)


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("qqp", "question1\tquestion2\tlabel\na\tb\t9\n\u200b\ta\t1"),
        ("swag", ",".join(SWAG) + "\n" + "\u200b,a,1,b,c,d,e\n"),
    ],
)
def test_no_usable_row_says_why(files, name, spoilt):
    files[name].write_text(spoilt)
    with pytest.raises(ValueError, match=r"holds no usable .*: 1 ") as caught:
        OPENERS[name](files[name])
    assert "\n" not in str(caught.value)


def test_rows_left_out_are_noted(files):
    with files["qqp"].open("a") as file:
        file.write("\na\tb\n\u200b\ta\t1")
    notes = OPENERS["qqp"](files["qqp"]).source.notes
    assert notes == (
        "left out 2 of 4 records: 1 with too few fields (line 4); "
        "1 of which the tokenizer leaves nothing (line 5)",
    )


def test_tokenizer_that_lacks_a_token_is_refused_before_the_work(files, other_tokenizers):
    with pytest.raises(ValueError, match="which this task needs: name another with --vocab"):
        OPENERS["qqp"](files["qqp"], other_tokenizers["t5"])


# -- the cache


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MIMOSE_BENCH_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", OPENERS)
def test_second_opening_tokenises_nothing(files, name, cache, monkeypatch, caplog):
    with files["qqp"].open("a") as file:
        file.write("\nbad")
    first = OPENERS[name](files[name])
    monkeypatch.setattr(tokens.TextTokenizer, "encode", None)
    with caplog.at_level(logging.INFO):
        second = OPENERS[name](files[name])
    assert "tokenised examples of an earlier run" in caplog.text
    assert _equal(first, second)
    assert first.source == second.source
    batches = [[e.lengths for b in data.batches(2, 5, 3) for e in b] for data in (first, second)]
    assert batches[0] == batches[1]


def test_same_content_elsewhere_is_found_and_named_anew(files, cache, tmp_path, vocab_path):
    first = OPENERS["qqp"](files["qqp"])
    copy = tmp_path / "copy.tsv"
    copy.write_bytes(files["qqp"].read_bytes())
    second = OPENERS["qqp"](copy, vocab_path)
    assert second.source.detail.startswith(f"{copy}, tokenised with ")
    assert _equal(first, second)
    assert len(list(cache.iterdir())) == 1


def test_whatever_the_examples_depend_on_is_told_apart(files, cache, vocab_path):
    def count():
        return len(list(cache.iterdir()))

    def squad(*window, template="bert"):
        squad_text.open_path(files["squad"], vocab_path, template, *window, "test")
        return count()

    counts = [
        squad(32, 8),
        squad(32, 8),
        squad(32, 9),
        squad(31, 8),
        squad(32, 8, template="xlnet"),
    ]
    assert counts == [1, 1, 2, 3, 4]
    files["squad"].write_text(files["squad"].read_text().replace("stone", "mill"))
    assert squad(32, 8) == 5
    vocab_path.write_text(vocab_path.read_text() + "new\n")
    assert squad(32, 8) == 6


def test_damaged_entry_is_replaced(files, cache):
    first = OPENERS["swag"](files["swag"])
    (path,) = cache.iterdir()
    for arrays in ({"facts": np.zeros(0, np.uint8)}, {"x": np.zeros(3)}):
        np.savez(path, **arrays)
        assert _equal(OPENERS["swag"](files["swag"]), first)


# -- the hub


class _Rows(list):
    """Rows as ``datasets`` would return them."""

    _fingerprint = "0123"


@pytest.fixture
def on_hub(monkeypatch, vocab_path, squad):
    """Stand in for the hub; returns what was asked of it."""
    paragraphs = squad["data"][0]["paragraphs"]
    rows = {
        "rajpurkar/squad": [
            {
                "id": p["qas"][0]["id"],
                "question": p["qas"][0]["question"],
                "context": p["context"],
                "answers": {
                    key: [p["qas"][0]["answers"][0][key]] for key in ("text", "answer_start")
                },
            }
            for p in paragraphs
        ],
        "nyu-mll/glue": [dict(zip(("question1", "question2", "label"), row)) for row in QQP],
        "allenai/swag": [SWAG],
        "Helsinki-NLP/un_pc": [{"translation": {"en": en, "fr": fr}} for en, fr in UNPC],
    }
    asked = []

    def load_split(names, split, config=None, first=None):
        asked.append((split, config, first))
        return _Rows(rows[names[0]])

    monkeypatch.setattr(hub, "load_split", load_split)
    monkeypatch.setattr(hub, "load_tokenizer", lambda name: open_tokenizer(vocab_path).tokenizer)
    return asked


@pytest.mark.parametrize(
    ("name", "open_hub", "asked", "detail"),
    [
        (
            "squad",
            lambda: squad_text.open_hub("a-model", "bert", 32, 8, "test"),
            ("train", None, None),
            "squad, split train",
        ),
        (
            "qqp",
            lambda: qqp_text.open_hub("a-model", 32, "test"),
            ("train", "qqp", None),
            "glue qqp, split train",
        ),
        (
            "swag",
            lambda: swag_text.open_hub("a-model", 32, "test"),
            ("train", "regular", None),
            "swag regular, split train",
        ),
        (
            "unpc",
            lambda: unpc_text.open_hub("a-model", 32, 4000, "test"),
            ("train", "en-fr", 4000),
            "un_pc en-fr, split train, first 4,000 rows",
        ),
    ],
)
def test_hub_gives_what_its_published_files_give(files, on_hub, name, open_hub, asked, detail):
    data = open_hub()
    assert on_hub == [asked]
    assert _equal(data, OPENERS[name](files[name]))
    assert data.source.kind == "hub"
    assert data.source.detail.startswith(f"{detail}, tokenised with ")
    assert data.source.notes == ()


def test_digest_of_rows_is_their_fingerprint_or_their_content():
    rows = datasets.Dataset.from_dict({"a": [1, 2]})
    assert stored.digest_of(rows) == rows._fingerprint
    lists = [[{"a": 1}], [{"a": 2}], [{"a": 1}, {"a": 2}]]
    assert len({stored.digest_of(each) for each in lists}) == 3
    assert stored.digest_of([{"a": 1}]) == stored.digest_of(lists[0])


def test_hub_that_does_not_answer_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(hub, "is_reachable", lambda: False)
    monkeypatch.setattr(hub, "load_cached", lambda *names: None)
    for open_hub in (
        lambda: squad_text.open_hub("a-model", "xlnet", 32, 8, "test"),
        lambda: qqp_text.open_hub("a-model", 32, "test"),
        lambda: swag_text.open_hub("a-model", 32, "test"),
        lambda: unpc_text.open_hub("a-model", 32, 10, "test"),
    ):
        with pytest.raises(HubUnavailableError, match="does not answer and the data set"):
            open_hub()
