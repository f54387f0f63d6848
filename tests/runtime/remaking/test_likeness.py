"""A choice made for one graph, carried out on another that the same block has at other sizes."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

import mimose
from mimose.devices.cpu import CpuDevice
from mimose.menu import BlockGraph, Operator, Traced
from mimose.plan import Plan, Remade
from mimose.planners.bound import Bound, recompute_all
from mimose.records import Decision
from mimose.runtime.remaking.likeness import translated

PLANNED = BlockGraph(
    (
        Operator("addmm", (), (0,), True),
        Operator("gelu", (0,), (1,), True),
        Operator("addmm", (1,), (2,), True),
    ),
    uses=(2, 1, 0),
)
# Something comes before, and the last product is drawn now.
PADDED = BlockGraph(
    (
        Operator("pad", (), (0,), True),
        Operator("addmm", (0,), (1,), True),
        Operator("gelu", (1,), (2,), True),
        Operator("addmm", (2,), (3,), False),
    ),
    uses=(3, 2, 1, 0),
)


def test_values_are_found_by_their_names() -> None:
    remade = Remade(4, (0, 1), (), PLANNED.digest)
    assert translated(remade, PLANNED, PADDED) == Remade(4, (1, 2), (), PADDED.digest)


def test_what_cannot_go_there_stays() -> None:
    remade = Remade(4, (1, 2), (0,), PLANNED.digest)
    assert translated(remade, PLANNED, PADDED) == Remade(4, (2,), (1,), PADDED.digest)
    assert translated(Remade(4, (2,), (), PLANNED.digest), PLANNED, PADDED) is None


class Layer(nn.Module):
    """Pads lengths to multiples of four, which takes an operator or two more."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[1]
        if length % 4:
            x = functional.pad(x, (0, 0, 0, 4 - length % 4)).sin()
        return x[:, :length] + self.down(functional.gelu(self.up(x)))[:, :length]


class Dropping(Bound):
    """Drops GELU's output in every block, by the graph of the first step."""

    name = "dropping"
    rescued = True

    def __init__(self) -> None:
        super().__init__()
        self.traced: dict[int, Traced] = {}
        self.plans: list[Plan] = []

    def plan(self, size, situation):
        if not self.traced:
            return Decision(recompute_all(self.info), "sheltered", collect=True, trace=True)
        remade = [
            Remade(t.block, (t.graph.names().index("gelu"),), (), t.graph.digest)
            for t in self.traced.values()
        ]
        return Decision(Plan(self.info.num_blocks, (), (), tuple(remade)))

    def observe(self, record):
        self.plans.append(record.plan)
        if record.collected is not None:
            self.traced.update((t.block, t) for t in record.collected.traced)

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_block_of_two_graphs_drops_the_same_in_both(repeats: int) -> None:
    device = CpuDevice()
    torch.manual_seed(0)
    model = nn.Sequential(*[Layer() for _ in range(3)]).train()
    device.adopt(model)
    plain = copy.deepcopy(model)
    planner = Dropping()
    handle = mimose.attach(model, "1GB", planner=planner, device=device)
    for length in (8, 8, *[7] * repeats, 12):
        x = device.put(torch.randn(2, length, 8))
        model(x).square().sum().backward()
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        plain(x).square().sum().backward()
        expected = [p.grad.clone() for p in plain.parameters() if p.grad is not None]
        plain.zero_grad()
        assert all(map(torch.equal, found, expected))
    handle.end()
    assert handle._executor.remaker.missed == 0
    digests = [{r.graph for r in plan.remade} for plan in planner.plans]
    assert [len(plan.remade) for plan in planner.plans[1:]] == [3] * (2 + repeats)
    assert digests[1] == digests[-1] != digests[2]
    handle.detach()
    device.close()
