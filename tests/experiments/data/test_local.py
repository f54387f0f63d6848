import pytest
from hypothesis import given
from hypothesis import strategies as st

from mimose_bench.experiments.data.fields import MalformedError, label_of, text_of
from mimose_bench.experiments.data.local import line_text, lines_of, read_data
from mimose_bench.experiments.data.omissions import Omissions


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"\xef\xbb\xbfa\r\nb", [b"a", b"b"]),
        (b"a\n\n", [b"a", b""]),
        ("a\u2028b\x85c\n".encode(), ["a\u2028b\x85c".encode()]),
        (b"", []),
    ],
)
def test_only_line_feeds_end_a_line(content, lines):
    assert lines_of(content) == lines


def test_content_of_what_cannot_be_read_is_one_sentence(tmp_path):
    empty = tmp_path / "empty"
    for content in (b"", b" \r\n", b"\xef\xbb\xbf\n"):
        empty.write_bytes(content)
        with pytest.raises(ValueError, match=r"empty is empty: download it again$"):
            read_data(empty, "TSV file")
    with pytest.raises(ValueError, match=r"is a folder: give the TSV file in it$"):
        read_data(tmp_path, "TSV file")
    for name in ("absent", "x" * 300, "empty/below", "nul\0", "loop"):
        (tmp_path / "loop").unlink(missing_ok=True)
        (tmp_path / "loop").symlink_to("loop")
        with pytest.raises(ValueError, match=r"no data file|cannot be (read|the name)") as caught:
            read_data(tmp_path / name, "TSV file")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_text_in_utf_16_is_told_to_be_converted(tmp_path, encoding):
    path = tmp_path / "x.tsv"
    path.write_bytes("question1\tquestion2\n".encode(encoding))
    with pytest.raises(ValueError, match=r"x.tsv is in UTF-16, not text in UTF-8: convert it$"):
        read_data(path, "TSV file")


def test_device_is_not_waited_for():
    from pathlib import Path

    with pytest.raises(ValueError, match="is not a file"):
        read_data(Path("/dev/zero"), "TSV file")


def test_reads_only_the_lines_asked_for(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"a\nb\nc\n")
    assert read_data(path, "file", 2) == b"a\nb\n"
    assert read_data(path, "file", 9) == b"a\nb\nc\n"


def test_a_line_that_is_no_text_is_said_why():
    assert line_text("é".encode()) == "é"
    with pytest.raises(MalformedError, match="not in UTF-8"):
        line_text(b"\xff")
    with pytest.raises(MalformedError, match="with a NUL character"):
        line_text(b"a\0b")


@pytest.mark.parametrize("value", ["0", " 1", 1, "1 "])
def test_labels_are_numbers_or_digits(value):
    assert label_of(value, 2) == int(value)


@given(
    st.one_of(st.text(), st.integers(), st.floats(), st.none(), st.booleans(), st.lists(st.none()))
)
def test_any_other_label_is_malformed(value):
    if not isinstance(value, bool) and str(value).strip() in ("0", "1"):
        assert str(label_of(value, 2)) == str(value).strip()
    else:
        with pytest.raises(MalformedError, match="whose label is not 0 or 1"):
            label_of(value, 2)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "without a name"),
        (" \n", "without a name"),
        (3, "without a name"),
        ("\ud800", "with half a character in a name"),
        ("x" * 11, "with more than 10 characters in a name"),
    ],
)
def test_text_that_cannot_be_used(value, message):
    with pytest.raises(MalformedError, match=message):
        text_of(value, "a name", 10)
    assert text_of("x" * 10, "a name", 10) == "x" * 10


def test_names_of_omissions_stay_on_one_line_and_short():
    omitted = Omissions()
    omitted.add("odd", "a\nb\0\ud800c")
    omitted.add("odd", "x" * 10_000)
    assert omitted.describe() == f"2 odd (a b  c, {'x' * 60}...)"
    assert omitted.describe().encode()
