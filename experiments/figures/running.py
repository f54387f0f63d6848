"""Checks side by side, each in a process of its own; one after another where one is enough."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from mimose_bench.experiments.figures import worker
from mimose_bench.experiments.figures.session import Say
from mimose_bench.experiments.figures.worker import Task
from mimose_bench.experiments.files import write_json
from mimose_bench.experiments.sweep.executors import PATIENCE_SECONDS, end_with_parent

POLL_SECONDS = 0.1


def carry_out(tasks: Sequence[Task], jobs: int, say: Say) -> Iterator[Task]:
    """Run the tasks and yield each once its outcome is written.

    Tasks that measure this machine's time come last, with nothing beside them.

    Args:
        tasks: What to run.
        jobs: Most processes at once; one runs everything in this process.
        say: Takes lines of progress.

    Raises:
        KeyboardInterrupt: If interrupted, once every process has ended.
        OSError: If an outcome cannot be written, likewise.
    """
    if jobs == 1 or len(tasks) == 1:
        for task in tasks:
            worker.work(task, say)
            yield task
        return
    running: dict[Task, subprocess.Popen[bytes]] = {}
    waiting = sorted(tasks, key=lambda task: task.alone)  # sorted() keeps the order of equals.
    try:
        while waiting or running:
            while waiting and _may_start(waiting[0], list(running), jobs):
                task = waiting.pop(0)
                say(f"{task.name}: started")
                running[task] = _started(task, jobs)
            time.sleep(POLL_SECONDS)
            for task, process in list(running.items()):
                if process.poll() is None:
                    continue
                del running[task]
                if process.returncode == 130:
                    raise KeyboardInterrupt
                if process.returncode == worker.UNWRITTEN:
                    raise OSError(
                        f"what {task.name} came to could not be written to {task.out}: make room "
                        "there or name another folder with --out; with --keep the same command "
                        "goes on"
                    )
                if process.returncode != 0:
                    write_json(task.path, worker.failed(task.name, _why(process.returncode)))
                yield task
    finally:
        _stop(list(running.values()))


def command(task: Task) -> list[str]:
    """Return the command line of a task's process."""
    module = "mimose_bench.experiments.figures.worker"
    return [sys.executable, "-m", module, worker.argument(task)]


def _may_start(task: Task, running: Sequence[Task], jobs: int) -> bool:
    if task.alone or any(other.alone for other in running):
        return not running
    return len(running) < jobs


def _started(task: Task, jobs: int) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if not task.alone:
        environment.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // jobs)))
    return subprocess.Popen(
        command(task),
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno() if _has_file(sys.stderr) else subprocess.DEVNULL,
        env=environment,
        # Ctrl-C is for this process, which then asks each of them to end, once.
        start_new_session=True,
        preexec_fn=end_with_parent,
    )


def _has_file(stream: object) -> bool:
    try:
        return stream.fileno() >= 0  # type: ignore[attr-defined]
    except (AttributeError, OSError, ValueError):
        return False


def _why(code: int) -> str:
    if code < 0:
        return f"its process was ended by signal {-code}: too little memory, or somebody ended it"
    return f"its process ended with exit code {code}: run it by itself with --jobs 1 to see why"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
