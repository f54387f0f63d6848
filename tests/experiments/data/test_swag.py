import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimose_bench.experiments.data.swag import from_rows, parse_swag

HEADER = (
    ",video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3,label"
)
GOOD = '0,v,1,"Built. It",Built.,It,gold,"is, was",runs,stands,"""was""",3'
PATH = Path("train.csv")


def _parse(*lines):
    return parse_swag(PATH, "\n".join([HEADER, *lines, ""]).encode())


def test_endings_begin_with_the_second_sentence():
    scenes, omitted = _parse(GOOD)
    assert len(omitted) == 0
    endings = ("It is, was", "It runs", "It stands", 'It "was"')
    assert [tuple(scene) for scene in scenes] == [("line 2", "Built.", endings, 3)]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (GOOD.replace(",3", ",4"), "whose label is not 0, 1, 2 or 3"),
        (GOOD.replace(",3", ""), "with too few fields"),
        (GOOD + ",5", "with too many fields"),
        (GOOD.replace("runs", ""), "without an ending1"),
        (GOOD.replace("Built.,It", ",It"), "without a first sentence (sent1)"),
        (GOOD.replace(",It,", ",,"), "without a start of the second (sent2)"),
        (GOOD.replace('"is, was"', '"is, was'), "not in CSV: "),
        (GOOD.replace('"""was"""', '"was'), "not in CSV: a quote does not close"),
        (GOOD.replace("runs", "x" * 140_000), "not in CSV: a field is too long"),
        (GOOD.replace("runs", "a\0b"), "with a NUL character"),
        ("", "blank"),
    ],
)
def test_malformed_rows_are_counted_and_cost_their_own_line_only(line, reason):
    scenes, omitted = _parse(GOOD, line, GOOD)
    assert [scene.name for scene in scenes] == ["line 2", "line 4"]
    assert omitted.describe().startswith(f"1 {reason}")
    assert omitted.describe().endswith("(line 3)")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (HEADER.replace(",label", "").encode(), "names no column label"),
        (HEADER.replace("sent2", "sent3").encode(), "names no column sent2"),
        (b'"unclosed', "its first line is not in CSV"),
        (b"\xff\xfe\n", "its first line is not in UTF-8"),
    ],
)
def test_other_headers_are_refused_in_a_sentence(content, message):
    with pytest.raises(ValueError, match=rf"^train.csv is not a SWAG CSV file: .*{message}"):
        parse_swag(PATH, content)


_field = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r\0"), max_size=9)


@given(st.lists(st.lists(_field, min_size=12, max_size=12), max_size=5))
def test_what_csv_writes_is_read_back(rows):
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([HEADER.split(","), *rows])
    scenes, omitted = parse_swag(PATH, out.getvalue().encode())
    assert len(scenes) + len(omitted) == len(rows)
    by_line = {f"line {number}": row for number, row in enumerate(rows, 2)}
    for scene in scenes:
        row = by_line[scene.name]
        assert scene.context == row[4]
        assert scene.endings == tuple(f"{row[5]} {ending}" for ending in row[7:11])


@given(st.lists(st.binary(max_size=60).filter(lambda line: b"\n" not in line), max_size=8))
def test_every_line_is_a_scene_or_an_omission(lines):
    scenes, omitted = parse_swag(PATH, b"\n".join([HEADER.encode(), *lines]) + b"\n")
    assert len(scenes) + len(omitted) == len(lines)


def test_rows_of_the_hub_read_alike():
    row = {"sent1": "Built.", "sent2": "It", "label": 3}
    row |= {
        f"ending{number}": end for number, end in enumerate(["is, was", "runs", "stands", '"was"'])
    }
    scenes, omitted = from_rows([row, dict(row, label=-1), {}])
    assert [scene[1:] for scene in scenes] == [scene[1:] for scene in _parse(GOOD)[0]]
    assert omitted.describe() == (
        "1 whose label is not 0, 1, 2 or 3 (row 1); 1 without a first sentence (sent1) (row 2)"
    )
