import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimose_bench.experiments.data.examples import Packed, QaExample
from mimose_bench.experiments.data.squad import Question
from mimose_bench.experiments.data.wordpiece import (
    find_vocabulary,
    read_vocabulary,
    tokenize,
    vocabulary_size,
)


def _question(context, answer, question="who ?", name="q"):
    start = context.index(answer)
    return Question(name, question, context, start, start + len(answer))


def _words(tokenizer, example):
    return [tokenizer.id_to_token(i) for i in example.tokens.tolist()]


def test_lays_out_question_and_context(vocab_path):
    tokenizer = read_vocabulary(vocab_path)
    (example,), omitted = tokenize(
        [_question("Built in 1812.", "1812", "When?")], tokenizer, max_length=32, stride=8
    )
    assert len(omitted) == 0
    words = _words(tokenizer, example)
    assert " ".join(words) == "[CLS] when ? [SEP] built in 18 ##12 . [SEP]"
    assert example.split == 4
    assert words[example.start : example.end + 1] == ["18", "##12"]


def test_answer_at_the_last_token_of_the_context(vocab_path):
    tokenizer = read_vocabulary(vocab_path)
    (example,), _ = tokenize([_question("the mill", "mill")], tokenizer, 32, 8)
    assert _words(tokenizer, example)[example.start : example.end + 1] == ["mill"]


def test_long_context_becomes_overlapping_windows(vocab_path):
    tokenizer = read_vocabulary(vocab_path)
    context = " ".join(["town", "river", "stone", "bridge"] * 10) + " mill"
    examples, _ = tokenize([_question(context, "mill")], tokenizer, max_length=16, stride=4)
    assert max(len(e.tokens) for e in examples) == 16
    bodies = [_words(tokenizer, e)[e.split : -1] for e in examples]
    rebuilt = bodies[0]
    for body in bodies[1:]:
        assert rebuilt[-4:] == body[:4]
        rebuilt = rebuilt + body[4:]
    assert " ".join(rebuilt) == context
    assert [(e.start, e.end) for e in examples[:-1]] == [(0, 0)] * (len(examples) - 1)
    last = examples[-1]
    assert _words(tokenizer, last)[last.start] == "mill"


def _reference(question, offsets, sequence):
    """Label positions token by token, the long way."""
    inside = [i for i, s in enumerate(sequence) if s == 1]
    if not inside or not (
        offsets[inside[0]][0] <= question.answer_start
        and question.answer_end <= offsets[inside[-1]][1]
    ):
        return 0, 0
    start = max(i for i in inside if offsets[i][0] <= question.answer_start)
    end = min(i for i in inside if offsets[i][1] >= question.answer_end)
    return start, end


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    words=st.lists(st.sampled_from(["the", "mill", "1812", "odd,", ".", "é"]), min_size=1),
    data=st.data(),
    max_length=st.integers(12, 40),
)
def test_labels_agree_with_a_search_token_by_token(vocab_path, words, data, max_length):
    tokenizer = read_vocabulary(vocab_path)
    context = " ".join(words)
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    question = Question("q", "who ?", context, start, end)
    examples, _ = tokenize([question], tokenizer, max_length, stride=3)
    first = tokenizer.encode(question.question, question.context)
    windows = [first, *first.overflowing]
    assert len(windows) == len(examples)
    for window, example in zip(windows, examples):
        assert example.tokens.tolist() == window.ids
        expected = _reference(question, window.offsets, window.sequence_ids)
        assert (example.start, example.end) == expected


def test_question_without_room_for_its_context_is_left_out(vocab_path):
    tokenizer = read_vocabulary(vocab_path)
    context = " ".join(["town"] * 40)
    # 16 tokens less 3 added, a stride of 4 and one new token leave 8 for the question.
    fits = _question(context, "town", " ".join(["who"] * 8), "fits")
    long = _question(context, "town", " ".join(["who"] * 9), "long")
    examples, omitted = tokenize([fits, long], tokenizer, max_length=16, stride=4)
    assert {e.split for e in examples} == {10}
    assert omitted.describe() == "1 whose question is longer than 8 tokens (long)"


def test_vocabulary_is_found_next_to_the_data(tmp_path):
    data = tmp_path / "train.json"
    with pytest.raises(ValueError, match="no vocabulary next to"):
        find_vocabulary(data)
    (tmp_path / "bert-vocab.txt").write_text("x")
    assert find_vocabulary(data).name == "bert-vocab.txt"
    (tmp_path / "my_vocab_2.txt").write_text("x")
    with pytest.raises(ValueError, match=r"bert-vocab.txt, my_vocab_2.txt"):
        find_vocabulary(data)
    (tmp_path / "vocab.txt").write_text("x")
    assert find_vocabulary(data).name == "vocab.txt"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"no line \[PAD\]"),
        (b"[PAD]\n[UNK]\n[CLS]\n", r"no line \[SEP\]"),
        (b"\xff\xfe", "not text in UTF-8"),
    ],
)
def test_what_is_not_a_vocabulary_is_refused(tmp_path, content, message):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_vocabulary(path)
    with pytest.raises(ValueError, match="there is no vocabulary"):
        read_vocabulary(tmp_path / "absent.txt")


def test_vocabulary_size_counts_every_id(vocab_path):
    tokenizer = read_vocabulary(vocab_path)
    assert vocabulary_size(tokenizer) == len(vocab_path.read_text().split())


def test_features_unpack_to_what_was_packed(vocab_path):
    tokenizer = read_vocabulary(vocab_path)
    context = " ".join(["town", "river", "mill"] * 12)
    examples, _ = tokenize([_question(context, "mill")], tokenizer, 20, 5)
    features = Packed.pack(QaExample, examples)
    assert len(features) == len(examples) > 2
    assert [len(f.tokens) for f in features] == [len(e.tokens) for e in examples]
    for packed, example in zip(features, examples):
        assert packed.tokens.tolist() == example.tokens.tolist()
        assert packed[1:] == example[1:]
