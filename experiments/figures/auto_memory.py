"""How far auto gets: the least budget of each task, and the largest batch in fixed memory.

The least budget is held against the recomputation of every block. The largest batch is held
against Tempo (Andoorveedu et al., NeurIPS 2022, arXiv 2210.10246), which replaces GELU, layer norm
and attention by hand-written layers that save less: up to twice the batch and 16 % more throughput
on BERT-large, 19 and 26 % on GPT-2 and RoBERTa, on GPUs of 11 and 16 GB. Auto is told of no layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mimose.devices.sim.device import SimDevice
from mimose.units import MIB, format_bytes
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.auto import SOURCE
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.evicting import Course, train
from mimose_bench.experiments.figures.large_models import LARGE, Large
from mimose_bench.experiments.figures.limits import least
from mimose_bench.experiments.figures.result import Reproduction, ResultTable
from mimose_bench.experiments.figures.session import OpenDevice, Say, opened, silent
from mimose_bench.experiments.tasks import TaskOptions, make_task
from mimose_bench.experiments.tasks.base import Task

TASKS = ("qa-bert", "mc-roberta", "tc-bert", "tr-t5", "qa-xlnet")
PLANNERS = ("full", "auto")
GRAIN = 128 * MIB
"""Budgets are multiples of it."""
STEPS, SETTLE = 8, 6
"""Steps of each measurement; in the first six auto learns, and optimizer state comes to be. What a
step leaves cached may be of no use to the next: one that is repeated for that teaches, too."""
LEAST_TOLERANCE = 0.05
"""Auto's least budget may be so much more than full recomputation's: what its margin keeps free."""

SMALLER = "sim:v100-16gb"
SMALLER_LABEL = "simulated v100-16gb"
"""The whole of this GPU is what models of Tempo's kind are trained in; Tempo had it, too."""
TWICE = 2.0
"""Tempo's largest batch on BERT-large over the plain model's, at most."""
THROUGHPUT: Mapping[str, float] = {"BERT-large": 1.16, "GPT-2": 1.19, "RoBERTa-large": 1.26}
"""Tempo's throughput over the plain model's."""
TEMPO = "Andoorveedu et al. 2022, abstract"
BATCH_TOLERANCE, THROUGHPUT_TOLERANCE = 0.1, 0.05
"""How much less, as a share, still counts as reached."""
QUICK_TASKS, QUICK_MODELS = 1, 0


@dataclass(frozen=True, slots=True)
class Batches:
    """Batches of one model in fixed memory.

    Attributes:
        plain: The plain model's largest and its steps.
        largest: Auto's largest and its steps.
        best: The batch at which auto's throughput is highest and its steps.
    """

    plain: tuple[int, Course]
    largest: tuple[int, Course]
    best: tuple[int, Course]

    @property
    def throughput(self) -> float:
        """Auto's samples a second over the plain model's, each at the batch that suits it best."""
        return _rate(self.best) / _rate(self.plain)


def check(
    open_device: OpenDevice,
    *,
    tasks: int = len(TASKS),
    models: int = len(LARGE),
    say: Say = silent,
) -> Reproduction:
    """Look for least budgets and largest batches.

    Args:
        open_device: Opens the simulated GPU.
        tasks: How many of the tasks to take.
        models: How many of the large models.
        say: Takes lines of progress.
    """
    with open_device() as device:
        label = device.label
    budgets: dict[tuple[str, str], int | None] = {}
    for name in TASKS[:tasks]:
        task = make_task(name, TaskOptions(scale="full", data="synthetic"))
        for planner in PLANNERS:
            budgets[task.title, planner] = found = least_budget(open_device, task, planner)
            say(f"auto-memory: {task.title} under {planner}: {_shown(found)}")
    batches = {}
    for model in LARGE[:models]:
        batches[model.name] = each = batches_of(partial(opened, SMALLER), model)
        say(
            f"auto-memory: {model.name}: {each.plain[0]} samples plainly, {each.largest[0]} under "
            f"auto, throughput {each.throughput:.3f} at {each.best[0]}"
        )
    return judge(budgets, batches, label)


def _course(
    open_device: OpenDevice, workload: Any, planner: str, budget: int | None, batch: Batch
) -> Course:
    """Take steps on one batch under an enforced budget; one that was repeated is a failure."""
    steps = [batch] * STEPS
    course = train(open_device, workload, planner, budget, steps, settle=SETTLE, enforce=True)
    if not course.failure and any(record.outcome != "ok" for record in course.records):
        course.failure = "repeated"
    return course


def least_budget(open_device: OpenDevice, task: Task, planner: str) -> int | None:
    """Return the least budget in which the longest batch trains; None if no budget does."""
    batch = task.example_batch(task.longest())

    def does(number: int) -> bool:
        return not _course(open_device, task, planner, number * GRAIN, batch).failure

    plain = _course(open_device, task, "baseline", None, batch)
    number = least(1, -(-plain.peak_reserved // GRAIN) + 4, does)
    return None if number is None else number * GRAIN


def batches_of(open_device: OpenDevice, model: Large) -> Batches:
    """Return the plain model's largest batch on a whole GPU, and auto's."""
    tried: dict[tuple[str, int], Course] = {}
    with open_device() as device:
        assert isinstance(device, SimDevice)
        whole = device.capacity_bytes

    def at(planner: str, samples: int) -> Course:
        key = planner, samples
        if key not in tried:
            budget = None if planner == "baseline" else whole
            tried[key] = _course(open_device, model, planner, budget, model.batch(samples))
        return tried[key]

    def most(planner: str, start: int) -> int:
        low, high = start, 2 * start
        while not at(planner, high).failure:
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if at(planner, middle).failure:
                high = middle
            else:
                low = middle
        return low

    plain = most("baseline", 1)
    largest = most("auto", plain)
    # Between the two throughput first rises with the batch, then falls as more is made again.
    for share in range(1, 6):
        at("auto", plain + round((largest - plain) * share / 6))
    fitting = [(n, c) for (p, n), c in tried.items() if p == "auto" and not c.failure]
    best = max(fitting, key=_rate)
    return Batches((plain, at("baseline", plain)), (largest, at("auto", largest)), best)


def _rate(measured: tuple[int, Course]) -> float:
    samples, course = measured
    return samples / course.seconds


def judge(
    budgets: Mapping[tuple[str, str], int | None],
    batches: Mapping[str, Batches],
    device_label: str,
) -> Reproduction:
    """Hold what was found against full recomputation and against Tempo."""
    claims = [
        *_least_claims(budgets, device_label),
        *_batch_claims(batches),
    ]
    tables = [_least_table(budgets, device_label)]
    if batches:
        tables.append(_batch_table(batches))
    return Reproduction(
        name="auto-memory",
        title="least budgets and largest batches under auto",
        source="aims of this project; arXiv 2210.10246",
        device_label=device_label,
        rows=(),
        claims=tuple(claims),
        tables=tuple(tables),
        notes=(
            f"A budget does if {STEPS} steps of the longest batch finish under it, enforced, the "
            f"last {STEPS - SETTLE} without being repeated; budgets are multiples of "
            f"{format_bytes(GRAIN)}.",
            "Tempo's models ran in mixed precision or fp32 on GPUs of 11 and 16 GB; here fp32 in "
            "16 GB. A simulated GPU's kernels are as efficient for small batches "
            "as for large ones but for a fixed time each, so that a larger batch gains less there.",
        ),
    )


def _least_claims(budgets: Mapping[tuple[str, str], int | None], device_label: str) -> list[Claim]:
    claims = []
    for task in dict.fromkeys(task for task, _ in budgets):
        full, mine = budgets[task, "full"], budgets[task, "auto"]
        claims.append(
            Claim(
                text=f"{task}: auto's least budget over that of recomputing every block",
                source=SOURCE,
                version="other",
                unit="x",
                expected=1.0,
                obtained=None if mine is None or full is None else mine / full,
                bound="at most",
                tolerance=LEAST_TOLERANCE,
                device_label=device_label,
            )
        )
    return claims


def _batch_claims(batches: Mapping[str, Batches]) -> list[Claim]:
    claims, device_label = [], SMALLER_LABEL
    for name, each in batches.items():
        claims.append(
            Claim(
                text=f"{name}: auto's largest batch over the plain model's, in 16 GB",
                source=TEMPO,
                version="other",
                unit="x",
                expected=TWICE,
                obtained=each.largest[0] / each.plain[0],
                bound="at least",
                tolerance=BATCH_TOLERANCE,
                relative=True,
                device_label=device_label,
                note="Tempo: up to twice, on BERT-large",
            )
        )
        claims.append(
            Claim(
                text=f"{name}: auto's throughput over the plain model's, each at its best batch",
                source=TEMPO,
                version="other",
                unit="x",
                expected=THROUGHPUT[name],
                obtained=each.throughput,
                bound="at least",
                tolerance=THROUGHPUT_TOLERANCE,
                relative=True,
                device_label=device_label,
            )
        )
    return claims


def _least_table(budgets: Mapping[tuple[str, str], int | None], device_label: str) -> ResultTable:
    tasks = list(dict.fromkeys(task for task, _ in budgets))
    return ResultTable(
        title=f"least budget for the longest batch, {device_label}",
        headers=("task", *PLANNERS),
        rows=tuple((task, *(_shown(budgets[task, p]) for p in PLANNERS)) for task in tasks),
    )


def _batch_table(batches: Mapping[str, Batches]) -> ResultTable:
    def cell(measured: tuple[int, Course]) -> str:
        return f"{measured[0]} ({_rate(measured):.2f})"

    return ResultTable(
        title=f"samples in a batch (samples a second) in 16 GB, {SMALLER_LABEL}",
        headers=("model", "plain, largest", "auto, largest", "auto, fastest"),
        rows=tuple((n, cell(e.plain), cell(e.largest), cell(e.best)) for n, e in batches.items()),
    )


def _shown(budget: int | None) -> str:
    return "none" if budget is None else format_bytes(budget)
