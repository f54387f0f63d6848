"""When callers let go of what blocks were given and have returned, and what that says of peaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.modules import module as everywhere

from mimose.costs import Profile, predict_peak
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.planners.mimose.collector import OUTSIDE, PER_BLOCK, to_row
from mimose.records import Collected, ModelInfo, Situation
from mimose.runtime.afterwards import has_compiled_parts
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

BLOCKS = 3
WIDTH = 64
NUMBER, STATE = 512, 5632
"""The loss, and the random state that a recomputed block saves."""


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


class Layer(nn.Module):
    """Saves nothing of its input, nor of what all layers take; returns its weights as well."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(x + bias, -1)
        return self.inner(weights), weights


class Stack(nn.Module):
    """Holds its argument, what all layers take and what the last one returns until it is over."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(BLOCKS)])
        self.bias = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, given: torch.Tensor) -> torch.Tensor:
        bias = self.bias(given) + 1
        x = given
        for layer in self.layers:
            outputs = layer(x, bias)
            x = outputs[0]
        return self.norm(x)


class Model(nn.Module):
    """Has a head that takes most of what is outside the layers, after they are over or beside."""

    def __init__(self, *, beside: bool = False) -> None:
        super().__init__()
        self.beside = beside
        self.first = nn.Linear(WIDTH, WIDTH)
        self.stack = Stack()
        self.head = nn.Linear(WIDTH, 4 * WIDTH)
        if beside:
            self.stack.norm = nn.Sequential(self.stack.norm, self.head)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stack(self.first(x) + 1)
        return (x if self.beside else self.head(x)).square().square().mean()


def peaks(
    device: CpuDevice, model: nn.Module, *plans: Plan, ride: bool
) -> list[tuple[Collected, Plan, int]]:
    """Return what a step under each plan has shown, the plan and the peak of allocated bytes."""
    torch.manual_seed(0)
    device.adopt(model)
    executor = Executor(model, device, find_blocks(model, ["stack.layers.*"]))
    batch = device.put(torch.randn(256, WIDTH))
    found = []
    for collecting, plan in [(True, plans[0]), *((c, p) for p in plans for c in (True, False))]:
        model.zero_grad(set_to_none=False)
        device.begin_step()
        resident = device.allocated_bytes()
        executor.begin(plan, collect=collecting, trace=ride)
        model(batch).backward()
        device.end_step()
        if collecting:
            shown = executor.collected()
            assert shown is not None
        else:
            found.append((shown, plan, device.stats().step_peak_allocated - resident))
    executor.detach()
    return found


def profile_of(collected: Collected, plan: Plan) -> Profile:
    row = to_row(collected, plan, BLOCKS)
    assert row is not None
    numbers = [int(x) for x in row[0]]
    columns = {
        name: tuple(numbers[i * BLOCKS : (i + 1) * BLOCKS]) for i, name in enumerate(PER_BLOCK)
    }
    outside = dict(zip(OUTSIDE, numbers[-len(OUTSIDE) :]))
    return Profile(**columns, **outside, forward_seconds=(0.0,) * BLOCKS, optimizer_peak=0)


@pytest.mark.parametrize("beside", [False, True], ids=["after the layers", "beside them"])
def test_the_peaks_of_a_head_are_told(beside: bool, cpu: CpuDevice) -> None:
    """What a step under one plan has shown says what any other takes."""
    plans = [Plan.recompute_each(BLOCKS, chosen) for chosen in (range(BLOCKS), (0, 1), (0,), ())]
    model = Model(beside=beside)
    shown = peaks(cpu, model, *plans, ride=False)
    profile = profile_of(*shown[0][:2])
    assert (profile.after_peak > profile.loss_peak) == (not beside)
    info = ModelInfo(tuple("abc"), exact=True)
    most = BLOCKS * (STATE + NUMBER)
    beside_plans = peaks(cpu, model, *plans[:3], ride=True)
    for seen in (profile, *(profile_of(*one[:2]) for one in beside_plans)):
        for _, plan, measured in shown:
            predicted = predict_peak(seen, plan, info, Situation(0)).bytes
            assert predicted == pytest.approx(measured, abs=most), str(plan)


def test_nothing_is_left_in_force(cpu: CpuDevice) -> None:
    before = len(everywhere._global_forward_pre_hooks)
    model = Model()
    device_batch = cpu.put(torch.randn(8, WIDTH))
    cpu.adopt(model)
    executor = Executor(model, cpu, find_blocks(model, ["stack.layers.*"]))
    during = []
    model.head.register_forward_pre_hook(
        lambda *_: during.append(len(everywhere._global_forward_pre_hooks))
    )
    executor.begin(Plan.recompute_each(BLOCKS), collect=True)
    model(device_batch)
    assert during == [before + 1]
    assert len(everywhere._global_forward_pre_hooks) == before
    model.head.weight.data = torch.zeros(4, 4)
    executor.begin(Plan.recompute_each(BLOCKS), collect=True)
    with pytest.raises(RuntimeError):
        model(device_batch)
    assert len(everywhere._global_forward_pre_hooks) == before
    executor.detach()


def test_a_compiled_part_is_not_looked_at() -> None:
    model = Model()
    assert not has_compiled_parts(model)
    model.head._compiled_call_impl = model.head.forward
    assert has_compiled_parts(model)
