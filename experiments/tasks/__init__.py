"""The paper's workloads, one file a task: model, data, loss."""

from __future__ import annotations

from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.tasks.base import Task, TaskOptions
from mimose_bench.experiments.tasks.qa_bert import QaBert

TASKS: dict[str, type[Task]] = {
    "qa-bert": QaBert,
}

__all__ = ["TASKS", "Task", "TaskOptions", "make_task"]


def make_task(name: str, options: TaskOptions | None = None) -> Task:
    """Return the task called ``name``, its data opened.

    Args:
        name: A key of :data:`TASKS`.
        options: What else was chosen; the defaults of :class:`TaskOptions` otherwise.

    Raises:
        ValueError: If there is no such task (the nearest is named), if options do not fit it, or
            if its data cannot be had.
    """
    if name not in TASKS:
        raise unknown_name("task", name, TASKS)
    return TASKS[name](options or TaskOptions())
