"""Rotor beside its rivals on ResNet-1001, as in its authors' evaluation.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, *Optimal Checkpointing for Heterogeneous Chains*,
2019, arXiv:1911.13214: images of 224 x 224 in batches of 8 would take 225 GiB without
checkpointing, over 16 times what Rotor needs; over depths, image and batch sizes Rotor's throughput
is 17.2 % above that of the best of its rivals, periodic segments and *revolve*.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from mimose.costs import Infeasible
from mimose.devices.sim.device import SimDevice
from mimose.planners import make_planner
from mimose.planners.static import Static
from mimose.records import Measured
from mimose.units import format_bytes
from mimose_bench.experiments.figures.resnet1001 import BLOCKS, ImageWorkload
from mimose_bench.experiments.figures.result import Criterion, Reproduction, ResultTable, Row
from mimose_bench.experiments.figures.session import OpenDevice, Say, Session, silent, training

PLANNERS = ("full", "sublinear", "periodic", "revolve", "rotor")
RIVALS = ("periodic", "revolve")
GAIN = 0.172
PLAIN_BYTES = 225 << 30
TIMES_LESS = 16
BUDGETS = tuple(gib << 30 for gib in (6, 8, 10, 12, 14, 20, 28))
QUICK_BLOCKS = 8
QUICK_SHARES = (0.15, 0.25, 0.4, 0.6)
"""Budgets for a network that is not the paper's, as shares of what plain training takes."""
_ENOUGH_BYTES = 1 << 40


@dataclass(frozen=True, slots=True)
class Cell:
    """One planner under one budget.

    Attributes:
        planner: Its name.
        budget_bytes: The budget.
        step_seconds: Time of a step; None where no plan fits.
        peak_bytes: What it allocated at most.
        outcome: What comes of a step when the budget is enforced, see :meth:`Session.outcome`.
        predicted_seconds: What was predicted of its forward and backward pass.
        least_budget_bytes: The least budget under which there is a plan.
    """

    planner: str
    budget_bytes: int
    step_seconds: float | None
    peak_bytes: int | None
    outcome: str
    predicted_seconds: float | None
    least_budget_bytes: int


def check(open_device: OpenDevice, *, blocks: int = BLOCKS[0], say: Say = silent) -> Reproduction:
    """Measure plain training, and each planner under each budget.

    Args:
        open_device: Opens the simulated GPU.
        blocks: Blocks in each stage; fewer are quicker, and nothing to compare with the paper.
        say: Takes lines of progress.
    """
    with open_device() as device:
        assert isinstance(device, SimDevice)
        gpu = device.gpu
    workload = ImageWorkload(blocks=(blocks,) * len(BLOCKS))
    images = workload.batch_size
    batch = workload.batch()
    say(f"resnet1001: {3 * blocks} blocks, plain")
    # The same GPU with memory enough, so that plain training can be measured at all.
    roomy = SimDevice(replace(gpu, memory_bytes=_ENOUGH_BYTES))
    with contextlib.closing(roomy) as device, training(device, workload, "baseline") as session:
        plain = [session.take(batch) for _ in range(2)][-1]
        measured = session.measure(batch)
        assert plain.peak_allocated_bytes is not None
        budgets: Sequence[int] = BUDGETS
        if blocks != BLOCKS[0]:
            budgets = [int(share * plain.peak_allocated_bytes) for share in QUICK_SHARES]
        cells = [
            cell for budget in budgets for cell in _column(session, workload, measured, budget, say)
        ]
    assert plain.step_seconds is not None
    rows = ()
    if blocks == BLOCKS[0]:
        rows = (
            Row(
                series="ResNet-1001",
                what="plain training, allocated",
                unit="GB",
                expected=PLAIN_BYTES,
                obtained=plain.peak_allocated_bytes,
            ),
        )
    gains = [gain for budget in budgets if (gain := _gain(cells, budget)) is not None]
    least = min(c.least_budget_bytes for c in cells if c.planner == "rotor")
    plain_rate = images / plain.step_seconds
    return Reproduction(
        name="rotor",
        title=f"Rotor, revolve and periodic segments on a ResNet of {3 * blocks} blocks",
        source="Beaumont et al. 2019, arXiv:1911.13214",
        device_label=f"simulated {gpu.name}",
        rows=rows,
        criteria=_criteria(rows, cells, budgets),
        notes=(
            f"plain training: {format_bytes(plain.peak_allocated_bytes)} allocated, "
            f"{plain_rate:.2f} images/s, on the same GPU with memory enough",
            f"Rotor over the best of {' and '.join(RIVALS)}: "
            + ", ".join(f"{gain:+.1%}" for gain in gains)
            + f" over these budgets; the paper's mean over depths and sizes is {GAIN:+.1%}",
            f"Rotor's least budget here is {format_bytes(least)}; the paper's peak is below "
            f"{format_bytes(PLAIN_BYTES // TIMES_LESS)}, a sixteenth of plain training's",
            "+: with the budget enforced, the allocator flushes its cache within the step; *: it "
            "runs out of memory, since what is free lies in pieces too small",
            "the paper's 9.18 images/s are out of reach for this network: forward and backward "
            "take 56 TFLOPs a batch in fp32, and the GPU's peak of 15.7 TFLOP/s allows for 2.2. "
            "Stages a quarter as wide in batches of 32 need the same memory at a sixteenth of the "
            "FLOPs an image; which of both was run is not known",
        ),
        tables=(_table(cells, budgets, images, plain_rate),),
    )


def _column(
    session: Session, workload: ImageWorkload, measured: Measured, budget: int, say: Say
) -> list[Cell]:
    cells = []
    device, batch = session.handle.device, workload.batch()
    for name in PLANNERS:
        planner = make_planner(name)
        assert isinstance(planner, Static)
        try:
            solution = session.plan_once(planner, measured, budget)
        except Infeasible as error:
            cells.append(
                Cell(name, budget, None, None, "infeasible", None, error.least_budget_bytes)
            )
            continue
        device.release_cache()
        record = session.take(batch)
        solved = f"solved in {solution.solve_seconds:.1f} s"
        say(f"resnet1001: {name} at {format_bytes(budget)}, {solved}")
        cells.append(
            Cell(
                name,
                budget,
                record.step_seconds,
                record.peak_allocated_bytes,
                session.outcome(batch, budget),
                solution.predicted_seconds,
                solution.least_budget_bytes,
            )
        )
    return cells


def _at(cells: Sequence[Cell], planner: str, budget: int) -> Cell:
    return next(c for c in cells if (c.planner, c.budget_bytes) == (planner, budget))


def _gain(cells: Sequence[Cell], budget: int) -> float | None:
    """Return by how much Rotor's throughput exceeds its best rival's; None without either."""
    rotor = _at(cells, "rotor", budget).step_seconds
    rivals = [s for name in RIVALS if (s := _at(cells, name, budget).step_seconds) is not None]
    return None if rotor is None or not rivals else min(rivals) / rotor - 1


def _criteria(
    rows: Sequence[Row], cells: Sequence[Cell], budgets: Sequence[int]
) -> tuple[Criterion, ...]:
    slower = over = failed = 0
    for budget in budgets:
        rotor = _at(cells, "rotor", budget)
        for name in (*RIVALS, "sublinear", "full"):
            rival = _at(cells, name, budget)
            if rival.predicted_seconds is not None:
                slower += rotor.predicted_seconds is None or (
                    rotor.predicted_seconds > rival.predicted_seconds * (1 + 1e-9)
                )
    for cell in cells:
        over += cell.peak_bytes is not None and cell.peak_bytes > cell.budget_bytes
        failed += cell.outcome == "oom"
    plain = [
        Criterion(name="plain training's memory", value=abs(row.error), tolerance=0.02)
        for row in rows
    ]
    return (
        *plain,
        Criterion(name="a rival is faster than Rotor", value=slower, tolerance=0, is_count=True),
        Criterion(name="allocated beyond the budget", value=over, tolerance=0, is_count=True),
        Criterion(name="out of memory by fragmentation", value=failed, is_count=True),
    )


def _table(
    cells: Sequence[Cell], budgets: Sequence[int], images: int, plain_rate: float
) -> ResultTable:
    rows = []
    for budget in budgets:
        row = [format_bytes(budget)]
        for name in PLANNERS:
            cell = _at(cells, name, budget)
            if cell.step_seconds is None:
                row.append(f"needs {format_bytes(cell.least_budget_bytes, up=True)}")
                continue
            rate = images / cell.step_seconds
            mark = {"oom": " *", "flushed": " +"}.get(cell.outcome, "")
            row.append(f"{rate:.3f} ({plain_rate / rate:.3f}){mark}")
        gain = _gain(cells, budget)
        row.append("-" if gain is None else f"{gain:+.1%}")
        rows.append(tuple(row))
    return ResultTable(
        title="images/s (time relative to plain training) by budget",
        headers=("budget", *PLANNERS, "Rotor's gain"),
        rows=tuple(rows),
    )
