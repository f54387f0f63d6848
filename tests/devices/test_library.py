"""Building the allocator model: what a user is told when it cannot be."""

import os
import subprocess
import sys

import pytest

from mimose.devices import library
from mimose.devices.allocator import AllocatorModel


def test_without_compiler_the_package_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(ValueError, match=r"install g\+\+ .*Debian.*gcc-c\+\+"):
        library._build()


def test_failing_compiler_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(ValueError, match=r"false could not compile"):
        library._build()
    assert list((tmp_path / "mimose").iterdir()) == []


def test_folder_of_others_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "mimose").mkdir()
    (tmp_path / "mimose").chmod(0o777)
    with pytest.raises(ValueError, match="someone else"):
        library.cache_folder()


def test_folder_that_cannot_be_made(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ValueError, match="set XDG_CACHE_HOME"):
        library.cache_folder()


def test_compiler_named_in_the_environment_comes_first(monkeypatch) -> None:
    monkeypatch.setenv("CXX", "env g++")
    assert library.find_compiler() == ["env", "g++"]


def test_a_damaged_library_in_the_cache_is_compiled_again(tmp_path):
    script = "from mimose.devices.allocator import AllocatorModel; AllocatorModel().malloc(1)"
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", script]
    # Only its name is needed, which whoever has compiled it before knows.
    AllocatorModel().malloc(1)
    (tmp_path / "mimose").mkdir(mode=0o700)
    damaged = [tmp_path / "mimose" / built.name for built in library.cache_folder().glob("*.so")]
    for file in damaged:
        file.write_bytes(b"junk")
    subprocess.run(command, env=environment, check=True)
    mended = [file for file in damaged if file.read_bytes() != b"junk"]
    assert len(mended) == 1
    assert mended[0].stat().st_size > 1000
    assert set((tmp_path / "mimose").glob("*.so")) == set(damaged)
