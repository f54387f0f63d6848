"""Memory that DTR and Mimose leave in pieces that cannot be used, at the same budget.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: at 7 GB DTR leaves 2.5 GB of MC-Roberta's memory so,
Mimose 0.5 GB. Fragmentation is the peak of reserved bytes less that of allocated ones over a run.
DTR's own budget there is 4.5 GB (the released scripts' pair 7 and 2.5), and its prototype evicts
after each operator. The paper's PyTorch had native segments only: whether the claim survives
expandable ones is measured beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from statistics import median_high, quantiles

from mimose.devices.base import Device
from mimose.devices.sim.device import SimDevice
from mimose.units import GIB, format_bytes
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.evicting import Course, known, train, train_on
from mimose_bench.experiments.figures.result import (
    FACTORS,
    Criterion,
    Reproduction,
    ResultTable,
    Row,
    Unit,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, opened, silent
from mimose_bench.experiments.figures.stars import sampled
from mimose_bench.experiments.figures.workloads import MC_ROBERTA
from mimose_bench.experiments.tasks import TaskOptions, make_task
from mimose_bench.experiments.tasks.base import Scale

BUDGET = 7 * GIB
RESERVE = 5 * GIB // 2
DTR, MIMOSE = "dtr", "mimose"
EXPECTED = {DTR: 2.5 * GIB, MIMOSE: 0.5 * GIB}
TOLERANCES = {DTR: 0.25, MIMOSE: 0.5}
"""Relative errors: the paper prints one digit of either."""

WAYS: dict[str, tuple[str, dict[str, object]]] = {
    "dtr": ("dtr", {"trigger": "after", "reserve": RESERVE}),
    "mimose": ("mimose", {}),
    "dtr, before operators": ("dtr", {"trigger": "threshold", "reserve": RESERVE}),
}
"""Planners and their options by what they are called here; the first two are the paper's."""

RUNS, STEPS = 3, 80
QUICK_RUNS, QUICK_STEPS, QUICK_WAYS = 1, 24, 2
CPU_SHARE = 0.6
"""The budget on the cpu, as a share of what plain training reserves there over the same batches."""
CPU_STEPS, QUICK_CPU_STEPS = 20, 16
SETTLE = 2


def check(
    open_device: OpenDevice,
    *,
    runs: int = RUNS,
    steps: int = STEPS,
    ways: int = len(WAYS),
    cpu_steps: int = CPU_STEPS,
    cpu_scale: Scale = "small",
    say: Say = silent,
) -> Reproduction:
    """Measure runs over the data set's lengths under each planner.

    Args:
        open_device: Opens the simulated GPU.
        runs: Runs, each with lengths of its own.
        steps: Steps of each.
        ways: How many of :data:`WAYS` to take.
        cpu_steps: Steps of each run that is measured on the cpu; 0 for none.
        cpu_scale: Scale of the task that is measured there.
        say: Takes lines of progress.
    """
    with open_device() as device:
        assert isinstance(device, SimDevice)
        label, gpu = device.label, device.gpu

    @contextmanager
    def expandable() -> Iterator[Device]:
        device = SimDevice(gpu, expandable=True)
        try:
            yield device
        finally:
            device.close()

    taken = dict(list(WAYS.items())[:ways])
    found: dict[str, list[Course]] = {name: [] for name in taken}
    stretched: dict[str, list[Course]] = {name: [] for name in EXPECTED}
    for run in range(runs):
        lengths = sampled(MC_ROBERTA, run, steps)
        batches = [MC_ROBERTA.example_batch(length) for length in lengths]
        for name, (planner, options) in taken.items():
            for opener, into in ((open_device, found), (expandable, stretched)):
                if name not in into:
                    continue
                course = train(
                    opener, MC_ROBERTA, planner, BUDGET, batches, settle=SETTLE, **options
                )
                into[name].append(course)
                kind = "expandable" if into is stretched else "native"
                say(
                    f"fragmentation: {name}, {kind}, run {run + 1}: "
                    f"{course.reason or format_bytes(course.fragmentation)}"
                )
    middle, today = (
        {name: median_high([c.fragmentation for c in each[name]]) for name in EXPECTED}
        for each in (found, stretched)
    )
    rows = tuple(
        Row(
            series=f"MC-Roberta at {BUDGET // GIB} GB",
            what=name,
            unit="GB",
            expected=expected,
            obtained=middle[name],
            note="runs: " + ", ".join(f"{c.fragmentation / GIB:.2f}" for c in found[name]),
        )
        for name, expected in EXPECTED.items()
    )
    return Reproduction(
        name="fragmentation",
        title="peak reserved less peak allocated, DTR and Mimose",
        source="section on Fig 10",
        device_label=label,
        rows=rows,
        criteria=(
            Criterion(
                name="runs that failed",
                value=sum(
                    bool(c.failure)
                    for each in (found, stretched)
                    for courses in each.values()
                    for c in courses
                ),
                tolerance=0,
                is_count=True,
            ),
            *(
                Criterion(
                    name=f"{row.what}'s fragmentation, error",
                    value=abs(row.error),
                    tolerance=TOLERANCES[row.what],
                )
                for row in rows
            ),
        ),
        tables=(
            _table(f"MC-Roberta at {format_bytes(BUDGET)}, {label}", found, "GB"),
            _table(
                f"MC-Roberta at {format_bytes(BUDGET)}, {label}, expandable segments",
                stretched,
                "GB",
            ),
            *([_on_cpu(cpu_steps, cpu_scale, say)] if cpu_steps else ()),
        ),
        notes=(
            "a step's figure is the same difference within the step; it includes what earlier, "
            "longer batches left cached",
            f"does the claim survive expandable segments? DTR leaves {today[DTR] / GIB:.2f} GB "
            f"there and Mimose {today[MIMOSE] / GIB:.2f} GB; the paper's PyTorch had none",
        ),
    )


def _listed(values: Sequence[float], unit: Unit) -> str:
    return " ".join(f"{value / FACTORS[unit]:.3f}" for value in values)


def _table(title: str, found: dict[str, list[Course]], unit: Unit) -> ResultTable:
    rows = []
    for name, courses in found.items():
        records = [record for course in courses for record in course.records]
        steps = [known(r.peak_reserved_bytes) - known(r.peak_allocated_bytes) for r in records]
        low, middle, high = quantiles(steps, n=4) if len(steps) > 1 else [0.0] * 3
        evictions = [count for c in courses for count in [c.count("num_evictions")] if c.figures]
        rows.append(
            (
                name,
                *(
                    _listed([getattr(c, peak) for c in courses], unit)
                    for peak in ("peak_allocated", "peak_reserved", "fragmentation")
                ),
                _listed((low, middle, high), unit),
                f"{sum(r.num_alloc_retries or 0 for r in records)}",
                f"{sum(evictions) / len(evictions):.1f}" if evictions else "-",
                "; ".join(dict.fromkeys(c.failure for c in courses if c.failure)) or "ok",
            )
        )
    return ResultTable(
        title=f"{title}: peaks of each run in {unit}",
        headers=(
            "planner",
            "allocated",
            "reserved",
            "fragmentation",
            "a step's quartiles",
            "cache flushed",
            "evictions a step",
            "outcome",
        ),
        rows=tuple(rows),
    )


def _on_cpu(steps: int, scale: Scale, say: Say) -> ResultTable:
    task = make_task("qa-bert", TaskOptions(scale=scale, data="synthetic"))
    batches: Sequence[Batch] = list(task.batches(steps + SETTLE))
    with opened("cpu") as device:
        plain = train_on(device, task, "baseline", None, batches, settle=SETTLE)
        label = device.label
    budget = round(CPU_SHARE * plain.peak_reserved)
    found = {}
    for name, (planner, options) in WAYS.items():
        given = {key: value for key, value in options.items() if key != "reserve"}
        with opened("cpu") as device:
            course = train_on(device, task, planner, budget, batches, settle=SETTLE, **given)
        found[name] = [course]
        say(f"fragmentation: qa-bert {scale}, {name}: {course.reason or 'ok'}")
    title = f"qa-bert at scale {scale}, {format_bytes(budget)}, {CPU_SHARE:.0%} of plain training's"
    return _table(f"{title}, {label}", found, "MiB")
