"""Recording the data flow holds nothing: the pass that is watched may be measured as well."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from mimose.devices import open_device
from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor


class Layer(nn.Module):
    """Returns its weights as well, as many an attention layer does."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.softmax(self.first(x) @ x.transpose(1, 2), -1)
        return self.second(weights @ x), weights


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x, _ = layer(x)
        return x


def test_the_first_pass_takes_no_more_than_the_second():
    device = open_device("cpu", reset_peaks=True)
    try:
        model = Model().train()
        device.adopt(model)
        executor = Executor(model, device, find_blocks(model))
        levels = []
        for _ in range(2):
            executor.begin(Plan.recompute_each(4), collect=True)
            model(device.put(torch.ones(2, 128, 64, requires_grad=True))).sum().backward()
            model.zero_grad()
            levels.append([sample.level_bytes for sample in executor.collected().blocks])
        assert levels[0] == pytest.approx(levels[1], abs=64 << 10)  # Weights take 128 KiB.
        assert executor.cuts == ()
    finally:
        device.close()
