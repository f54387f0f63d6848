"""Where the processes of cells run: here, or on a cluster that Slurm or Ray keeps.

A job's process writes run folders into the sweep's folder and holds a lock as long as it lives;
whoever started it only watches. On a cluster both are on a file system that all machines see.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mimose_bench.experiments.sweep.store import Store, hold, missing

PATIENCE_SECONDS = 30.0
"""How long a process may take to end once it was asked to."""

QUEUE_SECONDS = 10.0
"""How often Slurm's queue is looked at."""

EXECUTORS = ("local", "slurm", "ray")


@dataclass(frozen=True, slots=True)
class Job:
    """A process that runs one cell or several.

    Attributes:
        name: Its name, by which its log and its lock are called.
        cells: What its cells are known by.
        command: Its command line.
        folder: The sweep's folder.
        gpus: GPUs that it needs.
    """

    name: str
    cells: tuple[str, ...]
    command: tuple[str, ...]
    folder: Path
    gpus: int


class Executor(Protocol):
    """Starts jobs and says when they have ended.

    Attributes:
        slots: Most jobs at once; None leaves that to a cluster's queue.
    """

    slots: int | None

    def submit(self, job: Job) -> str | None:
        """Start a job; return the name that a later process can find it by, if there is one."""

    def attach(self, name: str, remote: str) -> bool:
        """Take over a job that an earlier process submitted; return whether it still runs."""

    def ended(self) -> Mapping[str, int | str]:
        """Return what became of jobs that ended since the last call, by the jobs' names.

        That is an exit code, or a sentence on why there is none.
        """

    def stop(self) -> None:
        """End every job and wait until they have."""


class Local:
    """Processes of this machine.

    Args:
        slots: Most at once.
    """

    def __init__(self, slots: int = 1) -> None:
        self.slots: int | None = slots
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def submit(self, job: Job) -> None:
        """Start a job."""
        store = Store(job.folder)
        lock = hold(store.lock_path(job.name))
        if lock is None:
            raise RuntimeError(f"the lock of {job.name} is held by another process")
        try:
            with store.log_path(job.name).open("wb") as log:
                self._running[job.name] = subprocess.Popen(
                    job.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C is for the sweep, which then asks each of them to end, once.
                    start_new_session=True,
                    pass_fds=(lock,),
                    preexec_fn=end_with_parent,
                )
        finally:
            os.close(lock)

    def attach(self, name: str, remote: str) -> bool:
        """Return False: local jobs end with the process that started them."""
        return False

    def ended(self) -> Mapping[str, int | str]:
        """Return exit codes of jobs that ended."""
        found: dict[str, int | str] = {}
        for name, process in list(self._running.items()):
            code = process.poll()
            if code is not None:
                found[name] = code
                del self._running[name]
        return found

    def stop(self) -> None:
        """Ask every job to end, which records its run as interrupted; insist after a while."""
        for process in self._running.values():
            process.terminate()
        for process in self._running.values():
            try:
                process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


class Slurm:
    """Jobs of a Slurm cluster, through submitit.

    Args:
        folder: The sweep's folder; submitit keeps its own files below it.
        gpus: GPUs of a job.
        partition: Slurm's partition.
        minutes: Most minutes of a job.
        slots: Most jobs submitted at once; None submits all.
        cluster: submitit's name of what runs them: ``slurm``, or ``local`` to try it out.

    Raises:
        ValueError: If submitit or Slurm is not installed.
    """

    def __init__(
        self,
        folder: Path,
        *,
        gpus: int,
        partition: str | None = None,
        minutes: int | None = None,
        slots: int | None = None,
        cluster: str = "slurm",
    ) -> None:
        submitit = _extra("submitit", "slurm")
        self.slots = slots
        self._folder = folder / ".sweep" / "submitit"
        self._cluster = cluster
        self._queue = Queue()
        self._jobs: dict[str, Any] = {}
        try:
            self._executor = submitit.AutoExecutor(folder=self._folder, cluster=cluster)
        except RuntimeError as error:
            raise ValueError(
                "there is no Slurm on this machine (srun is not on the PATH): submit from a node "
                "that has it, or leave --executor out"
            ) from error
        settings: dict[str, Any] = {"name": "mimose-bench", "timeout_min": minutes}
        if gpus:
            settings["gpus_per_node"] = gpus
        if partition is not None:
            settings["slurm_partition"] = partition
        self._executor.update_parameters(**{k: v for k, v in settings.items() if v is not None})

    def submit(self, job: Job) -> str:
        """Submit a job; return Slurm's number of it."""
        try:
            self._jobs[job.name] = submitted = self._executor.submit(execute, job)
        except Exception as error:  # Whatever submitit makes of what sbatch says.
            raise ValueError(f"Slurm refused a job: {_first_line(error)}") from error
        return str(submitted.job_id)

    def attach(self, name: str, remote: str) -> bool:
        """Take over a job that Slurm still has in its queue or runs."""
        if self._cluster != "slurm":
            return False
        import submitit

        job: Any = submitit.SlurmJob(folder=self._folder, job_id=remote)
        if self._queue.has_lost(remote):
            return False
        self._jobs[name] = job
        return True

    def ended(self) -> Mapping[str, int | str]:
        """Return exit codes of jobs that ended."""
        found: dict[str, int | str] = {}
        for name, job in list(self._jobs.items()):
            if job.paths.result_pickle.exists():
                found[name] = _code_of(job.result)
            elif self._is_lost(job):
                found[name] = (
                    f"Slurm's job {job.job_id} is gone and left no result (it was cancelled, or "
                    f"went beyond its time or memory): {job.paths.stderr} may say more"
                )
            if name in found:
                del self._jobs[name]
        return found

    def _is_lost(self, job: Any) -> bool:
        # Not submitit's own account, which asks sacct: small clusters keep none.
        if self._cluster == "slurm":
            return self._queue.has_lost(str(job.job_id))
        return bool(job.done())

    def stop(self) -> None:
        """Cancel every job and wait for the cluster to end it, for a while."""
        for job in self._jobs.values():
            job.cancel(check=False)
        until = time.monotonic() + PATIENCE_SECONDS
        while self._jobs and time.monotonic() < until:
            self.ended()
            time.sleep(0.2)
        self._jobs.clear()


class Queue:
    """Slurm's queue, looked at now and then."""

    def __init__(self) -> None:
        self._read: float | None = None
        self._missed: Counter[str] = Counter()
        self._asked: set[str] = set()

    def has_lost(self, job: str) -> bool:
        """Return whether a job is no longer in the queue, as two looks at it agree."""
        self._asked.add(job)
        now = time.monotonic()
        if self._read is None or now - self._read >= QUEUE_SECONDS:
            self._look()
            self._read = now
        return self._missed[job] > 1

    def _look(self) -> None:
        asked = subprocess.run(
            ["squeue", "--noheader", "--format=%A", "--user", str(os.getuid())],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode:
            return  # The controller may be away for a while; jobs go on without it.
        there = set(asked.stdout.split())
        for job in self._asked:
            self._missed[job] = 0 if job in there else self._missed[job] + 1


class Ray:
    """Jobs of a Ray cluster: the one that RAY_ADDRESS names, else one started here.

    Args:
        gpus: GPUs of a job.
        slots: Most jobs submitted at once; None submits all.

    Raises:
        ValueError: If ray is not installed or the cluster has too few GPUs.
    """

    def __init__(self, *, gpus: int, slots: int | None = None) -> None:
        ray = _extra("ray", "ray")
        self.slots = slots
        self._ray = ray
        self._jobs: dict[str, Any] = {}
        if not ray.is_initialized():
            ray.init(log_to_driver=False, include_dashboard=False, configure_logging=False)
        there = ray.cluster_resources().get("GPU", 0)
        if there < gpus:
            raise ValueError(
                f"a cell needs {gpus} GPU and this Ray cluster has {there:g}: set RAY_ADDRESS to "
                "one that has, or give --gpus"
            )
        self._execute = ray.remote(num_gpus=gpus, num_cpus=1, max_retries=0)(execute)

    def submit(self, job: Job) -> None:
        """Submit a job, which ends with this process."""
        self._jobs[job.name] = self._execute.remote(job)

    def attach(self, name: str, remote: str) -> bool:
        """Return False: Ray ends jobs with the process that submitted them."""
        return False

    def ended(self) -> Mapping[str, int | str]:
        """Return exit codes of jobs that ended."""
        if not self._jobs:
            return {}
        done, _ = self._ray.wait(list(self._jobs.values()), num_returns=len(self._jobs), timeout=0)
        found: dict[str, int | str] = {}
        for name, job in list(self._jobs.items()):
            if job in done:
                found[name] = _code_of(lambda job=job: self._ray.get(job))
                del self._jobs[name]
        return found

    def stop(self) -> None:
        """Cancel every job."""
        for job in self._jobs.values():
            self._ray.cancel(job, force=True)
        self._jobs.clear()


def execute(job: Job) -> int:
    """Run a job's command on the machine that this is, unless another has run its cells.

    A cluster may still start what an earlier sweep submitted: it waits for the lock, too, and then
    finds the work done.

    Returns:
        The command's exit code.
    """
    store = Store(job.folder)
    lock = hold(store.lock_path(job.name), wait=True)
    assert lock is not None
    try:
        if not missing(job.cells, store.runs()):
            return 0
        with store.log_path(job.name).open("wb") as log:
            return subprocess.run(
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(lock,),
                preexec_fn=end_with_parent,
                check=False,
            ).returncode
    finally:
        os.close(lock)


def _code_of(result: Callable[[], Any]) -> int | str:
    try:
        return int(result())
    except Exception as error:  # Whatever the cluster says of a job that it ended itself.
        return f"the cluster ended its job: {_first_line(error)}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".") if lines else type(error).__name__


def _extra(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"--executor {extra} needs {module}: pip install 'mimose-bench[{extra}]'"
        ) from error


_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Ask Linux for SIGTERM when the parent dies, however it does; runs between fork and exec."""
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):
        _libc().prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


_loaded: list[Any] = []


def _libc() -> Any:
    # Loaded before the first fork where possible: little is safe after one.
    if not _loaded:
        _loaded.append(ctypes.CDLL(None, use_errno=True))
    return _loaded[0]


if sys.platform == "linux":
    _libc()
