"""Files are whole or not there, also where the disk is full."""

import errno
import os

import pyarrow as pa
import pytest

from mimose_bench.experiments import files


@pytest.mark.parametrize(
    "write",
    [
        lambda path: files.write_json(path, {"new": 1}),
        lambda path: files.write_text(path, "new"),
        lambda path: files.write_table(path, pa.table({"new": [1]})),
    ],
    ids=["json", "text", "table"],
)
def test_a_full_disk_leaves_what_was_there_and_names_the_file(tmp_path, monkeypatch, write):
    path = tmp_path / "file"
    path.write_text("old")

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space left on device") as raised:
            write(path)
    assert raised.value.filename == str(path)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"
    write(path)
    assert b"new" in path.read_bytes()
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
