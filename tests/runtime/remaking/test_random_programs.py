"""Blocks made up at random of views, changes in place, dropout and the rest: the plain numbers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dropping import Dropping, Outcome, same, steps
from torch import nn
from torch.nn import functional

ROWS, WIDTH = 4, 8
QUICK = 40
Operation = Callable[[nn.Module, torch.Tensor, torch.Tensor], torch.Tensor]

NEW: list[Operation] = [
    lambda b, x, y: functional.gelu(x),
    lambda b, x, y: x.sigmoid(),
    lambda b, x, y: x.tanh(),
    lambda b, x, y: x.softmax(-1),
    lambda b, x, y: functional.relu(x),
    lambda b, x, y: functional.silu(x),
    lambda b, x, y: x + y,
    lambda b, x, y: x * y.tanh(),
    lambda b, x, y: (x - y).abs().sqrt().tanh(),
    lambda b, x, y: b.first(x),
    lambda b, x, y: b.second(x).tanh(),
    lambda b, x, y: b.norm(x),
    lambda b, x, y: b.batch(x),
    lambda b, x, y: b.drop(x),
    lambda b, x, y: torch.native_dropout(x, 0.3, True)[0],
    lambda b, x, y: torch.where(x > y, x, y * 0.5),
    lambda b, x, y: torch.cat([x[:, :3], y[:, 3:]], 1),
    lambda b, x, y: x.masked_fill(y > 0, 0.25),
    lambda b, x, y: (x @ y.t()).softmax(-1) @ y,
    lambda b, x, y: x * b.state,
    lambda b, x, y: x.clone(),
    lambda b, x, y: x.t().contiguous().t(),
    lambda b, x, y: x + torch.randn_like(x),
    lambda b, x, y: x.max(0, keepdim=True).values + y,
    lambda b, x, y: x / (1 + y.pow(2).mean(-1, keepdim=True)),
    lambda b, x, y: x[y[:, 0].argsort()],
    lambda b, x, y: x.detach() * y,
]
VIEWS: list[Operation] = [
    lambda b, x, y: x.view(2, 2, WIDTH).view(ROWS, WIDTH) if x.is_contiguous() else x,
    lambda b, x, y: x.unsqueeze(0).squeeze(0),
    lambda b, x, y: x[:1].expand(ROWS, WIDTH),
    lambda b, x, y: x.t().t(),
    lambda b, x, y: x.unflatten(1, (2, 4)).flatten(1),
]


def _in_place(change: Callable[[torch.Tensor, torch.Tensor], Any]) -> Operation:
    def run(b: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.is_leaf:
            x = x * 1.0
        change(x, y)
        return x

    return run


CHANGES: list[Operation] = [
    _in_place(lambda x, y: x.mul_(0.5)),
    _in_place(lambda x, y: x.add_(y.detach().clone())),
    _in_place(lambda x, y: x.relu_()),
    _in_place(lambda x, y: x.masked_fill_(y.detach() > 0.5, 0.1)),
    _in_place(lambda x, y: x[:, :4].add_(1.0)),
    _in_place(lambda x, y: x.view(-1).mul_(1.5) if x.is_contiguous() else None),
    _in_place(lambda x, y: x.tanh_()),
    _in_place(lambda x, y: x.copy_(y.clone())),
    _in_place(lambda x, y: x[0].zero_()),
    _in_place(lambda x, y: x.detach().clamp_(-1, 1)),
]


class Program(nn.Module):
    """A block that runs a program."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        draw = random.Random(seed)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)
        self.drop = nn.Dropout(0.3)
        self.register_buffer("state", torch.linspace(0.5, 1.5, WIDTH))
        self.program = []
        for _ in range(draw.randint(4, 20)):
            kind = draw.choices(("new", "views", "changes"), (6, 2, 2))[0]
            number = draw.randrange(len(_KINDS[kind]))
            self.program.append((kind, number, draw.random(), draw.random()))
        self.outputs = draw.randint(1, 2)

    def forward(self, x: torch.Tensor) -> Any:
        there = [x]
        for kind, number, one, other in self.program:
            # Recent ones more often.
            first = there[-1 - int(one * one * len(there))]
            second = there[-1 - int(other * len(there))]
            there.append(_KINDS[kind][number](self, first, second))
        return tuple(there[-self.outputs :])


_KINDS = {"new": NEW, "views": VIEWS, "changes": CHANGES}


def inputs(step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(ROWS, WIDTH, generator=generator).requires_grad_(),), {}


def outcome(seed: int, drop: bool, choose: Any = None) -> Outcome | str:
    try:
        return steps(Program(seed), inputs, drop, choose=choose)
    except RuntimeError as error:
        return "changed" if "inplace operation" in str(error) else str(error)


def check(seed: int) -> str:
    plain = outcome(seed, False)
    draw = random.Random(seed)

    def some(trace: Any) -> tuple[int, ...]:
        chosen: list[int] = []
        for value in trace.graph.droppable():
            if draw.random() < 0.5 and trace.graph.can_drop([*chosen, value]):
                chosen.append(value)
        return tuple(chosen)

    for choose in (None, some):
        dropped = outcome(seed, True, choose)
        if isinstance(plain, str) or isinstance(dropped, str):
            assert plain == dropped
            continue
        assert same(plain, dropped)
        call = dropped.dropping
        assert isinstance(call, Dropping)
        assert not call.remaker._proofs._bad
        assert "strayed" not in dropped.calls
    return plain if isinstance(plain, str) else " ".join(dropped.calls)


@pytest.mark.parametrize("seed", range(QUICK))
def test_a_program(seed):
    check(seed)


@pytest.mark.slow
def test_many_programs():
    found = [check(seed) for seed in range(QUICK, 600)]
    # Others are refused by PyTorch itself, with and without dropping.
    ran = [calls for calls in found if calls.startswith("traced")]
    assert ran.count("traced dropped dropped") > len(ran) / 2
