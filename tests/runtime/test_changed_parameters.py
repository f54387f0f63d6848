"""Parameters that change between a forward pass and its backward pass: never other gradients."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from mimose.devices.base import Device
from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor
from mimose.schedule import Schedule

MODIFIED = "one of the variables needed for gradient computation has been modified by an inplace"
SCHEDULE = "f0 f1 f2 F3 F4 B4 B3 f0 f1 F2 F0 B2 F1 B1 B0"
PLANS = {
    "each": Plan.recompute_each(5),
    "region": Plan.parse("recompute 0-4"),
    "schedule": Schedule.parse(SCHEDULE),
}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(5)],
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


@pytest.fixture
def attached(device: Device) -> tuple[Model, Executor]:
    torch.manual_seed(0)
    model = Model().train()
    executor = Executor(model, device, find_blocks(model))
    executor.begin(Plan.keep_all(5), collect=True)
    model(torch.ones(3, 4)).backward()  # The flow is known from here on.
    model.zero_grad()
    return model, executor


@pytest.mark.parametrize("plan", [None, *PLANS])
def test_an_optimizers_step_before_backward_is_refused_as_pytorch_does(
    attached: tuple[Model, Executor], plan: str | None
) -> None:
    model, executor = attached
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).backward()
    executor.begin(Plan.keep_all(5) if plan is None else PLANS[plan])
    loss = model(torch.ones(3, 4))
    optimizer.step()
    with pytest.raises(RuntimeError, match=MODIFIED):
        loss.backward()


def test_the_block_and_its_parameter_are_named(attached: tuple[Model, Executor]) -> None:
    model, executor = attached
    executor.begin(PLANS["each"])
    loss = model(torch.ones(3, 4))
    with torch.no_grad():
        model.layers[2][0].bias.add_(1.0)  # PyTorch saves no bias, and a rerun adds it.
    with pytest.raises(RuntimeError, match=r"parameter bias of block layers\.2, .* expected vers"):
        loss.backward()


def test_an_optimizer_may_step_within_backward(attached: tuple[Model, Executor]) -> None:
    """Each parameter as soon as its gradient is there, which no rerun comes after."""

    def train(model: Model) -> list[torch.Tensor]:
        def step(parameter: torch.Tensor) -> None:
            with torch.no_grad():
                parameter.sub_(0.1 * parameter.grad)
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            model(torch.ones(3, 4)).backward()
        return [p.detach().clone() for p in model.parameters()]

    model, executor = attached
    expected = train(copy.deepcopy(model))
    executor.begin(PLANS["each"])
    found = train(model)
    assert all(map(torch.equal, found, expected))


def test_a_block_that_changes_a_parameter_itself_runs_again(device: Device) -> None:
    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(8, 4, max_norm=0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.table(torch.arange(3))

    torch.manual_seed(0)
    model = Model()
    model.layers = nn.ModuleList([Bounded() for _ in range(5)])
    other: Any = copy.deepcopy(model)
    executor = Executor(model.train(), device, find_blocks(model))
    for _ in range(2):
        executor.begin(PLANS["each"])
        for each in (model, other):
            each.zero_grad()
            each(torch.ones(3, 4)).backward()
        assert executor.effective_plan == PLANS["each"]
        for one, two in zip(model.parameters(), other.parameters()):
            assert torch.equal(one, two)
            assert torch.equal(one.grad, two.grad)
