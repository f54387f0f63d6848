"""What is missing is named, with the package that brings it, before anything slow starts."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts/check_machine.sh"


@pytest.fixture
def check(tmp_path):
    """Run the check on a machine that has only the named commands."""

    def run(python, *commands):
        for name in commands:
            file = tmp_path / name
            file.write_text("#!/bin/sh\n")
            file.chmod(0o755)
        environment = {"PATH": str(tmp_path)}
        return subprocess.run(
            ["/bin/sh", str(SCRIPT), python], env=environment, capture_output=True, text=True
        )

    return run


def test_a_complete_machine_passes_in_silence(check):
    done = check(sys.executable, "g++")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_missing_compiler_is_named(check):
    done = check(sys.executable)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "apt-get install g++" in line


def test_a_missing_python_is_named(check):
    done = check("python3", "g++")
    assert done.returncode == 1
    assert "python3-venv" in done.stderr


def test_a_python_without_venv_is_named(check, tmp_path):
    python = tmp_path / "bare-python"
    python.write_text(
        f'#!/bin/sh\ncase "$2" in *ensurepip*) exit 1;; esac\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = check(str(python), "clang++")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "cannot make virtual environments" in line
