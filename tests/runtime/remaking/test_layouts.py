"""A parameter that lies elsewhere in its storage than when its block was traced."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from dropper import Dropper
from torch import nn
from torch.nn import functional
from torch.nn.utils import parameters_to_vector, vector_to_parameters

import mimose
from mimose.devices.cpu import CpuDevice

WIDTH = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, act: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        return x + self.down(act(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(3)])
        self.factor = 0.5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            factor = self.factor
            # Another function in each forward, often where the last one was.
            x = layer(x, lambda t, factor=factor: functional.gelu(t * factor))
        return x


def flattened(model: nn.Module) -> None:
    vector_to_parameters(parameters_to_vector(model.parameters()).detach(), model.parameters())


def turned(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data = parameter.data.t().contiguous().t()


def rescaled(model: nn.Module) -> None:
    model.factor = 0.9


@pytest.mark.parametrize("change", [flattened, turned, rescaled])
def test_what_has_changed_place_is_not_read_where_it_was(
    change: Callable[[nn.Module], None],
) -> None:
    device = CpuDevice()
    torch.manual_seed(0)
    model = Model().train()
    device.adopt(model)
    plain = copy.deepcopy(model)
    handle = mimose.attach(model, "1GB", planner=Dropper(), device=device)
    for step in range(8):
        if step == 5:
            change(model)
            change(plain)
        x = device.put(torch.randn(4, 16, WIDTH))
        found = []
        for each in (model, plain):
            each.zero_grad()
            each(x).square().sum().backward()
            found.append([p.grad.clone() for p in each.parameters() if p.grad is not None])
        assert all(map(torch.equal, *found)), step
    handle.detach()
    device.close()
