"""What a kept block lets go of: an input that it saves nothing of, and autocast's copies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.records import Collected
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

WIDTH, ROWS, BLOCKS = 32, 64, 3
INPUT = 4 * WIDTH * ROWS


class Block(nn.Module):
    """Saves its input only if it is asked to."""

    def __init__(self, saves: bool) -> None:
        super().__init__()
        self.saves = saves
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x if self.saves else x + 1) + 1


class Model(nn.Module):
    def __init__(
        self, saves: bool = False, reads: bool = False, tanh: bool = False, holds: bool = False
    ) -> None:
        super().__init__()
        self.reads, self.tanh, self.holds = reads, tanh, holds
        self.first = nn.Linear(WIDTH, WIDTH)
        self.layers = nn.ModuleList([Block(saves) for _ in range(BLOCKS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x.tanh() if self.tanh else x + 1
        held, between = [x] if self.holds else [], []
        for layer in self.layers:
            x = layer(x)
            between.append(x)
        if not self.reads:
            between.clear()
        held.clear()
        return (x + sum(between)).sum()


class Viewing(Block):
    """Returns a view of what it returns beside it."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = super().forward(x)
        return x, x.view(-1)


class ViewsAreHeld(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Viewing(False) for _ in range(BLOCKS)])
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x) + 1
        held = []
        for layer in self.layers:
            x, view = layer(x)
            held.append(view)
        return x.sum() + sum(view.sum() for view in held)


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def collect(
    device: CpuDevice, model: nn.Module, autocast: bool = False, within: bool = False
) -> Collected:
    model.train()
    device.adopt(model)
    x = device.put(torch.ones(ROWS, WIDTH))
    executor = Executor(model, device, find_blocks(model, ["layers.*"]))
    for _ in range(2):
        executor.begin(Plan.keep_all(BLOCKS), collect=True)
        with torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext():
            loss = model(x)
            if within:
                loss.backward()
        if not within:
            loss.backward()
        del loss
        collected = executor.collected()
    executor.detach()
    assert collected is not None
    return collected


@pytest.mark.parametrize(
    ("settings", "freed", "late"),
    [
        ({}, [INPUT, INPUT, INPUT], [0, 0, 0]),
        ({"holds": True}, [0, INPUT, INPUT], [INPUT, 0, 0]),
        ({"saves": True}, [0] * 3, [0] * 3),
        ({"reads": True}, [INPUT, 0, 0], [0, 0, 0]),
        ({"tanh": True}, [0, INPUT, INPUT], [0, 0, 0]),
    ],
    ids=["nothing", "held", "saved by the block", "read elsewhere", "saved by what made it"],
)
def test_an_input_is_let_go_of_where_nothing_saves_it(settings, freed, late, cpu):
    blocks = collect(cpu, Model(**settings)).blocks
    assert [b.freed_bytes for b in blocks] == freed
    assert [b.freed_late_bytes for b in blocks] == late


def test_what_is_held_through_a_view_is_not_let_go_of(cpu):
    blocks = collect(cpu, ViewsAreHeld()).blocks
    assert [b.freed_bytes for b in blocks] == [INPUT, 0, 0]
    assert [b.freed_late_bytes for b in blocks] == [0] * BLOCKS


def test_copies_of_weights_are_told_from_activations(cpu):
    plain = collect(cpu, Model(saves=True)).blocks
    assert all(b.copy_bytes == b.saved_copy_bytes == 0 for b in plain)
    weight, bias = 2 * WIDTH * WIDTH, 512
    for within, saved in ((False, weight), (True, 0)):
        blocks = collect(cpu, Model(saves=True), autocast=True, within=within).blocks
        # The bias' copy stays as well while autocast is on, and nothing saves it.
        assert [b.copy_bytes for b in blocks] == [weight + bias] * BLOCKS
        assert [b.saved_copy_bytes for b in blocks] == [saved] * BLOCKS
        # Nothing is left but the input, which is of that type already.
        assert [b.activation_bytes for b in blocks] == [0] * BLOCKS


def test_copies_that_go_when_autocast_ends_are_not_part_of_what_the_head_takes(cpu):
    collected = collect(cpu, Model(saves=True), autocast=True)
    copies = sum(b.copy_bytes for b in collected.blocks)
    assert copies > 0
    assert collected.head_peak_bytes <= collected.loss_peak_bytes - copies
    # They are still there in backward.
    inside = collect(cpu, Model(saves=True), autocast=True, within=True)
    assert inside.head_peak_bytes >= collected.head_peak_bytes + copies
