import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from mimose_bench.experiments.data.templates import TEMPLATES, longest_first
from mimose_bench.experiments.data.tokens import open_tokenizer

LAYOUTS = {
    "bert": "[CLS] the old [SEP] mill [SEP]",
    "roberta": "<s> the old </s> </s> mill </s>",
    "xlnet": "\u2581the \u2581old <sep> \u2581mill <sep> <cls>",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_pairs_are_laid_out_as_their_family_has_them(name, vocab_path, other_tokenizers):
    tokenizer = open_tokenizer(vocab_path if name == "bert" else other_tokenizers[name])
    layout = TEMPLATES[name].layout(tokenizer)
    first, second = tokenizer.encode(["the old", "mill"])
    tokens, split = layout.pair(first, second)
    if name == "roberta":
        text = tokenizer.tokenizer.decode(tokens.tolist(), skip_special_tokens=False)
        assert text == LAYOUTS[name].replace(" ", "").replace("theold", "the old")
    else:
        words = [tokenizer.tokenizer.id_to_token(i) for i in tokens.tolist()]
        assert " ".join(words) == LAYOUTS[name]
    assert tokens[split : split + len(second)].tolist() == second
    assert len(tokens) == len(first) + len(second) + layout.added
    assert TEMPLATES[name].remark(tokenizer) == ()


def test_t5_ends_a_text_even_if_it_is_cut(other_tokenizers):
    tokenizer = open_tokenizer(other_tokenizers["t5"])
    layout = TEMPLATES["t5"].layout(tokenizer)
    (text,) = tokenizer.encode(["the old mill"])
    assert layout.single(text, 9).tolist() == [*text, tokenizer.eos]
    assert layout.single(text, 3).tolist() == [*text[:2], tokenizer.eos]


def test_foreign_tokenizer_serves_and_is_remarked_upon(vocab_path, other_tokenizers):
    bert = open_tokenizer(vocab_path)
    assert TEMPLATES["roberta"].layout(bert) == ([2], [3, 3], [3])
    assert TEMPLATES["xlnet"].layout(bert) == ([], [3], [3, 2])
    assert TEMPLATES["t5"].layout(bert) == ([], [], [3])
    assert TEMPLATES["roberta"].remark(bert) == (
        "tokenised with BERT's uncased WordPiece, not roberta-base's own tokenizer: lengths differ",
    )
    with pytest.raises(ValueError, match="which this task needs: name another with --vocab"):
        TEMPLATES["bert"].layout(open_tokenizer(other_tokenizers["t5"]))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=st.integers(1, 30), second=st.integers(1, 30), max_length=st.integers(5, 40))
def test_pairs_are_cut_as_the_tokenizers_library_does(vocab_path, first, second, max_length):
    tokenizer = open_tokenizer(vocab_path)
    reference = open_tokenizer(vocab_path).tokenizer
    reference.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    reference.enable_truncation(max_length, strategy="longest_first")
    texts = " ".join(["mill"] * first), " ".join(["town"] * second)
    expected = reference.encode(*texts).ids
    layout = TEMPLATES["bert"].layout(tokenizer)
    tokens, split, was_cut = layout.fitting_pair(*tokenizer.encode(texts), max_length)
    assert tokens.tolist() == expected
    assert expected[split - 1] == 3
    assert was_cut == (first + second + 3 > max_length)


@given(first=st.integers(0, 90), second=st.integers(0, 90), room=st.integers(2, 90))
def test_nothing_is_cut_without_need(first, second, room):
    kept = longest_first(first, second, room)
    assert sum(kept) == min(first + second, room)
    assert kept[0] <= first
    assert kept[1] <= second
