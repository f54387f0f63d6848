"""One run: set a task up under a planner, train, record."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mimose.attaching import budget_bytes
from mimose.costs import Infeasible
from mimose.devices import open_device
from mimose.devices.base import Device
from mimose.devices.sim.device import SimDevice
from mimose.handle import Handle, attach
from mimose.plan import Plan
from mimose.planners import make_planner
from mimose.planners.evicting import Evicting
from mimose.planners.static import Static
from mimose.records import Size
from mimose.units import format_bytes
from mimose_bench.experiments import environment, stopping
from mimose_bench.experiments.clock import clock_of, device_name
from mimose_bench.experiments.config import BudgetTooSmallError, RunConfig
from mimose_bench.experiments.course import Course, course_of
from mimose_bench.experiments.crew import Crew
from mimose_bench.experiments.flops import Counted, Taken, count_steps, peak_of, taken_in
from mimose_bench.experiments.labels import planner_label
from mimose_bench.experiments.letting_go import LettingGo
from mimose_bench.experiments.loop import Step, Trainer
from mimose_bench.experiments.profiling import (
    Kept,
    ProfileError,
    check,
    check_segments,
    plan_size,
    prepare,
)
from mimose_bench.experiments.progress import Progress
from mimose_bench.experiments.records import RunWriter, block_rows, step_row
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.tasks import make_task
from mimose_bench.experiments.tasks.base import Task, TaskOptions

EXIT_DONE = 0
EXIT_OUT_OF_MEMORY = 3

_ADDED = ("num_samples", "num_tokens", "samples_per_second", "tokens_per_second")
"""Keys of ``run.json`` of which several processes have a part each."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """A finished run: its exit code, its ``run.json`` and, unless it is 0, why.

    ``leads`` is False in the processes of a run of several that do not keep its record.
    """

    exit_code: int
    info: dict[str, Any]
    message: str | None = None
    leads: bool = True


def task_of(config: RunConfig) -> Task:
    """Return the configuration's task, its data open."""
    return make_task(
        config.task,
        TaskOptions(
            scale=config.scale,  # type: ignore[arg-type]  # both check it against the same names
            data=config.data,
            vocab=None if config.vocab is None else Path(config.vocab),
            weights=config.weights,
            attention=config.attention,  # type: ignore[arg-type]
            seed=config.seed,
            batch_size=config.batch_size,
            lr=config.lr,
            optimizer=config.optimizer,
            extra=config.task_options,
        ),
    )


@contextlib.contextmanager
def opened(config: RunConfig) -> Iterator[Device]:
    """Open the configuration's device for the block and set torch's threads."""
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    device = open_device(config.device, reset_peaks=True, allocator=config.allocator)
    try:
        if isinstance(device, SimDevice):
            device.refuse_beyond(config.budget)
        yield device
    finally:
        device.close()


def run(config: RunConfig, *, quiet: bool = False, memory: StepMemory | None = None) -> RunResult:
    """Train as ``config`` says and record every iteration.

    Args:
        config: The run.
        quiet: Show no progress.
        memory: Simulated steps that other runs of this process have taken; by default the run
            has a memory of its own.

    Raises:
        ValueError: If something about the configuration, the data or the machine is wrong; the
            message is one sentence that says what to change.
    """
    planner = make_planner(config.planner, **config.options())
    check(config, planner)
    budget = "none" if config.budget is None else format_bytes(config.budget).replace(" ", "")
    with contextlib.ExitStack() as records:
        crew = records.enter_context(Crew(config, planner))
        config, quiet, leads = crew.config, quiet or crew.rank > 0, crew.rank == 0
        with opened(config) as device, contextlib.ExitStack() as stack:
            # Whatever can be wrong with the task or its model shows before there is a folder.
            task = task_of(config)
            if isinstance(planner, Static):
                with device.host_memory():
                    plan_size(config, task)
            torch.manual_seed(config.seed)
            model = device.build(task.build_model)
            device.adopt(model)
            too_little = None
            try:
                require_budget(config.budget, model, device)
            except BudgetTooSmallError as error:
                too_little = str(error)
            else:
                model = crew.wrapped(model)
                handle = stack.enter_context(
                    attach(model, config.budget, planner, device=device, enforce=config.enforce)
                )
                check_segments(config, handle)
            settings = dataclasses.asdict(config)
            label = planner_label(config.planner, settings)
            writer = crew.writer(
                lambda: RunWriter.create(
                    config.out,
                    task=config.task,
                    planner=config.planner,
                    budget=budget,
                    device=device_name(device),
                    budget_bytes=config.budget,
                    device_label=device.label,
                    clock=clock_of(device),
                    seed=config.seed,
                    config=settings,
                    label=label,
                    environment=environment.capture(device.kind) | crew.to_json(),
                )
            )
            records.enter_context(writer)
            writer.update(
                data=task.data_source.to_json(), task_settings=task.settings(), size_unit=task.unit
            )
            if too_little is not None:
                writer.log(too_little)
                if not quiet:
                    print(too_little, file=sys.stderr, flush=True)
                info = writer.finish("infeasible", error=too_little, least_budget_bytes=None)
                return RunResult(EXIT_OUT_OF_MEMORY, info, too_little, leads)
            memory = StepMemory() if memory is None else memory
            begin = crew.begin if crew.several else None
            trainer = Trainer(task, model, handle, config, memory, begin)
            course = crew.course(course_of(config, task), task)
            progress = records.enter_context(
                Progress(
                    course.total,
                    f"{config.task} {label} {budget}",
                    budget_bytes=config.budget,
                    simulated=trainer.simulated,
                    quiet=quiet,
                )
            )

            def say(line: str) -> None:
                progress.say(line)
                writer.log(line)

            say(f"data {task.data_source}")
            say(f"{handle!r}, {device.label}")
            if (slow := slow_here(config, device.kind)) is not None:
                say(slow)
            say(str(writer.directory))
            prepared = _prepare(config, trainer, writer, say)
            taken: list[Taken | None] = []
            if isinstance(prepared, _Ended):
                ended = prepared
            else:
                ended = _train(config, course, trainer, writer, progress, say, taken, prepared)
            peak = peak_of(device, task, config.precision)
            kind = device.kind
            del model, handle, trainer
        together = ended.outcome in ("done", "infeasible")
        shares = crew.gathered((taken, ended.info), together=together)
        # Not before: counting opens a device of its own.
        counted = Counted()
        if len(shares) < crew.size:
            counted = Counted(info={"unknown": "one of several processes ended before the others"})
        elif ended.ran and leads:
            all_taken = [step for steps, _ in shares for step in steps]
            counted = count_steps(config, task, kind, all_taken, say)
        with crew.merging(writer, together=together):
            info = writer.finish(
                ended.outcome,
                error=ended.failure,
                columns=counted.columns,
                flops={**peak.to_json(), **counted.info},
                **(ended.info | _totals([info for _, info in shares])),
            )
        if ended.outcome in ("oom", "thrashing"):
            crew.failed(ended.failure or ended.outcome)
    if ended.outcome == "done":
        return RunResult(EXIT_DONE, info, None, leads)
    return RunResult(EXIT_OUT_OF_MEMORY, info, ended.failure, leads)


def _totals(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the counts and rates of several processes, added up."""
    return {
        name: None if None in given else sum(given)
        for name in _ADDED
        if (given := [info[name] for info in infos if name in info])
    }


def slow_here(config: RunConfig, kind: str) -> str | None:
    """Return what to say of a run whose model is too large for the device to train in minutes."""
    if kind != "cpu" or config.scale != "full":
        return None
    return (
        "a model of the paper's size may take hours on the cpu: --scale small trains one as deep "
        "over batches as long, but narrower, and --device sim:v100 simulates the paper's GPU"
    )


def require_budget(budget: int | None, model: torch.nn.Module, device: Device) -> None:
    """Raise ``BudgetTooSmallError`` if the model's parameters alone exceed the budget."""
    try:
        budget_bytes(budget, model, device)
    except ValueError as error:  # Of a number of bytes nothing else is refused.
        raise BudgetTooSmallError(str(error)) from error


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a run ended.

    Attributes:
        outcome: One of ``RUN_OUTCOMES``.
        failure: Why it is not ``done``.
        info: More keys of ``run.json``.
        ran: Whether any step was to be taken.
    """

    outcome: str
    failure: str | None
    info: dict[str, Any]
    ran: bool = True


def _prepare(
    config: RunConfig, trainer: Trainer, writer: RunWriter, say: Callable[[str], None]
) -> Kept | _Ended | None:
    """Let a planner that plans once do so; return its plan, or how the run ends without one."""
    planner = trainer.handle.planner
    if not isinstance(planner, Static):
        return None
    size = plan_size(config, trainer.task)
    writer.update(solution=None, profile=None)
    try:
        prepared = prepare(config, trainer, size, say, own=writer.directory, record=writer.update)
    except (ProfileError, Infeasible) as error:
        failed: ProfileError | Infeasible = error.with_traceback(None)
    else:
        kept = Kept(prepared, planner, writer.directory, writer.update, say)
        stopping.check()
        return kept
    if config.on_oom == "skip" and _needs_no_profile(planner):
        say(f"{failed}; --on-oom skip goes on without a plan of its own for the budget")
        return None
    say(str(failed))
    least = failed.least_budget_bytes if isinstance(failed, Infeasible) else None
    outcome = "oom" if least is None else "infeasible"
    return _Ended(outcome, str(failed), {"least_budget_bytes": least}, ran=False)


def _needs_no_profile(planner: Static) -> bool:
    try:
        planner.unprofiled()
    except ValueError:
        return False
    return True


def _train(
    config: RunConfig,
    course: Course,
    trainer: Trainer,
    writer: RunWriter,
    progress: Progress,
    say: Callable[[str], None],
    taken: list[Taken | None],
    kept: Kept | None,
) -> _Ended:
    """Take the steps; ``taken`` gets what each of them carried out."""
    handle, planner = trainer.handle, trainer.handle.planner
    letting_go = LettingGo(planner)
    samples = tokens = 0
    simulated_seconds = 0.0
    failure: str | None = None
    least: int | None = None
    lost: int | None = None
    outcome = "done"
    started, begun = time.perf_counter(), time.thread_time()
    batches = course.batches(handle.device.host_memory)
    with contextlib.closing(batches):  # type: ignore[type-var]  # a generator
        for step in trainer.steps(batches):
            weight = course.weigh(step)
            _write(writer, step, handle, trainer.task, weight, letting_go)
            taken.append(taken_in(step.record))
            if kept is not None:
                kept.after(step)
            record = step.record
            reserved = None if record is None or weight is not None else record.peak_reserved_bytes
            progress.step(peak_bytes=reserved, loss=step.loss, total=course.total)
            if lost is None and step.loss is not None and not math.isfinite(step.loss):
                lost = step.number
                say(
                    f"warning: the loss of step {lost} is {step.loss}: memory and times are "
                    "recorded as ever, but nothing is learnt any more; give a smaller --lr"
                )
            simulated_seconds += (record and record.step_seconds) or 0.0
            if step.error is None:
                samples += step.batch.num_samples
                tokens += step.batch.num_tokens
                continue
            outcome, failure, least = _explain(config, trainer, step)
            say(failure)
            if not _may_go_on(config, step):
                break
            outcome = "done"
    wall_seconds, thread_seconds = time.perf_counter() - started, time.thread_time() - begun
    seconds = simulated_seconds if trainer.simulated else wall_seconds
    # Over expected lengths, steps stand for unequal shares: their sum is no rate.
    has_rate = seconds > 0 and config.lengths == "sampled"
    return _Ended(
        outcome,
        failure,
        {
            "num_samples": samples,
            "num_tokens": tokens,
            "wall_seconds": wall_seconds,
            "thread_seconds": thread_seconds,
            "samples_per_second": samples / seconds if has_rate else None,
            "tokens_per_second": tokens / seconds if has_rate else None,
            "optimizer_foreach": _foreach(trainer.optimizer),
            "margin_bytes": getattr(planner, "margin_bytes", None),
            "least_budget_bytes": least,
            "first_lost_loss": lost,
        },
    )


def _write(
    writer: RunWriter,
    step: Step,
    handle: Handle,
    task: Task,
    weight: float | None,
    letting_go: LettingGo,
) -> None:
    batch = step.batch
    extents = task.extents(batch.size)
    if step.record is None:
        plan = Plan.recompute_each(len(handle.block_names))
        row: dict[str, Any] = {
            "rank": writer.rank,
            "step": step.number,
            "phase": "responsive",
            "input_size": batch.input_size,
            "batch_size": batch.num_samples,
            **extents,
            "plan": str(plan),
            "num_recomputed": plan.num_recomputed,
            "num_remade": plan.num_remade,
            "outcome": "oom",
            "wait_seconds": step.wait_seconds,
            "weight": weight,
        }
        writer.add(row)
        return
    row = step_row(
        step.record,
        step=step.number,
        input_size=batch.input_size,
        batch_size=batch.num_samples,
        **extents,
        loss=step.loss,
        wait_seconds=step.wait_seconds,
        weight=weight,
        let_go=letting_go.bytes(step.record),
        rank=writer.rank,
    )
    writer.add(row, block_rows(step.record, step=step.number, input_size=batch.input_size))


def _explain(config: RunConfig, trainer: Trainer, step: Step) -> tuple[str, str, int | None]:
    """Return the run's outcome should it end here, why in a sentence, and the least budget."""
    task, batch = trainer.task, step.batch
    size = task.describe_size(batch.size)
    where = f"step {step.number} (batch of {batch.num_samples}, {size} {task.unit})"
    if step.least_budget_bytes is not None:
        if trainer.together:  # It may be another process's batch, of another size.
            where = f"step {step.number}"
        least = format_bytes(step.least_budget_bytes, up=True)
        failure = f"{where} does not fit: {step.error}; the least budget is {least}"
        return "infeasible", failure, step.least_budget_bytes
    if step.thrashing:
        failure = f"{where} was given up under planner {config.planner}: {step.error}"
        return "thrashing", f"{failure}; give a larger budget or a smaller --reserve", None
    text = f"{where} ran out of memory under planner {config.planner}"
    if step.in_optimizer:
        text += " in the optimizer's step, which is never repeated"
    if _may_go_on(config, step):
        return "oom", f"{text} and was skipped", None
    if isinstance(trainer.handle.planner, Evicting) and not step.in_optimizer:
        # What blocks need is nothing to it. Its own error says what did not fit.
        return "oom", f"{text}: {step.error}", None
    least_bytes = trainer.least_budget(step.batch, in_optimizer=step.in_optimizer)
    if least_bytes is None:
        return "oom", f"{text}: {step.error}", None
    failure = (
        f"{text}; with every block recomputed this batch needs a budget of "
        f"{format_bytes(least_bytes, up=True)} ({least_bytes} bytes)" + _longer(task, batch.size)
    )
    return "oom", failure, least_bytes


def _longer(task: Task, size: Size) -> str:
    """Return what to add where other batches need more than the one that failed."""
    longest = task.longest()
    if size >= longest:
        return ""
    return (
        ", and larger ones more: 'mimose-bench plan --bounds' measures "
        f"{task.describe_size(longest)} {task.unit}, and batches of many sizes leave memory cached "
        "that the next cannot use"
    )


def _may_go_on(config: RunConfig, step: Step) -> bool:
    return config.on_oom == "skip" and not step.in_optimizer and step.rescued


def _foreach(optimizer: torch.optim.Optimizer) -> bool | None:
    """Return whether the optimizer's foreach form runs; its default depends on the device."""
    given = optimizer.defaults.get("foreach")
    if given is not None or "foreach" not in optimizer.defaults:
        return given
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return bool(parameters) and all(p.device.type == "cuda" for p in parameters)
