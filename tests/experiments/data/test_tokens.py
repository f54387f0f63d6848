import json
import os

import pytest
from tokenizers import Tokenizer, models

from mimose_bench.experiments.data.tokens import TextTokenizer, find_tokenizer, open_tokenizer


def _words(tokenizer, ids):
    return " ".join(tokenizer.tokenizer.id_to_token(i) for i in ids)


def test_wordpiece_knows_its_special_tokens_and_adds_none(vocab_path):
    tokenizer = open_tokenizer(vocab_path)
    (ids,) = tokenizer.encode(["The MILL, in 1812"])
    assert _words(tokenizer, ids) == "the mill , in 18 ##12"
    roles = tokenizer.pad, tokenizer.cls, tokenizer.sep, tokenizer.mask, tokenizer.eos
    assert roles == (0, 2, 3, 4, 3)
    assert tokenizer.vocab_size == len(vocab_path.read_text().split())
    assert tokenizer.family == "BERT's uncased WordPiece"


@pytest.mark.parametrize(
    ("word", "family"),
    [
        ("Mill", "cased"),
        ("##A", "cased"),
        ("[unused0]", "uncased"),
        ("[UNUSED0]", "uncased"),
        ("\u00c3\u00b8", "uncased"),  # a letter that went through a wrong encoding
    ],
)
def test_letters_say_whether_a_vocabulary_is_cased(vocab_path, word, family):
    with vocab_path.open("a") as file:
        file.write(f"{word}\n")
    tokenizer = open_tokenizer(vocab_path)
    assert tokenizer.family == f"BERT's {family} WordPiece"
    assert tokenizer.tokenizer.normalizer.lowercase == (family == "uncased")


def test_windows_line_ends_do_not_change_a_vocabulary(vocab_path):
    before = open_tokenizer(vocab_path)
    vocab_path.write_bytes(vocab_path.read_bytes().replace(b"\n", b"\r\n"))
    after = open_tokenizer(vocab_path)
    assert after.digest == before.digest


@pytest.mark.parametrize(
    ("name", "family", "roles"),
    [
        ("roberta", "RoBERTa's byte-level BPE", "<s> </s> <pad> </s> <mask>"),
        ("xlnet", "XLNet's Unigram", "<cls> <sep> <pad> </s> <mask>"),
        ("t5", "T5's Unigram", None),
    ],
)
def test_folders_of_other_families(other_tokenizers, name, family, roles):
    tokenizer = open_tokenizer(other_tokenizers[name])
    assert tokenizer.family == family
    (ids,) = tokenizer.encode(["the old mill"])
    assert tokenizer.tokenizer.decode(ids).strip() == "the old mill"
    if roles is None:
        assert (tokenizer.cls, tokenizer.mask) == (None, None)
        assert _words(tokenizer, [tokenizer.eos, tokenizer.pad]) == "</s> <pad>"
        with pytest.raises(ValueError, match=r"t5.* has none of the tokens \[CLS\], <cls>, <s>"):
            tokenizer.role("cls")
    else:
        names = ("cls", "sep", "pad", "eos", "mask")
        assert _words(tokenizer, [tokenizer.role(role) for role in names]) == roles


def test_byte_level_from_its_two_files_is_its_tokenizer_json(other_tokenizers, tmp_path):
    folder = other_tokenizers["roberta"]
    pair = open_tokenizer(folder)
    assert open_tokenizer(folder / "merges.txt").digest == pair.digest
    pair.tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert open_tokenizer(tmp_path / "tokenizer.json").digest == pair.digest
    (masked,) = pair.encode(["mill <mask> 1812"])
    assert masked.count(pair.mask) == 1
    (folder / "merges.txt").unlink()
    with pytest.raises(ValueError, match=r"half of a byte-level BPE: put its merges.txt"):
        open_tokenizer(folder / "vocab.json")


def test_what_a_tokenizer_json_would_add_is_left_out(vocab_path, tmp_path):
    from tokenizers import processors

    plain = open_tokenizer(vocab_path)
    adding = Tokenizer.from_str(plain.tokenizer.to_str())
    adding.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    adding.enable_truncation(4)
    adding.enable_padding(length=9)
    adding.save(str(tmp_path / "tokenizer.json"))
    again = open_tokenizer(tmp_path / "tokenizer.json")
    assert again.digest == plain.digest
    text = ["the mill by the river in town"]
    assert list(again.encode(text)) == list(plain.encode(text))


def test_digest_is_of_all_that_matters(vocab_path):
    first = open_tokenizer(vocab_path)
    assert open_tokenizer(vocab_path).digest == first.digest
    vocab_path.write_text(vocab_path.read_text().replace("stone", "stones"))
    assert open_tokenizer(vocab_path).digest != first.digest


def test_vocabulary_is_found_next_to_the_data(tmp_path):
    data = tmp_path / "train.json"
    with pytest.raises(ValueError, match="no vocabulary next to"):
        find_tokenizer(data)
    (tmp_path / "spiece.model").write_text("x")
    with pytest.raises(ValueError, match="sentencepiece model: convert it"):
        find_tokenizer(data)
    (tmp_path / "bert-vocab.txt").write_text("x")
    assert find_tokenizer(data).name == "bert-vocab.txt"
    (tmp_path / "my_vocab_2.txt").write_text("x")
    with pytest.raises(ValueError, match=r"bert-vocab.txt, my_vocab_2.txt"):
        find_tokenizer(data)
    (tmp_path / "vocab.txt").write_text("x")
    assert find_tokenizer(data).name == "vocab.txt"
    (tmp_path / "vocab.json").write_text("x")
    assert find_tokenizer(data).name == "vocab.txt"
    (tmp_path / "merges.txt").write_text("x")
    assert find_tokenizer(data).name == "vocab.json"
    (tmp_path / "tokenizer.json").write_text("x")
    assert find_tokenizer(data) == find_tokenizer(tmp_path) == tmp_path / "tokenizer.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("vocab.txt", b"", r"no line \[PAD\]"),
        ("vocab.txt", b"[PAD]\n[UNK]\n[CLS]\n", r"no line \[SEP\]"),
        ("vocab.txt", b"\xff\xfe", "not text in UTF-8"),
        ("tokenizer.json", b"", "not complete JSON"),
        ("tokenizer.json", b"[" * 100_000, "not complete JSON"),
        ("tokenizer.json", b"{", "not complete JSON"),
        ("tokenizer.json", b"[1]", "not a JSON object"),
        ("tokenizer.json", b"{}", "not a JSON object"),
        ("tokenizer.json", b'{"model": 3, "b": {}}', r"not a tokenizer.json"),
        ("spiece.model", b"\x0a\x0e", "sentencepiece model: convert it"),
    ],
)
def test_what_is_not_a_tokenizer_is_refused(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        open_tokenizer(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_missing_files_and_empty_folders(tmp_path):
    with pytest.raises(ValueError, match="there is no vocabulary"):
        open_tokenizer(tmp_path / "absent.txt")
    os.mkfifo(tmp_path / "pipe")
    for name, message in (
        ("pipe", "pipe is not a file: name a vocabulary"),
        ("x" * 300, "x cannot be read: File name too long"),
        ("a\0b", "cannot be the name of a vocabulary"),
    ):
        with pytest.raises(ValueError, match=message):
            open_tokenizer(tmp_path / name)
    with pytest.raises(ValueError, match="no vocabulary next to"):
        open_tokenizer(tmp_path)
    (tmp_path / "vocab.json").write_text(json.dumps({"a": 0}))
    (tmp_path / "merges.txt").write_text("b c d e\n")
    with pytest.raises(ValueError, match="do not fit"):
        open_tokenizer(tmp_path)


def test_tokenizer_of_no_tokens_is_refused():
    with pytest.raises(ValueError, match="the tokenizer nobody's has no tokens"):
        TextTokenizer(Tokenizer(models.WordPiece({}, unk_token="[UNK]")), "nobody's")


def test_a_byte_order_mark_does_not_change_a_vocabulary(vocab_path):
    before = open_tokenizer(vocab_path)
    vocab_path.write_bytes(b"\xef\xbb\xbf" + vocab_path.read_bytes())
    assert open_tokenizer(vocab_path).digest == before.digest


def test_lines_are_numbered_as_the_library_does(vocab_path):
    with vocab_path.open("a") as file:
        file.write("mill\nd\u2028x\n g \n\ny\x85z\n")
    library = models.WordPiece.from_file(str(vocab_path), unk_token="[UNK]")
    found = open_tokenizer(vocab_path).tokenizer
    assert found.get_vocab() == Tokenizer(library).get_vocab()


@pytest.mark.parametrize(
    "model",
    [
        models.WordLevel({"mill": 0}, unk_token="[UNK]"),
        models.WordPiece({"mill": 0}, unk_token="[UNK]"),
        models.Unigram([("mill", -1.0)]),
    ],
)
def test_what_the_tokenizer_cannot_tokenise_is_one_sentence(tmp_path, model):
    path = tmp_path / "tokenizer.json"
    Tokenizer(model).save(str(path))
    tokenizer = open_tokenizer(path)
    for encode in (lambda texts: list(tokenizer.encode(texts)), tokenizer.encode_placed):
        with pytest.raises(ValueError, match=r"tokenizer.json cannot tokenise the data .* --vocab"):
            encode(["mill", "town"])


def test_a_token_beyond_any_vocabulary_is_refused(tmp_path):
    path = tmp_path / "tokenizer.json"
    model = {"type": "WordLevel", "vocab": {"a": 0, "[UNK]": 4_000_000_000}, "unk_token": "[UNK]"}
    path.write_text(json.dumps({"version": "1.0", "added_tokens": [], "model": model}))
    with pytest.raises(ValueError, match=r"gives a token the id 4000000000: ids are below 10,000"):
        open_tokenizer(path)
