"""A run in several processes, as ``torchrun`` starts them: one record, with a row a rank and step.

Each process trains the same model under ``DistributedDataParallel`` on its own batches and plans
for them by itself. The first one keeps the record, and the others add their rows to it. Batch ``i``
of the data goes to process ``i % size``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from mimose.costs import Infeasible
from mimose.devices.base import Device
from mimose.distributed import alarm
from mimose.distributed.processes import number_given, started_together
from mimose.planners.base import Planner
from mimose.planners.evicting import Evicting
from mimose.planners.static import Static
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.course import Course, Sampled
from mimose_bench.experiments.files import write_json
from mimose_bench.experiments.opening import own_device
from mimose_bench.experiments.records import RunWriter
from mimose_bench.experiments.schema import Row
from mimose_bench.experiments.tasks.base import Batch, Task

T = TypeVar("T")

_ALONE = ("oom", "thrashing", "interrupted", "failed")
"""Outcomes that one process comes to without the others."""


class Crew:
    """The processes of one run; of one process alone everything is as ever.

    Attributes:
        rank: This process's number.
        size: How many there are.
        config: The run, with this process's own device.
    """

    def __init__(self, config: RunConfig, planner: Planner) -> None:
        """Find the others.

        Raises:
            ValueError: If a run of this kind is not made in several processes.
        """
        self.rank, self.size = number_given("RANK", 0), started_together()
        self.config = config
        self._alarm: alarm.Alarm | None = None
        if not self.several:
            return
        _check(config, planner)
        own = own_device(config.device)
        on_cuda = own.startswith("cuda")
        if on_cuda:
            torch.cuda.set_device(torch.device(own))
            self.config = dataclasses.replace(config, device=own)
        dist.init_process_group("cpu:gloo,cuda:nccl" if on_cuda else "gloo")
        self._alarm = alarm.join()

    @property
    def several(self) -> bool:
        """Whether there is more than one process."""
        return self.size > 1

    def to_json(self) -> dict[str, int]:
        """Return what a record says of the processes; nothing of one alone."""
        return {"num_processes": self.size} if self.several else {}

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self.several:
            return
        if error is not None:
            with contextlib.suppress(Exception):  # The store may be gone with its process.
                self.failed(f"{type(error).__name__}: {error}")
        if self._alarm is not None:
            alarm.leave()
        dist.destroy_process_group()

    def failed(self, why: str) -> None:
        """Tell the others that this process ends alone, which ends them, too."""
        if self._alarm is not None:
            self._alarm.tell(f"rank {self.rank} ended by {why}")

    def writer(self, create: Callable[[], RunWriter]) -> RunWriter:
        """Return what writes this process's rows: the record itself, or an addition to it.

        Args:
            create: Makes the record.
        """
        if not self.several:
            return create()
        own = create() if self.rank == 0 else None
        told: list[Any] = [None if own is None else str(own.directory)]
        dist.broadcast_object_list(told, src=0, device=torch.device("cpu"))
        if own is None:
            return Addition(Path(told[0]), self.rank)
        own.shared = True
        return own

    def wrapped(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model to train; from here on each process draws other random numbers."""
        if not self.several:
            return model
        wrapped = DistributedDataParallel(model)
        torch.manual_seed(self.config.seed + self.rank)
        return wrapped

    def course(self, course: Course, task: Task) -> Course:
        """Return this process's share of a run's batches."""
        return Share(task, course.total, self) if self.several else course

    def begin(self, begin: Callable[[], None], device: Device) -> None:
        """Begin a step in all processes or in none.

        Raises:
            Infeasible: In all of them, if a batch of any fits nowhere.
        """
        if not self.several:
            begin()
            return
        error: Infeasible | None = None
        try:
            begin()
        except Infeasible as raised:
            error = raised
        with device.host_memory():
            failed = torch.tensor([error is not None], dtype=torch.int64)
            dist.all_reduce(failed, dist.ReduceOp.MAX)
            if not failed.item():
                return
            said: list[Any] = [None] * self.size
            own = None if error is None else (self.rank, str(error), error.least_budget_bytes)
            dist.all_gather_object(said, own)
        rank, text, least = next(words for words in said if words is not None)
        raise Infeasible(f"rank {rank}: {text}", least) from error

    def gathered(self, own: T, *, together: bool) -> list[T]:
        """Return what all processes have, in their order; ``own`` alone where they do not meet.

        Args:
            own: What this process has.
            together: Whether all processes end now, without which none waits for the others.
        """
        if not (self.several and together):
            return [own]
        given: list[Any] = [None] * self.size
        dist.all_gather_object(given, own)
        return given

    @contextlib.contextmanager
    def merging(self, writer: RunWriter, *, together: bool) -> Iterator[None]:
        """Return the context in which the record is finished: all rows are there before.

        Args:
            writer: This process's writer.
            together: Whether all processes end now.
        """
        writer.flush()
        meet = self.several and together
        if meet:
            self._meet()
        if meet and self.rank:
            self._meet()  # First the record itself.
            yield
            return
        yield
        if meet:
            self._meet()

    def _meet(self) -> None:
        dist.all_reduce(torch.zeros(1))


class Share:
    """One process's share of the task's batches.

    Attributes:
        total: How many steps there are.
    """

    def __init__(self, task: Task, total: int, crew: Crew) -> None:
        self.total = total
        self._crew = crew
        self._all = Sampled(task, total * crew.size)

    def batches(self, context: Any) -> Iterator[Batch]:
        """Yield this process's batches."""
        with contextlib.closing(self._all.batches(context)) as batches:  # type: ignore[type-var]
            for number, batch in enumerate(batches):
                if number % self._crew.size == self._crew.rank:
                    yield batch

    def weigh(self, step: Any) -> None:
        """Return None: all steps count alike."""


class Addition(RunWriter):
    """Adds one process's rows to the record that another one keeps.

    Args:
        directory: The record's folder.
        rank: The process.
    """

    def __init__(self, directory: Path, rank: int) -> None:
        super().__init__(directory, {}, rank=rank)

    def add(self, row: Row, blocks: Any = ()) -> None:
        """Add an iteration's row. Blocks are those of the record's own process."""
        super().add(row)

    def log(self, text: str) -> None:
        """Add lines to the record's log."""
        super().log("\n".join(f"rank {self.rank}: {line}" for line in text.splitlines()))

    def finish(self, outcome: str, **info: Any) -> dict[str, Any]:
        """Write the rows that are left; of a process that ends alone its outcome, too."""
        self._finished = True
        if not self.directory.exists():  # The first process found its settings wrong.
            return {"outcome": outcome}
        self.flush()
        found = self.on_disk()
        if outcome in _ALONE and found["outcome"] == "running":
            ended = datetime.now(timezone.utc).isoformat(timespec="seconds")
            error = f"rank {self.rank}: {info.get('error') or outcome}"
            found.update(outcome=outcome, ended=ended, error=error)
            write_json(self.directory / "run.json", found)
        found["summary"] = {"run_dir": str(self.directory), **(found.get("summary") or {})}
        return found

    def _write_info(self) -> None:
        pass  # It is the record's.


def _check(config: RunConfig, planner: Planner) -> None:
    if "MASTER_ADDR" not in os.environ:
        raise ValueError(
            "WORLD_SIZE says that several processes train together, and MASTER_ADDR is not set: "
            "start them with torchrun, or unset WORLD_SIZE"
        )
    kind = config.device.partition(":")[0]
    refused = (
        (kind == "sim", "a simulated device stands for one GPU: choose --device cpu or cuda"),
        (
            isinstance(planner, Static | Evicting),
            f"planner {config.planner} is not run: choose mimose, fixed or baseline",
        ),
        (config.lengths != "sampled", "--lengths expected is for one process: leave it out"),
        (config.on_oom != "stop", "--on-oom skip is for one process: leave it out"),
    )
    for applies, sentence in refused:
        if applies:
            raise ValueError(f"in several processes {sentence}")
