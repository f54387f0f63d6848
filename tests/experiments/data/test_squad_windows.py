import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from mimose_bench.experiments.data.squad import Question
from mimose_bench.experiments.data.squad_windows import tokenize
from mimose_bench.experiments.data.tokens import open_tokenizer


def _question(context, answer, question="who ?", name="q"):
    start = context.index(answer)
    return Question(name, question, context, start, start + len(answer))


def _words(tokenizer, example):
    return [tokenizer.tokenizer.id_to_token(i) for i in example.tokens.tolist()]


def test_lays_out_question_and_context(vocab_path):
    tokenizer = open_tokenizer(vocab_path)
    (example,), omitted = tokenize(
        [_question("Built in 1812.", "1812", "When?")], tokenizer, "bert", max_length=32, stride=8
    )
    assert len(omitted) == 0
    words = _words(tokenizer, example)
    assert " ".join(words) == "[CLS] when ? [SEP] built in 18 ##12 . [SEP]"
    assert example.split == 4
    assert words[example.start : example.end + 1] == ["18", "##12"]


def test_xlnet_reads_the_context_first(other_tokenizers):
    tokenizer = open_tokenizer(other_tokenizers["xlnet"])
    context = "past a mill by the river"
    (example,), _ = tokenize(
        [_question(context, "mill", "where is")], tokenizer, "xlnet", max_length=32, stride=8
    )
    words = " ".join(_words(tokenizer, example)).replace("\u2581", "")
    assert words == "past a mill by the river <sep> where is <sep> <cls>"
    assert (example.split, example.start, example.end) == (7, 2, 2)


def test_xlnet_windows_without_the_answer_point_at_the_last_token(other_tokenizers):
    tokenizer = open_tokenizer(other_tokenizers["xlnet"])
    context = " ".join(["town", "river", "stone", "bridge"] * 10) + " mill"
    examples, _ = tokenize([_question(context, "mill", "who")], tokenizer, "xlnet", 16, 4)
    assert len(examples) > 3
    for example in examples[:-1]:
        assert (example.start, example.end) == (15, 15)
        assert example.tokens[15] == tokenizer.cls
    last = examples[-1]
    assert _words(tokenizer, last)[last.start] == "\u2581mill"
    bodies = [_words(tokenizer, e)[: e.split - 1] for e in examples]
    rebuilt = bodies[0]
    for body in bodies[1:]:
        assert rebuilt[-4:] == body[:4]
        rebuilt = rebuilt + body[4:]
    assert " ".join(rebuilt).replace("\u2581", "") == context


def test_answer_at_the_last_token_of_the_context(vocab_path):
    tokenizer = open_tokenizer(vocab_path)
    (example,), _ = tokenize([_question("the mill", "mill")], tokenizer, "bert", 32, 8)
    assert _words(tokenizer, example)[example.start : example.end + 1] == ["mill"]


@pytest.mark.parametrize("template", ["bert", "xlnet"])
def test_question_or_context_of_nothing_the_tokenizer_keeps_is_left_out(vocab_path, template):
    tokenizer = open_tokenizer(vocab_path)
    questions = [
        Question("a", "who ?", "\u200b\u200b", 0, 1),
        _question("the mill", "mill"),
        _question("the mill", "mill", "\u200b", "b"),
    ]
    examples, omitted = tokenize(questions, tokenizer, template, 32, 8)
    assert len(examples) == 1
    assert omitted.describe() == "2 of which the tokenizer leaves nothing (a, b)"


def test_long_context_becomes_overlapping_windows(vocab_path):
    tokenizer = open_tokenizer(vocab_path)
    context = " ".join(["town", "river", "stone", "bridge"] * 10) + " mill"
    examples, _ = tokenize([_question(context, "mill")], tokenizer, "bert", 16, 4)
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


def _reference(question, offsets, sequence, context, absent):
    """Label positions token by token, the long way."""
    inside = [i for i, s in enumerate(sequence) if s == context]
    if not inside or not (
        offsets[inside[0]][0] <= question.answer_start
        and question.answer_end <= offsets[inside[-1]][1]
    ):
        return absent, absent
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
    template=st.sampled_from(["bert", "xlnet"]),
)
def test_windows_agree_with_the_library_and_a_search_token_by_token(
    vocab_path, words, data, max_length, template
):
    tokenizer = open_tokenizer(vocab_path)
    context = " ".join(words)
    start = data.draw(st.integers(0, len(context) - 1))
    end = data.draw(st.integers(start + 1, len(context)))
    question = Question("q", "who ?", context, start, end)
    examples, _ = tokenize([question], tokenizer, template, max_length, stride=3)
    library = open_tokenizer(vocab_path).tokenizer
    if template == "bert":
        pair, only = (question.question, context), "only_second"
        form = "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1"
    else:
        pair, only = (context, question.question), "only_first"
        form = "$A:0 [SEP]:0 $B:1 [SEP]:1 [CLS]:2"
    library.post_processor = processors.TemplateProcessing(
        pair=form, special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    library.enable_truncation(max_length, stride=3, strategy=only)
    first = library.encode(*pair)
    windows = [first, *first.overflowing]
    assert len(windows) == len(examples)
    for window, example in zip(windows, examples):
        assert example.tokens.tolist() == window.ids
        assert example.split == window.type_ids.index(1)
        bert = template == "bert"
        expected = _reference(
            question,
            window.offsets,
            window.sequence_ids,
            1 if bert else 0,
            0 if bert else len(window.ids) - 1,
        )
        assert (example.start, example.end) == expected


def test_questions_that_share_a_context_do_not_share_more(vocab_path):
    tokenizer = open_tokenizer(vocab_path)
    context = "the mill by the river"
    questions = [
        _question(context, "mill", "who ?", "a"),
        _question(context, "river", "where is the mill ?", "b"),
        _question("the town", "town", "where ?", "c"),
    ]
    together, _ = tokenize(questions, tokenizer, "bert", 32, 8)
    alone = [tokenize([q], tokenizer, "bert", 32, 8)[0][0] for q in questions]
    for left, right in zip(together, alone):
        assert left.tokens.tolist() == right.tokens.tolist()
        assert left[1:] == right[1:]


@pytest.mark.parametrize("template", ["bert", "xlnet"])
def test_question_without_room_for_its_context_is_left_out(vocab_path, template):
    tokenizer = open_tokenizer(vocab_path)
    context = " ".join(["town"] * 40)
    # 16 tokens less 3 added, a stride of 4 and one new token leave 8 for the question.
    fits = _question(context, "town", " ".join(["who"] * 8), "fits")
    long = _question(context, "town", " ".join(["who"] * 9), "long")
    examples, omitted = tokenize([fits, long], tokenizer, template, max_length=16, stride=4)
    assert {e.tokens.tolist().count(tokenizer.tokenizer.token_to_id("who")) for e in examples} == {
        8
    }
    assert omitted.describe() == "1 whose question is longer than 8 tokens (long)"
