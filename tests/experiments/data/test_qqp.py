from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimose_bench.experiments.data.qqp import from_rows, parse_qqp

PUBLISHED = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
PATH = Path("train.tsv")


def _parse(*lines, header=PUBLISHED, end="\n"):
    return parse_qqp(PATH, end.join([header, *lines, ""]).encode())


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_reads_the_published_columns_and_quotes_mean_nothing(end):
    pairs, omitted = _parse(
        '7\t1\t2\t"Who" built it?\tWho built "it\t1', "8\t3\t4\tWhen?\tWhere, when?\t0", end=end
    )
    assert len(omitted) == 0
    assert [tuple(pair) for pair in pairs] == [
        ("line 2", '"Who" built it?', 'Who built "it', 1),
        ("line 3", "When?", "Where, when?", 0),
    ]


def test_reads_three_columns_after_a_byte_order_mark():
    pairs, omitted = _parse("a\tb\t1", header="\ufeffquestion1\tquestion2\tlabel")
    assert (pairs[0][1:], len(omitted)) == (("a", "b", 1), 0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id\tquestion1\tquestion2\n1\ta\tb\n", "names no column is_duplicate or label"),
        (b"a\tb\t1\n", "names no column question1"),
        ("question1\tquestion2\tlabel\n".encode("utf-16"), "its first line is (not in|with a NUL)"),
        (b"question1,question2,label\na,b,1\n", "names no column question1"),
    ],
)
def test_other_headers_are_refused_in_a_sentence(content, message):
    with pytest.raises(ValueError, match=rf"^train.tsv is not a GLUE-QQP TSV file: .*{message}"):
        parse_qqp(PATH, content)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"1\t2\t3\ta\tb", "with too few fields"),
        (b"1\t2\t3\ta\tb\t1\tc", "with too many fields"),
        (b"", "blank"),
        (b"1\t2\t3\t\tb\t1", "without a first question"),
        (b"1\t2\t3\ta\t \t1", "without a second question"),
        (b"1\t2\t3\ta\tb\t2", "whose label is not 0 or 1"),
        (b"1\t2\t3\ta\tb\t", "whose label is not 0 or 1"),
        (b"1\t2\t3\ta\tb\t-1", "whose label is not 0 or 1"),
        (b"1\t2\t3\ta\tb\t1.0", "whose label is not 0 or 1"),
        (b"1\t2\t3\t\xe9\tb\t1", "not in UTF-8"),
        (b"1\t2\t3\ta\0\tb\t1", "with a NUL character"),
        (b"1\t2\t3\t" + b"x" * 100_001 + b"\tb\t1", "with more than 100,000 characters in a first"),
    ],
)
def test_malformed_rows_are_counted_and_named_by_their_line(line, reason):
    good = b"1\t2\t3\ta\tb\t1"
    pairs, omitted = parse_qqp(PATH, b"\n".join([PUBLISHED.encode(), good, line, good, b""]))
    assert [pair.name for pair in pairs] == ["line 2", "line 4"]
    assert omitted.describe().startswith(f"1 {reason}")
    assert omitted.describe().endswith("(line 3)")


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=8))
def test_every_line_is_a_pair_or_an_omission(lines):
    content = b"\n".join([b"question1\tquestion2\tlabel", *lines]) + b"\n"
    pairs, omitted = parse_qqp(PATH, content)
    assert len(pairs) + len(omitted) == len(lines)
    assert all(pair.label in (0, 1) and pair.first.strip() for pair in pairs)


def test_rows_of_the_hub_read_alike():
    rows = [
        {"question1": "a", "question2": "b", "label": 1, "idx": 5},
        {"question1": "a", "question2": None, "label": 1, "idx": 6},
        {"question1": "a", "question2": "b", "label": -1},
    ]
    pairs, omitted = from_rows(rows)
    assert [tuple(pair) for pair in pairs] == [("row 5", "a", "b", 1)]
    assert omitted.describe() == (
        "1 without a second question (row 6); 1 whose label is not 0 or 1 (row 2)"
    )
