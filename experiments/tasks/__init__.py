"""The paper's workloads, one file a task: model, data, loss."""

from __future__ import annotations

from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.tasks.base import Task, TaskOptions
from mimose_bench.experiments.tasks.detection import OdR50, OdR101
from mimose_bench.experiments.tasks.ic_resnet50 import IcResNet50
from mimose_bench.experiments.tasks.ic_swin import IcSwin
from mimose_bench.experiments.tasks.mc_roberta import McRoberta
from mimose_bench.experiments.tasks.qa_bert import QaBert
from mimose_bench.experiments.tasks.qa_xlnet import QaXlnet
from mimose_bench.experiments.tasks.tc_bert import TcBert
from mimose_bench.experiments.tasks.tr_t5 import TrT5

TASKS: dict[str, type[Task]] = {
    "mc-roberta": McRoberta,
    "qa-bert": QaBert,
    "qa-xlnet": QaXlnet,
    "tc-bert": TcBert,
    "tr-t5": TrT5,
    "od-r50": OdR50,
    "od-r101": OdR101,
    "ic-resnet50": IcResNet50,
    "ic-swin": IcSwin,
}

__all__ = ["TASKS", "Task", "TaskOptions", "make_task", "require_task"]


def require_task(name: str) -> None:
    """Raise ``ValueError``, naming the nearest, if there is no task called ``name``."""
    if name not in TASKS:
        raise unknown_name("task", name, TASKS, always=True)


def make_task(name: str, options: TaskOptions | None = None) -> Task:
    """Return the task called ``name``, its data opened.

    Args:
        name: A key of :data:`TASKS`.
        options: What else was chosen; the defaults of :class:`TaskOptions` otherwise.

    Raises:
        ValueError: If there is no such task (the nearest is named), if options do not fit it, or
            if its data cannot be had.
    """
    require_task(name)
    return TASKS[name](options or TaskOptions())
