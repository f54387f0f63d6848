import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimose_bench.experiments.data.squad import from_rows, read_squad


def test_reads_questions_with_their_answers(squad, write_squad):
    questions, omitted = read_squad(write_squad(squad))
    assert len(omitted) == 0
    assert [q.name for q in questions] == ["q0", "q1", "q2"]
    assert [q.context[q.answer_start : q.answer_end] for q in questions] == [
        "monks",
        "town",
        "1812",
    ]


def test_only_the_first_answer_counts(squad, write_squad):
    squad["data"][0]["paragraphs"][0]["qas"][0]["answers"].append({"text": "?", "answer_start": -1})
    questions, omitted = read_squad(write_squad(squad))
    assert (len(questions), len(omitted)) == (3, 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"question\tanswer\n", "is not JSON"),
        (b"\xff\xfe\x00\x01", "not text in UTF-8"),
        (b"[1, 2]", "is not SQuAD"),
        (b"{}", "is not SQuAD"),
        (b'{"data": []}', "is not SQuAD"),
        (b'{"data": {"paragraphs": 1}}', "is not SQuAD"),
        (b'{"data": [{"text": "x"}]}', "is not SQuAD"),
        (b'{"data": [{"paragraphs": []}]}', "holds no usable question: it has no questions"),
        (b'{"data": [{"paragraphs": [3]}]}', "holds no usable question: 1 without questions"),
        (b"[" * 100_000, "is damaged|breaks off"),
    ],
)
def test_what_is_not_squad_is_one_sentence(tmp_path, content, message):
    path = tmp_path / "train.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        read_squad(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_file_cut_anywhere_is_named_as_such(squad, tmp_path):
    text = json.dumps(squad)
    path = tmp_path / "train.json"
    for length in range(1, len(text), 37):
        path.write_text(text[:length])
        with pytest.raises(ValueError, match="breaks off or is damaged"):
            read_squad(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(ValueError, match="there is no data file"):
        read_squad(tmp_path / "absent.json")
    with pytest.raises(ValueError, match="is a folder"):
        read_squad(tmp_path)


def _without(field):
    return lambda paragraph: paragraph["qas"][0].pop(field)


def _answer(**changes):
    return lambda paragraph: paragraph["qas"][0]["answers"][0].update(changes)


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (_without("question"), "1 without a question (q1)"),
        (_without("answers"), "1 without an answer (q1)"),
        (_without("id"), None),
        (lambda p: p.pop("context"), "1 without a context (q1)"),
        (lambda p: p.pop("qas"), "1 without questions (article 0 paragraph 1)"),
        (lambda p: p.update(context="  "), "1 without a context (q1)"),
        (lambda p: p["qas"][0].update(question="\ud800 ?"), "half a character in a question"),
        (lambda p: p["qas"].insert(0, None), "not an object (article 0 paragraph 1 question 0)"),
        (lambda p: p["qas"][0].update(answers=[]), "1 without an answer (q1)"),
        (_answer(text=""), "1 without an answer text (q1)"),
        (_answer(answer_start="5"), "1 without a whole number answer_start (q1)"),
        (_answer(answer_start=True), "1 without a whole number answer_start (q1)"),
        (_answer(answer_start=3), "does not stand in its context at answer_start (q1)"),
        (_answer(answer_start=-4), "does not stand in its context at answer_start (q1)"),
    ],
)
def test_malformed_records_are_counted_and_named(squad, write_squad, spoil, reason):
    spoil(squad["data"][0]["paragraphs"][1])
    questions, omitted = read_squad(write_squad(squad))
    assert {"q0", "q2"} <= {q.name for q in questions}
    if reason is None:
        assert len(omitted) == 0
        assert questions[1].name == "article 0 paragraph 1 question 0"
    else:
        assert len(omitted) == 1
        assert reason in omitted.describe()


def test_no_usable_question_left_says_why(squad, write_squad):
    for paragraph in squad["data"][0]["paragraphs"]:
        _answer(answer_start=0, text="mill")(paragraph)
    with pytest.raises(ValueError, match=r"no usable question: 3 whose answer .*\(q0, q1, q2\)"):
        read_squad(write_squad(squad))


def test_many_malformed_records_are_named_in_part(squad, write_squad):
    paragraph = squad["data"][0]["paragraphs"][0]
    for number in range(5):
        qa = dict(copy.deepcopy(paragraph["qas"][0]), id=f"bad{number}", answers=None)
        paragraph["qas"].append(qa)
    _, omitted = read_squad(write_squad(squad))
    assert omitted.describe() == "5 without an answer (bad0, bad1, bad2 and 2 more)"


def test_rows_of_the_hub_read_alike(squad, write_squad):
    rows = [
        {
            "id": qa["id"],
            "question": qa["question"],
            "context": paragraph["context"],
            "answers": {
                "text": [a["text"] for a in qa["answers"]],
                "answer_start": [a["answer_start"] for a in qa["answers"]],
            },
        }
        for paragraph in squad["data"][0]["paragraphs"]
        for qa in paragraph["qas"]
    ]
    questions, omitted = from_rows([*rows, {"id": "bad", "question": "?", "answers": None}])
    assert questions == read_squad(write_squad(squad))[0]
    assert omitted.describe() == "1 without a context (bad)"


_anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)
_PLACES = (
    ("id",),
    ("question",),
    ("answers",),
    ("answers", 0),
    ("answers", 0, "text"),
    ("answers", 0, "answer_start"),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(place=st.sampled_from(_PLACES), value=_anything)
def test_anything_in_a_field_is_a_question_or_an_omission(squad, write_squad, place, value):
    spoilt = copy.deepcopy(squad)
    target = spoilt["data"][0]["paragraphs"][1]["qas"][0]
    *way, last = place
    for step in way:
        target = target[step]
    target[last] = value
    questions, omitted = read_squad(write_squad(spoilt))
    assert len(questions) + len(omitted) == 3
    assert {"q0", "q2"} <= {q.name for q in questions}
    assert "\n" not in omitted.describe()


@given(st.lists(st.fixed_dictionaries({"answers": _anything, "context": _anything}), max_size=3))
def test_any_row_of_the_hub_is_a_question_or_an_omission(rows):
    rows = [dict(row, question="Who?") for row in rows]
    questions, omitted = from_rows(rows)
    assert len(questions) + len(omitted) == len(rows)
