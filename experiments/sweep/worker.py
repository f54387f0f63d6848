"""Run several cells in one process, so that simulated steps that one has taken serve the others.

    python -m mimose_bench.experiments.sweep.worker FOLDER JOB

The cells and their configurations are those of the job in the folder's ``sweep.json``. What goes
wrong with one of them is written to the job's report, a line of JSON, and the next one is run.
"""

from __future__ import annotations

import gc
import json
import sys
import traceback
from pathlib import Path

from mimose.costs import Infeasible
from mimose_bench.experiments import stopping
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.run import run
from mimose_bench.experiments.sweep.store import Store, missing

_HANDLED = (ValueError, OSError, RuntimeError, OverflowError, MemoryError, ImportError, Infeasible)


def work(folder: Path, job: str) -> None:
    """Run the cells of a job that have no result yet."""
    store = Store(folder)
    document = store.document()
    configs = {record["id"]: record["config"] for record in document["cells"]}
    memory = StepMemory()
    ids = document["jobs"][job]["cells"]
    for name in missing(ids, store.runs()):
        try:
            run(RunConfig(**configs[name], out=folder), quiet=True, memory=memory)
        except _HANDLED as error:
            traceback.print_exc()
            text = " ".join(str(error).split()) or type(error).__name__
            with store.report_path(job).open("a", encoding="utf-8") as report:
                report.write(json.dumps({"id": name, "error": text}) + "\n")
        gc.collect()


def main() -> None:
    """Run the command line's job."""
    stopping.install()
    if "" not in sys.path:
        sys.path.insert(0, "")  # package.module:Class is looked for here, too.
    folder, job = sys.argv[1:]
    try:
        work(Path(folder), job)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
