"""What a kept block holds that a recomputed one does not show at once."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mimose
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.records import Collected, StepRecord
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor
from mimose.runtime.holding import KNOWS_HOOKS, Held, Holding

WIDTH, ROWS = 32, 16


class Checkpoints(nn.Module):
    """Has a checkpoint of its own, whose input nothing else saves: the linear layer copies it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.down(nn.functional.gelu(self.up(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        turned = x.transpose(1, 2).contiguous().transpose(1, 2) * 1.5
        return turned + checkpoint(self.inner, turned, use_reentrant=False)


class Caches(nn.Module):
    """Reads from its second call on what it has made in the one before, and saves more for that."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.cache: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) if self.cache is None else self.linear((x + self.cache).exp().exp())
        self.cache = y.detach().mean((0, 1))
        return y.sigmoid()


class Keeps(nn.Module):
    """Keeps nothing of its input for backward but what it makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x + 1) + 1


class Stack(nn.Module):
    def __init__(self, block: type[nn.Module], count: int = 3, holds: bool = False) -> None:
        super().__init__()
        self.holds = holds
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([block() for _ in range(count)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, held = self.first(x) + 1, []
        for layer in self.layers:
            x = layer(x)
            if self.holds:
                held.append(x)
        return x.sum()


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def train(device: CpuDevice, block: type[nn.Module], planner: str) -> list[StepRecord]:
    torch.manual_seed(0)
    model = Stack(block).train()
    device.adopt(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    records = []
    options = {"sheltered": 3} if planner == "mimose" else {}
    with mimose.attach(
        model, "1GB", planner, device=device, blocks=["layers.*"], **options
    ) as handle:
        for length in (128, 64, 96, 128, 128, 112):
            model(device.put(torch.randn(ROWS, length, WIDTH))).backward()
            optimizer.step()
            optimizer.zero_grad()
            records.append(handle.last_record)
    return [record for record in records if record.phase == "responsive"]


@pytest.mark.parametrize("planner", ["mimose", "auto"])
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(
            Checkpoints, marks=pytest.mark.skipif(not KNOWS_HOOKS, reason="PyTorch < 2.8")
        ),
        Caches,
    ],
)
def test_peaks_of_kept_blocks_are_not_predicted_too_low(
    cpu: CpuDevice, block: type[nn.Module], planner: str
) -> None:
    records = train(cpu, block, planner)
    assert records
    for record in records:
        assert record.plan == Plan.keep_all(3)
        assert record.predicted_peak_bytes >= 0.99 * record.peak_allocated_bytes


def collect(device: CpuDevice, model: nn.Module) -> Collected:
    device.adopt(model.train())
    executor = Executor(model, device, find_blocks(model, ["layers.*"]))
    executor.begin(Plan.keep_all(5), collect=True)
    model(device.put(torch.ones(ROWS, WIDTH))).backward()
    collected = executor.collected()
    executor.detach()
    assert collected is not None
    return collected


@pytest.mark.parametrize("holds", [False, True])
def test_what_a_caller_holds_on_to_is_not_gone_after_the_block(cpu: CpuDevice, holds: bool) -> None:
    x = torch.ones(1, requires_grad=True) * 1
    saved = x.sin()
    if holds and sys.getrefcount(x) == 2:
        pytest.skip("this PyTorch has no reference of its own to what is saved for backward")
    del saved
    size = 4 * WIDTH * ROWS
    blocks = collect(cpu, Stack(Keeps, 5, holds)).blocks[1:]
    assert [b.freed_bytes for b in blocks] == [0 if holds else size] * 4
    assert [b.freed_late_bytes for b in blocks] == [size if holds else 0] * 4


def test_what_was_held_is_let_go_of_at_the_end_of_the_segment() -> None:
    holding, held = Holding(), Held(None)
    tensor = holding.take(held, torch.ones(1))
    assert held.tensor is tensor
    holding.end()
    assert held.tensor is None
