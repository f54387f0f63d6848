"""Model and hardware FLOPs of a run's steps, counted once a size after the loop.

Model FLOPs are those of the forward and backward pass; hardware FLOPs count what is run again, too.
Divided by what the device could have done in the same time they are MFU and HFU (Chowdhery et al.
2022; Korthikanti et al. 2022). Counting follows ``torch.utils.flop_counter``: matrix products,
convolutions and attention kernels count, element-wise operators and the optimizer do not, and a
fused attention kernel's backward counts the product that it repeats by itself.

What counts is the model on PyTorch's ``meta`` device, without data, so that no step is disturbed.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations_with_replacement
from math import prod
from typing import Any

import torch

from mimose.costs import recomputation
from mimose.devices.base import Device
from mimose.devices.sim.device import SimDevice
from mimose.devices.sim.gpus import GPUS, load_gpu
from mimose.eviction import Eviction
from mimose.handle import Handle, attach
from mimose.plan import Plan
from mimose.records import Size, StepRecord
from mimose.schedule import AnyPlan
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.summary import FAILED
from mimose_bench.experiments.tasks.base import Task

Say = Callable[[str], None]

_NO_LIMIT = 1 << 50
_DEGREE = 2
_COUNTED: dict[tuple[str, Size, bool], BlockFlops] = {}
"""What this process has counted, by the task's settings, the size and whether cores ran again."""


@dataclass(frozen=True, slots=True)
class BlockFlops:
    """FLOPs of a step at one size.

    Attributes:
        forward: Of each block's forward pass.
        recompute: Of running each block again for its own backward, which stops early.
        backward: Of each block's backward.
        outside: Of everything outside the blocks, forward and backward.
    """

    forward: tuple[int, ...]
    recompute: tuple[int, ...]
    backward: tuple[int, ...]
    outside: int

    @property
    def model(self) -> int:
        """FLOPs of the forward and backward pass, with nothing run again."""
        return sum(self.forward) + sum(self.backward) + self.outside

    def numbers(self) -> list[int]:
        """Return all of it as one list; :meth:`of` takes it back."""
        return [*self.forward, *self.recompute, *self.backward, self.outside]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> BlockFlops:
        """Return what :meth:`numbers` listed."""
        count = len(numbers) // 3
        parts = [tuple(numbers[i * count : (i + 1) * count]) for i in range(3)]
        return cls(*parts, numbers[-1])


@dataclass(frozen=True, slots=True)
class Taken:
    """What a finished step carried out.

    Attributes:
        size: Its mini-batch.
        plan: What was recomputed.
        measured: Blocks that ran once more to be measured.
        retried: It is a second attempt: nobody knows how far the first had come.
    """

    size: Size
    plan: AnyPlan
    measured: frozenset[int] = frozenset()
    retried: bool = False


def taken_in(record: StepRecord | None) -> Taken | None:
    """Return what a step carried out; None where it did not finish."""
    if record is None or record.outcome in FAILED:
        return None
    blocks = () if record.collected is None else record.collected.blocks
    measured = frozenset(sample.block for sample in blocks) & record.plan.recomputed
    return Taken(record.size, record.plan, measured, record.outcome == "retried")


@dataclass(frozen=True, slots=True)
class Counted:
    """The columns of the steps and the keys of ``run.json`` that come from counting."""

    columns: dict[str, list[int | None]] = field(default_factory=dict)
    info: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DevicePeak:
    """What a device could do.

    Attributes:
        flops: The maker's FLOP/s at the run's precision; None where it is unknown.
        precision: What its products are computed in.
        unknown: Why it is unknown.
    """

    flops: float | None
    precision: str
    unknown: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as ``run.json`` keeps it."""
        return {"peak_flops": self.flops, "precision": self.precision, "unknown": self.unknown}


def count_steps(
    config: RunConfig, task: Task, kind: str, steps: Sequence[Taken | None], say: Say
) -> Counted:
    """Return the FLOPs of a run's steps, if they are to be counted.

    Args:
        config: The run.
        task: Its task.
        kind: Kind of its device, which is closed by now.
        steps: What each step carried out, one a row.
        say: Takes lines of progress.
    """
    finished = [step for step in steps if step is not None]
    if kind == "cpu" and config.flops != "on":
        return Counted()  # What is not known is the peak, and counting would not help.
    if config.flops == "off":
        return Counted(info={"unknown": "FLOPs were not counted: give --flops on"})
    if not finished:
        return Counted(info={"unknown": "no step finished"})
    cores = any(isinstance(step.plan, Plan) and step.plan.cores for step in finished)
    say("counting FLOPs")
    try:
        with opened_counter(config, task, kind) as counter:
            sizes = [step.size for step in finished]
            plain, how = flops_by_size(counter.count, sizes, fit=task.unit == "tokens")
            selective = {}
            if cores:
                selective, _ = flops_by_size(
                    counter.count_with_cores, sizes, fit=task.unit == "tokens"
                )
    except (RuntimeError, ValueError) as error:
        # The run itself is done and good; what is missing is said.
        text = f"FLOPs could not be counted: {' '.join(str(error).split())}"
        say(text)
        return Counted(info={"unknown": text})
    columns: dict[str, list[int | None]] = {"model_flops": [], "hardware_flops": []}
    for step in steps:
        model = None if step is None else plain[step.size].model
        again = None if step is None else hardware_flops(step, plain, selective)
        columns["model_flops"].append(model)
        columns["hardware_flops"].append(again)
    return Counted(columns, how)


def hardware_flops(
    step: Taken, plain: Mapping[Size, BlockFlops], selective: Mapping[Size, BlockFlops]
) -> int | None:
    """Return everything that a step computed; None where that is not known.

    Args:
        step: The step.
        plain: FLOPs of each size.
        selective: The same with each block's attention core run again in its backward.
    """
    if step.retried or isinstance(step.plan, Eviction):
        return None  # Nobody counted what the first attempt, or the policy, ran.
    if isinstance(step.plan, Plan) and step.plan.remade:
        return None  # Nor what single operators ran again.
    flops = plain[step.size]
    again = recomputation(step.plan, flops.forward, flops.recompute)
    again += sum(flops.forward[block] for block in step.measured)
    if isinstance(step.plan, Plan) and step.plan.cores:
        backward = selective[step.size].backward
        again += sum(backward[block] - flops.backward[block] for block in step.plan.cores)
    return flops.model + round(again)


# -- counting


class Counter:
    """Counts FLOPs of batches on a model without data.

    Args:
        handle: The model, attached on a simulated device.
        task: Its task.
    """

    def __init__(self, handle: Handle, task: Task) -> None:
        self._handle = handle
        self._task = task
        self._settings = json.dumps(
            [task.settings(), type(handle.model).__name__], sort_keys=True, default=str
        )

    def count(self, size: Size) -> BlockFlops:
        """Return the FLOPs of a batch of ``size``."""
        return self._remembered(size, cores=False)

    def count_with_cores(self, size: Size) -> BlockFlops:
        """Return them with each block's attention core run again in its backward."""
        return self._remembered(size, cores=True)

    def _remembered(self, size: Size, *, cores: bool) -> BlockFlops:
        key = self._settings, size, cores
        if key not in _COUNTED:
            _COUNTED[key] = self._count(size, cores=cores)
        return _COUNTED[key]

    def _count(self, size: Size, *, cores: bool) -> BlockFlops:
        handle, task = self._handle, self._task
        tensors = handle.device.put(task.example_batch(size).tensors)
        blocks = len(handle.block_names)
        plan = Plan.recompute_each(blocks)
        if cores:
            plan = Plan(blocks, (), tuple(range(blocks)))
        measured = handle.measure(
            lambda: task.loss(handle.model, tensors).backward(), size, plan=plan
        )
        collected = measured.records[0].collected
        samples = [] if collected is None else sorted(collected.blocks, key=lambda s: s.block)
        if collected is None or [s.block for s in samples] != list(range(len(samples))):
            raise RuntimeError("not every block of the model could be measured")
        return BlockFlops(
            tuple(sample.forward_flops or 0 for sample in samples),
            tuple(sample.recompute_flops or 0 for sample in samples),
            tuple(sample.backward_flops or 0 for sample in samples),
            collected.outside_flops or 0,
        )


@contextmanager
def opened_counter(config: RunConfig, task: Task, kind: str) -> Iterator[Counter]:
    """Open a counter for the block; no simulated device may be open."""
    name = config.device.partition(":")[2] if kind == "sim" else "h200"
    gpu = dataclasses.replace(load_gpu(name), memory_bytes=_NO_LIMIT)
    device = SimDevice(gpu, cuda_kernels=kind != "cpu")
    try:
        model = device.build(task.build_model)
        device.adopt(model)
        with attach(model, None, "baseline", device=device) as handle:
            yield Counter(handle, task)
    finally:
        device.close()


# -- sizes that need no counting


def flops_by_size(
    count: Callable[[Size], BlockFlops], sizes: Iterable[Size], *, fit: bool
) -> tuple[dict[Size, BlockFlops], dict[str, Any]]:
    """Return the FLOPs of each size.

    Those of text are polynomials of degree two in the padded lengths, times the batch: they are
    solved for exactly from as many sizes as they have terms and checked against one more. Where
    that does not hold each size is counted.

    Args:
        count: Counts one size.
        sizes: The sizes, in any order and as often as may be.
        fit: Whether to try the polynomial.

    Returns:
        FLOPs by size; and how they were come by, as ``run.json`` keeps it.
    """
    distinct = sorted(set(sizes))
    terms = _terms(distinct)
    if fit and len(distinct) > len(terms) + 1:
        found = _fitted(count, distinct, terms)
        if found is not None:
            return found
    found_all = {size: count(size) for size in distinct}
    return found_all, {"method": "counted at each size", "sizes_counted": len(distinct)}


def _terms(sizes: Sequence[Size]) -> list[tuple[int, ...]]:
    """Return the monomials of the extents that vary: which of them are multiplied."""
    varying = [i for i in range(1, len(sizes[0])) if len({size[i] for size in sizes}) > 1]
    return [
        term
        for degree in range(_DEGREE + 1)
        for term in combinations_with_replacement(varying, degree)
    ]


def _fitted(
    count: Callable[[Size], BlockFlops], sizes: Sequence[Size], terms: Sequence[tuple[int, ...]]
) -> tuple[dict[Size, BlockFlops], dict[str, Any]] | None:
    chosen: list[Size] = []
    basis: list[list[Fraction]] = []
    full = max(size[0] for size in sizes)
    for size in _spread([size for size in sizes if size[0] == full]):
        rest = _reduced(basis, _row(size, terms))
        if len(chosen) < len(terms) and any(rest):
            basis.append(rest)
            chosen.append(size)
    others = [size for size in sizes if size not in chosen]
    if len(chosen) < len(terms) or not others:
        return None
    counted = {size: count(size) for size in chosen}
    coefficients = _solve(
        [_row(size, terms) for size in chosen],
        [[Fraction(x, size[0]) for x in counted[size].numbers()] for size in chosen],
    )

    def predict(size: Size) -> BlockFlops | None:
        row = _row(size, terms)
        exact = [
            size[0] * sum((a * b for a, b in zip(row, column)), Fraction(0))
            for column in zip(*coefficients)
        ]
        if any(x.denominator != 1 for x in exact):
            return None
        return BlockFlops.of([int(x) for x in exact])

    # A batch that is not full, if there is one: the fit has seen none.
    middle = (sizes[0][1] + sizes[-1][1]) / 2
    checked = min(others, key=lambda size: (size[0], abs(size[1] - middle)))
    counted[checked] = count(checked)
    found = {size: counted.get(size) or predict(size) for size in sizes}
    if predict(checked) != counted[checked] or None in found.values():
        return None
    complete = {size: flops for size, flops in found.items() if flops is not None}
    method = f"polynomial in the lengths, exact at {len(counted)} counted sizes"
    return complete, {"method": method, "sizes_counted": len(counted)}


def _row(size: Size, terms: Sequence[tuple[int, ...]]) -> list[Fraction]:
    return [Fraction(prod(size[i] for i in term)) for term in terms]


def _spread(sizes: Sequence[Size]) -> list[Size]:
    """Return all sizes, far apart ones first: the ends, the middle, the quarters."""
    last = len(sizes) - 1
    order: dict[Size, None] = {}
    parts = 1
    while len(order) < len(sizes):
        order.update(dict.fromkeys(sizes[last * i // parts] for i in range(parts + 1)))
        parts *= 2
    return list(order)


def _reduced(basis: Sequence[Sequence[Fraction]], row: list[Fraction]) -> list[Fraction]:
    """Return what of ``row`` the ``basis``, itself reduced, does not span."""
    for other in basis:
        pivot = next(i for i, x in enumerate(other) if x)
        if row[pivot]:
            factor = row[pivot] / other[pivot]
            row = [a - factor * b for a, b in zip(row, other)]
    return row


def _solve(matrix: list[list[Fraction]], right: list[list[Fraction]]) -> list[list[Fraction]]:
    """Solve a regular system exactly for several right sides; a row a coefficient."""
    rows = [[*a, *b] for a, b in zip(matrix, right)]
    size = len(rows)
    for column in range(size):
        pivot = next(i for i in range(column, size) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        lead = rows[column][column]
        rows[column] = [x / lead for x in rows[column]]
        for i in range(size):
            factor = rows[i][column]
            if i != column and factor:
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column])]
    return [row[size:] for row in rows]


# -- the device's peak

_PRODUCTS = {
    "v100-32gb": r"V100-SXM2",
    "t4": r"(Tesla|NVIDIA) T4$",
    "a100-40gb": r"A100",
    "h100": r"H100( 80GB)? (SXM|HBM3)|H100-SXM|H100 80GB HBM3",
    "h200": r"H200(?! NVL)",
    "rtx3090": r"RTX 3090$",
    "rtx4090": r"RTX 4090$",
}
"""GPUs by how CUDA names the products with their peaks; other products of a name have others."""


def peak_of(device: Device, task: Task, precision: str) -> DevicePeak:
    """Return the peak that a run's FLOP/s are held against.

    Args:
        device: The run's device.
        task: Its task.
        precision: ``fp32``, ``bf16`` or ``fp16``.
    """
    if isinstance(device, SimDevice):
        name, gpu = device.gpu.title, device.gpu
    elif device.kind == "cuda":
        name = torch.cuda.get_device_name(device.torch_device)
        known = product(name)
        if known is None:
            return DevicePeak(None, precision, f"the peak of {name} is not known")
        gpu = load_gpu(known)
    else:
        return DevicePeak(None, precision, "the peak FLOP/s of a cpu are not known")
    used = precision
    flags = torch.backends.cudnn if task.unit == "pixels" else torch.backends.cuda.matmul
    if precision == "fp32" and flags.allow_tf32 and "tf32" in gpu.peak_flops:
        used = "tf32"  # PyTorch's default for convolutions, not for matrix products.
    peak = gpu.peak_flops.get(used)
    return DevicePeak(peak, used, None if peak else f"the {used} peak of {name} is not known")


def product(name: str) -> str | None:
    """Return which of ``GPUS`` has the peaks of a GPU that CUDA calls ``name``; None for none."""
    found = (gpu for gpu, pattern in _PRODUCTS.items() if re.search(pattern, name))
    return next((gpu for gpu in found if gpu in GPUS), None)
