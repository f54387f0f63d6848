"""Blocks whose forward changes their own attributes: no two calls are alike, and plans hold."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import mimose
from mimose.devices import open_device

WIDTH, ROWS, BLOCKS = 32, 48, 6
LENGTHS = (64, 32, 48, 64, 56, 64, 40, 64, 32, 48, 40, 36)


class Counting(nn.Module):
    """Scales by how often it was called: a warm-up."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        x = x * (1 + 0.01 * self.calls)
        return x + self.down(functional.gelu(self.up(x)))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList(Counting() for _ in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def train(budget=None, planner="auto"):
    """Train; return the gradients of each step, as sums, the counts, and the records."""
    device = open_device("cpu", allocator="expandable")
    torch.manual_seed(0)
    model = device.build(Model).train()
    device.adopt(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    handle = None
    if budget is not None:
        handle = mimose.attach(model, budget, planner, device=device, blocks=["layers.*"])
    sums, records = [], []
    for length in LENGTHS:
        model(device.put(torch.randn(ROWS, length, WIDTH))).backward()
        sums.append([float(p.grad.double().sum()) for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad()
        records.append(None if handle is None else handle.last_record)
    counts = [layer.calls for layer in model.layers]
    if handle is not None:
        handle.detach()
    device.close()
    return sums, counts, records


@pytest.mark.parametrize("planner", ["auto", "mimose"])
@pytest.mark.parametrize("budget", [7884 << 10, 12 << 20])
def test_it_trains_the_same_as_planned(budget, planner):
    sums, counts, _ = train()
    assert counts == [len(LENGTHS)] * BLOCKS
    attached, counted, records = train(budget, planner)
    assert attached == sums
    assert counted == counts
    responsive = [r for r in records if r.phase == "responsive"]
    assert responsive
    for record in responsive:
        assert record.predicted_peak_bytes >= 0.99 * record.peak_allocated_bytes
