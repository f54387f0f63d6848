import json
import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mimose_bench.experiments.data.unpc import from_rows, parse_unpc, read_files


def _read(path, max_samples=None):
    return parse_unpc(read_files(path, max_samples))


@pytest.fixture
def moses(tmp_path):
    (tmp_path / "UN.en-fr.en").write_bytes(b"The mill.\r\nThe river.\n")
    (tmp_path / "UN.en-fr.fr").write_bytes("Le moulin.\nLa rivière.\n".encode())
    return tmp_path


PAIRS = [("line 1", "The mill.", "Le moulin."), ("line 2", "The river.", "La rivière.")]


@pytest.mark.parametrize("name", ["", "UN.en-fr.en", "UN.en-fr.fr"])
def test_either_file_or_the_folder_means_the_pair(moses, name):
    pairs, omitted = _read(moses / name)
    assert [tuple(pair) for pair in pairs] == PAIRS
    assert len(omitted) == 0


def test_json_lines_read_alike(tmp_path):
    path = tmp_path / "train.json"
    lines = [json.dumps({"translation": {"en": en, "fr": fr}}) for _, en, fr in PAIRS]
    path.write_text("\ufeff" + "\n".join(lines))
    assert [tuple(pair) for pair in _read(path)[0]] == PAIRS
    assert len(_read(path, 1)[0]) == 1


def test_json_lines_may_begin_with_a_blank_one(tmp_path):
    path = tmp_path / "train.json"
    path.write_text("\n \n" + json.dumps({"translation": {"en": "a", "fr": "b"}}))
    pairs, omitted = _read(path)
    assert [pair.name for pair in pairs] == ["line 3"]
    assert omitted.describe() == "2 blank (line 1, line 2)"


def test_an_unreadable_folder_is_said_to_be(moses, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(ValueError, match=r"^data folder .* cannot be read: Permission denied$"):
        _read(moses)


def test_first_lines_only_even_of_files_of_unequal_length(moses):
    with (moses / "UN.en-fr.fr").open("ab") as file:
        file.write(b"Encore.\n")
    assert len(_read(moses, 2)[0]) == 2
    with pytest.raises(ValueError, match=r"UN.en-fr.en has 2 lines and UN.en-fr.fr has 3: they"):
        _read(moses)


def test_folders_with_no_pair_or_several(moses):
    (moses / "alone.en").write_text("x")
    assert len(_read(moses)[0]) == 2
    (moses / "second.en").write_text("x")
    (moses / "second.fr").write_text("x")
    with pytest.raises(ValueError, match=r"holds several pairs of files NAME.en and NAME.fr"):
        _read(moses)
    with pytest.raises(ValueError, match="cannot be read"):
        _read(moses / ("x" * 300))
    for path in moses.glob("*.fr"):
        path.unlink()
    with pytest.raises(ValueError, match=r"holds no pair of files NAME.en and NAME.fr"):
        _read(moses)
    with pytest.raises(ValueError, match=r"there is no data file .*UN.en-fr.fr"):
        _read(moses / "UN.en-fr.en")


@pytest.mark.parametrize(
    ("english", "french", "reason"),
    [
        (b"", b"a", "without an English sentence"),
        (b"a", b" ", "without a French sentence"),
        (b"a\0", b"a", "with a NUL character"),
        (b"a", b"\xe9", "not in UTF-8"),
        (b"a", b"x" * 100_001, "with more than 100,000 characters in a French sentence"),
    ],
)
def test_malformed_lines_of_a_pair_are_counted_and_named(tmp_path, english, french, reason):
    (tmp_path / "a.en").write_bytes(b"one\n" + english + b"\nthree\n")
    (tmp_path / "a.fr").write_bytes(b"un\n" + french + b"\ntrois\n")
    pairs, omitted = _read(tmp_path)
    assert [pair.name for pair in pairs] == ["line 1", "line 3"]
    assert omitted.describe() == f"1 {reason} (line 2)"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"", "blank"),
        (b"{", "not in JSON"),
        (b"[" * 100_000, "not in JSON"),
        (b"9" * 5000, "not in JSON"),
        (b"[1]", "without a translation"),
        (b"{}", "without a translation"),
        (b'{"translation": ["a", "b"]}', "without a translation"),
        (b'{"translation": {"en": "a"}}', "without a French sentence"),
        (b'{"translation": {"en": 3, "fr": "b"}}', "without an English sentence"),
        (b'{"translation": {"en": "\\ud800", "fr": "b"}}', "with half a character in an English"),
    ],
)
def test_malformed_json_lines_are_counted_and_named(tmp_path, line, reason):
    good = b'{"translation": {"en": "a", "fr": "b"}}'
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"\n".join([good, line, good]))
    pairs, omitted = _read(path)
    assert [pair.name for pair in pairs] == ["line 1", "line 3"]
    assert omitted.describe().startswith(f"1 {reason}")


@pytest.mark.parametrize("content", [b"The mill.\n", b"\x00\x01", b'[{"translation": {}}]'])
def test_what_is_neither_is_one_sentence(tmp_path, content):
    path = tmp_path / "x.txt"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"is neither NAME.en with NAME.fr nor JSON lines"):
        _read(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(*[st.binary(max_size=9).filter(lambda b: b"\n" not in b)] * 2),
        min_size=1,
        max_size=6,
    )
)
def test_every_line_is_a_pair_or_an_omission(tmp_path, lines):
    for column, suffix in enumerate(("en", "fr")):
        content = b"".join(line[column] + b"\n" for line in [(b"x", b"x"), *lines])
        (tmp_path / f"a.{suffix}").write_bytes(content)
    pairs, omitted = _read(tmp_path)
    assert len(pairs) + len(omitted) == 1 + len(lines)


def test_rows_of_the_hub_read_alike():
    rows = [{"translation": {"en": en, "fr": fr}} for _, en, fr in PAIRS]
    pairs, omitted = from_rows([*rows, {"translation": None}, None])
    assert [pair[1:] for pair in pairs] == [pair[1:] for pair in PAIRS]
    assert omitted.describe() == "2 without a translation (row 2, row 3)"
