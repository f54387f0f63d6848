"""Run one check and write what it comes to: in a process of its own, or within ``reproduce``.

    python -m mimose_bench.experiments.figures.worker '{"name": "fig3", "device": "sim:v100", ...}'

The argument is a :class:`Task`. The exit code is 0 once ``NAME.json`` is written, whether the check
went through or failed, and :data:`UNWRITTEN` if it cannot be.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mimose_bench.experiments import environment, stopping
from mimose_bench.experiments.figures import provenance
from mimose_bench.experiments.figures.recorded import recorder
from mimose_bench.experiments.figures.result import SCHEMA_VERSION
from mimose_bench.experiments.figures.session import Say, opened
from mimose_bench.experiments.files import write_json

UNWRITTEN = 74
"""Exit code where the outcome cannot be written; sysexits.h calls it EX_IOERR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A check to be run.

    Attributes:
        name: Its name.
        device: The device it is run on.
        out: Folder that ``NAME.json`` and its recorded runs go to.
        quick: Whether to measure a few points of each curve only.
        jobs: Most processes at once of the runs that it records.
        alone: Whether nothing may run beside it.
    """

    name: str
    device: str
    out: str
    quick: bool = False
    jobs: int = 1
    alone: bool = False

    @property
    def path(self) -> Path:
        """The file that its outcome is written to."""
        return Path(self.out) / f"{self.name}.json"


def work(task: Task, say: Say) -> None:
    """Run a check and write its outcome, or why there is none.

    Raises:
        KeyboardInterrupt: If interrupted: nothing is written then.
        OSError: If the file cannot be written.
    """
    from mimose_bench.experiments.figures.reproduce import CHECKS

    check = CHECKS[task.name]
    means: Any = partial(opened, task.device)
    codes: dict[str, str] = {}
    if check.recorded:
        # Quick runs are other cells than those of a whole check: both are kept, in one folder.
        folder = Path(task.out) / "runs" / task.name
        means = recorder(folder, task.device, say, jobs=task.jobs, codes=codes)
    started, worked = time.perf_counter(), _processor_seconds()
    try:
        result = check.run(means, say=say, **(check.quick if task.quick else {}))
        document = result.to_json()
        document["notes"] += _other_code(codes)
    except Exception as error:  # One check that fails is a row, not the end of the others.
        if os.environ.get("MIMOSE_DEBUG") == "1":
            traceback.print_exc()
        document = failed(task.name, " ".join(str(error).split()) or type(error).__name__)
    document["run"] = provenance.facts(
        task.name,
        task.device,
        quick=task.quick,
        seconds=time.perf_counter() - started,
        cpu_seconds=_processor_seconds() - worked,
        version=check.version,
        recorded=check.recorded,
    )
    write_json(task.path, document)


def _other_code(codes: Mapping[str, str]) -> list[str]:
    """Return a note where runs that a check is made from are of other code than its own."""
    now = environment.code()
    others = Counter(code for code in codes.values() if code != now)
    if not others:
        return []
    made = "; ".join(f"{count} by {code}" for code, count in others.items())
    return [f"Of its {len(codes)} recorded runs some were kept from other code: {made}."]


def failed(name: str, error: str) -> dict[str, Any]:
    """Return what is written of a check that failed."""
    return {"schema_version": SCHEMA_VERSION, "name": name, "error": error}


def _processor_seconds() -> float:
    """Return what this process and those that it has waited for have taken of processors."""
    return sum(os.times()[:4])


def argument(task: Task) -> str:
    """Return a task as the command line has it."""
    return json.dumps(asdict(task))


def main() -> None:
    """Run the command line's task."""
    stopping.install()
    task = Task(**json.loads(sys.argv[1]))

    def say(line: str) -> None:
        own = line.startswith(f"{task.name}: ")  # Several checks speak at once.
        print(line if own else f"{task.name}: {line}", file=sys.stderr, flush=True)

    try:
        work(task, say)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # Of a check nothing else comes here: what it has cannot be written.
        say(f"cannot write {task.path} ({error.strerror or error})")
        sys.exit(UNWRITTEN)


if __name__ == "__main__":
    main()
