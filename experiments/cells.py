"""Run one configuration in a process of its own, so that no run disturbs another's memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUT_OF_MEMORY = 3


class CellError(RuntimeError):
    """A cell ended with an error of its own; the message is its last sentence on stderr."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A finished run.

    Attributes:
        exit_code: 0, or 3 where the run ended out of memory.
        run: Its run.json.
    """

    exit_code: int
    run: dict[str, Any]

    @property
    def folder(self) -> Path:
        """The run's folder."""
        return Path(self.summary["run_dir"])

    @property
    def summary(self) -> dict[str, Any]:
        """The run's summary."""
        return dict(self.run["summary"])


def run_cell(arguments: Sequence[str]) -> Cell:
    """Run ``mimose-bench run`` with ``arguments`` in a fresh process; its progress is shown.

    Raises:
        CellError: If it ended otherwise than finished or out of memory.
    """
    code, output, errors = call(["run", *arguments, "--json"])
    if code not in (0, OUT_OF_MEMORY):
        last = errors.strip().splitlines()[-1:] or [f"exit code {code}"]
        raise CellError(f"mimose-bench run {' '.join(arguments)}: {last[0]}")
    return Cell(code, json.loads(output))


def call(arguments: Sequence[str]) -> tuple[int, str, str]:
    """Run ``mimose-bench`` with ``arguments``; return exit code, stdout and stderr.

    Standard error is passed on line by line while the process runs.
    """
    command = [sys.executable, "-m", "mimose_bench.cli", *arguments]
    errors: list[str] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        for line in process.stderr:
            errors.append(line)
            sys.stderr.write("  " + line)
            sys.stderr.flush()
        output = process.stdout.read()
    return process.returncode, output, "".join(errors)
