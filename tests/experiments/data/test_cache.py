import json
import logging
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from mimose_bench.experiments.data.cache import Entry, cache_folder, cached, key_of

MADE = Entry({"a": np.arange(5, dtype=np.int32), "a.bounds": np.array([0, 5])}, {"notes": ["é"]})


@pytest.fixture
def folder(monkeypatch, tmp_path):
    monkeypatch.setenv("MIMOSE_BENCH_CACHE", str(tmp_path / "deep" / "cache"))
    return tmp_path / "deep" / "cache"


class _Build:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1
        return MADE


def _same(entry):
    return entry.facts == MADE.facts and all(
        np.array_equal(entry.arrays[name], array) and entry.arrays[name].dtype == array.dtype
        for name, array in MADE.arrays.items()
    )


def _get(build, key="0" * 64, fits=_same):
    return cached("thing", key, build, fits)


def test_what_was_built_is_read_back(folder):
    build = _Build()
    assert _get(build) == (MADE, False)
    entry, was_kept = _get(build)
    assert was_kept
    assert _same(entry)
    assert build.calls == 1
    assert [path.name for path in folder.iterdir()] == [f"thing-{'0' * 32}.npz"]
    _get(build, key="1" * 64)
    assert build.calls == 2


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: b"",
        lambda content: b"nonsense",
        lambda content: content[: len(content) // 2],
        lambda content: content[:-1],
        lambda content: content.replace(b"\x04\x00\x00\x00", b"\x05\x00\x00\x00", 1),
        lambda content: content.replace(b"notes", b"nodes"),
    ],
)
def test_damaged_entry_is_built_anew(folder, spoil, caplog):
    build = _Build()
    _get(build)
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(spoil(whole))
    with caplog.at_level(logging.INFO):
        assert _get(build) == (MADE, False)
    assert "tokenising again" in caplog.text
    assert build.calls == 2
    assert _get(build)[1]


def test_entry_damaged_at_any_byte_is_never_wrong(folder):
    _get(_Build())
    (path,) = folder.iterdir()
    whole = path.read_bytes()
    for place in range(0, len(whole), 11):
        spoilt = bytearray(whole)
        spoilt[place] ^= 0xFF
        path.write_bytes(bytes(spoilt))
        assert _same(_get(_Build())[0])


def test_a_pipe_in_the_place_of_an_entry_is_not_waited_for(folder, caplog):
    build = _Build()
    _get(build)
    (path,) = folder.iterdir()
    path.unlink()
    os.mkfifo(path)
    with caplog.at_level(logging.INFO):
        assert _get(build) == (MADE, False)
    assert "it is no file" in caplog.text
    assert _get(build)[1]


def test_entry_that_does_not_fit_is_built_anew(folder):
    build = _Build()
    _get(build)
    assert not _get(build, fits=lambda entry: False)[1]
    assert build.calls == 2


def test_nothing_is_kept_of_a_failure(folder):
    def fail():
        raise ValueError("no usable row")

    with pytest.raises(ValueError, match="no usable row"):
        _get(fail)
    assert not folder.exists()


def test_cache_can_be_switched_off(monkeypatch, tmp_path):
    monkeypatch.setenv("MIMOSE_BENCH_CACHE", "OFF")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    build = _Build()
    assert _get(build) == _get(build) == (MADE, False)
    assert build.calls == 2
    assert not list(tmp_path.iterdir())


def test_folder_is_the_users_own(monkeypatch, tmp_path):
    monkeypatch.delenv("MIMOSE_BENCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "mimose-bench"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mimose-bench"


def test_unwritable_folder_costs_time_only(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MIMOSE_BENCH_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.INFO):
        assert _get(_Build()) == (MADE, False)
    assert "is not kept for the next run" in caplog.text


def test_write_that_fails_midway_leaves_nothing(folder, monkeypatch):
    def full(file, **arrays):
        file.write(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full)
    assert _get(_Build()) == (MADE, False)
    assert not list(folder.iterdir())


def _fill(folder, barrier, results):
    os.environ["MIMOSE_BENCH_CACHE"] = folder
    barrier.wait()
    results.put([_same(_get(_Build())[0]) for _ in range(20)])


def test_processes_may_fill_it_at_once(folder):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(2), context.Queue()
    others = [context.Process(target=_fill, args=(str(folder), barrier, results)) for _ in range(2)]
    for process in others:
        process.start()
    assert all(all(results.get(timeout=60)) for _ in others)
    for process in others:
        process.join(60)
        assert process.exitcode == 0
    assert len(list(folder.iterdir())) == 1


def test_key_depends_on_every_part():
    parts = {"content": "abc", "max_length": 512}
    assert key_of(parts) == key_of(json.loads(json.dumps(parts)))
    assert key_of(parts) == key_of(dict(reversed(parts.items())))
    others = [{**parts, "max_length": 511}, {**parts, "stride": 1}, {"content": "abc"}]
    assert len({key_of(each) for each in [parts, *others]}) == 4


def test_home_that_does_not_exist(monkeypatch):
    monkeypatch.delenv("MIMOSE_BENCH_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert cache_folder() is None
