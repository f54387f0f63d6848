"""FLOPs of steps: counted, fitted, and held against a device's peak."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mimose.costs import recomputation
from mimose.devices.sim.gpus import GPUS, load_gpu
from mimose.plan import Plan
from mimose.records import Situation, StepRecord
from mimose_bench.experiments import flops
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.flops import BlockFlops, Taken
from mimose_bench.experiments.run import task_of


def tiny(**options):
    return RunConfig(scale="tiny", data="synthetic", device="sim:v100", **options)


def polynomial(size):
    rows, *extents = size
    x, y = (*extents, 0)[:2]
    one = rows * (7 + 3 * x + 2 * x * x + 5 * x * y + y)
    return BlockFlops((one, 2 * one), (one, one), (2 * one, 4 * one), rows)


class Counting:
    def __init__(self, function=polynomial):
        self.function = function
        self.sizes = []

    def __call__(self, size):
        self.sizes.append(size)
        return self.function(size)


@pytest.mark.parametrize(
    ("sizes", "most"),
    [
        ([(8, n) for n in range(10, 60)], 4),
        ([(8, n) for n in range(10, 60)] + [(3, 17)], 4),
        ([(8, n, 5 * n % 13 + 4) for n in range(10, 60)], 7),
        ([(8, n, 16) for n in range(10, 60)], 4),
    ],
)
def test_a_polynomial_is_counted_at_as_many_sizes_as_it_has_terms_and_one(sizes, most):
    count = Counting()
    found, how = flops.flops_by_size(count, [*sizes, *sizes], fit=True)
    assert found == {size: polynomial(size) for size in sizes}
    assert len(count.sizes) == len(set(count.sizes)) == how["sizes_counted"] == most
    if (3, 17) in sizes:  # The one that the fit has seen nothing like is the one to check by.
        assert (3, 17) in count.sizes


def test_anything_else_is_counted_at_each_size():
    def in_windows(size):
        padded = (size[0], 7 * -(-size[1] // 7))
        return polynomial(padded)

    sizes = [(8, n) for n in range(10, 30)]
    found, how = flops.flops_by_size(Counting(in_windows), sizes, fit=True)
    assert found == {size: in_windows(size) for size in sizes}
    assert how == {"method": "counted at each size", "sizes_counted": 20}
    assert flops.flops_by_size(polynomial, sizes, fit=False)[1]["sizes_counted"] == 20
    few = Counting()
    flops.flops_by_size(few, sizes[:4], fit=True)
    assert len(few.sizes) == 4


def test_a_system_is_solved_exactly():
    matrix = [[Fraction(x) for x in row] for row in ([0, 2, 1], [1, 1, 1], [3, 0, 7])]
    right = [[Fraction(7), Fraction(1)], [Fraction(6), Fraction(0)], [Fraction(24), Fraction(2)]]
    solved = flops._solve([row[:] for row in matrix], [row[:] for row in right])
    for row, wanted in zip(matrix, right):
        assert [sum(a * x[i] for a, x in zip(row, solved)) for i in range(2)] == wanted


def test_counts_are_those_of_pytorchs_own_counter():
    config = tiny()
    task = task_of(config)
    size = (4, 48)
    with flops.opened_counter(config, task, "cpu") as counter:
        found = counter.count(size)
    torch.manual_seed(0)
    model = task.build_model()
    with FlopCounterMode(display=False) as mode:
        loss = task.loss(model, task.example_batch(size).tensors)
        forward = mode.get_total_flops()
        loss.backward()
    assert found.model == mode.get_total_flops()
    assert sum(found.forward) + found.outside // 3 == forward
    assert len(found.forward) == 4
    assert all(0 < again <= first for again, first in zip(found.recompute, found.forward))


def record(plan, outcome="ok", size=(2, 8)):
    return StepRecord(size, plan, "static", Situation(0), outcome=outcome)


def test_what_a_step_computes():
    plain = {(2, 8): BlockFlops((10, 10, 10), (8, 8, 8), (20, 20, 20), 5)}
    selective = {(2, 8): BlockFlops((10, 10, 10), (8, 8, 8), (23, 23, 20), 5)}
    model = 95
    assert plain[2, 8].model == model

    def hardware(taken):
        return flops.hardware_flops(taken, plain, selective)

    keep, nested = Plan.keep_all(3), Plan.parse("recompute 0-2 (recompute 0-1 | keep 2)", 3)
    assert hardware(flops.taken_in(record(keep))) == model
    assert hardware(flops.taken_in(record(nested))) == model + recomputation(
        nested, (10, 10, 10), (8, 8, 8)
    )
    assert hardware(Taken((2, 8), Plan.recompute_each(3), frozenset({0, 1, 2}))) == model + 24 + 30
    assert hardware(Taken((2, 8), Plan(3, (), (0, 1)))) == model + 6
    assert hardware(flops.taken_in(record(keep, "retried"))) is None
    assert flops.taken_in(record(keep, "oom")) is None
    assert flops.taken_in(None) is None


def test_counting_that_fails_is_said_and_fails_no_run(monkeypatch):
    def fail(*_):
        raise RuntimeError("no such\nkernel")

    monkeypatch.setattr(flops, "opened_counter", fail)
    said = []
    config = tiny()
    counted = flops.count_steps(
        config, task_of(config), "sim", [Taken((2, 8), Plan(4))], said.append
    )
    assert counted.columns == {}
    assert counted.info["unknown"] == "FLOPs could not be counted: no such kernel" == said[-1]


def test_nothing_is_counted_on_the_cpu_unless_asked_for():
    config = tiny()
    # What stays is that the peak of a cpu is not known.
    assert flops.count_steps(config, task_of(config), "cpu", [], lambda _: None) == flops.Counted()
    config = replace(config, flops="off")
    counted = flops.count_steps(config, task_of(config), "sim", [], lambda _: None)
    assert "--flops on" in counted.info["unknown"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Tesla V100-SXM2-32GB", "v100-32gb"),
        ("Tesla V100-PCIE-16GB", None),
        ("Tesla T4", "t4"),
        ("NVIDIA A100-SXM4-80GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA H200", "h200"),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA GeForce RTX 3090", "rtx3090"),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090 D", None),
    ],
)
def test_products_are_told_apart(name, expected):
    assert flops.product(name) == expected


def test_cards_of_one_name_have_one_peak():
    assert load_gpu("a100-40gb").peak_flops == load_gpu("a100-80gb").peak_flops
    assert load_gpu("v100-16gb").peak_flops == load_gpu("v100-32gb").peak_flops
    assert set(flops._PRODUCTS) <= set(GPUS)
