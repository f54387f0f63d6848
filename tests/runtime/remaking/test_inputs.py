"""A block's inputs that it does not save: held where something is made again from them."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from dropping import Dropping, both
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

WIDTH = 8
LENGTH = 6


class Attention(nn.Module):
    """Adds a bias to its scores, as T5 does: adding saves neither of the two."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        scores += bias
        return nn.functional.gelu(self.value(scores.softmax(-1) @ x)).sin()


def call(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(2, LENGTH, WIDTH, generator=generator, requires_grad=True)
    return x, torch.randn(2, LENGTH, LENGTH, generator=generator, requires_grad=True)


def named(trace: Any, name: str) -> tuple[int, ...]:
    return tuple(v for v, n in enumerate(trace.graph.names()) if n == name)


def dropping(name: str) -> Dropping:
    """Return a block that has been traced and drops the value of that name from then on."""
    found = Dropping(Attention(), lambda trace: named(trace, name))
    found(*call(0)).sum().backward()
    return found


def test_what_is_made_from_an_input_that_needs_a_gradient_is_dropped() -> None:
    outcome = both(Attention(), lambda step: (call(step), {}))
    assert outcome.calls == ["traced", "dropped", "dropped"]
    assert "softmax" in outcome.dropping.names


class Norm(nn.Module):
    """Casts its input up, as norms in bfloat16 do: the copy is saved, and not the input."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight = nn.Parameter(torch.ones(WIDTH, dtype=torch.bfloat16))
        self.linear = nn.Linear(WIDTH, WIDTH, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return x + self.linear(self.weight * h.to(x.dtype))


def test_what_an_input_is_cast_to_is_dropped() -> None:
    def inputs(step: int) -> Any:
        x = call(step)[0].detach().bfloat16().requires_grad_()
        return (x,), {}

    outcome = both(Norm(), inputs)
    assert outcome.calls == ["traced", "dropped", "dropped"]
    trace = outcome.dropping.trace
    first = trace.graph.operators[0]
    assert (first.name, first.holds) == ("to_copy", True)
    assert first.outputs[0] in outcome.dropping.choose(trace)


def test_a_graph_says_what_holds_inputs() -> None:
    block = dropping("softmax")
    assert block.trace is not None
    graph = block.trace.graph
    assert graph.holds(named(block.trace, "softmax"))
    assert graph.holds(graph.droppable())
    assert not graph.holds(named(block.trace, "gelu"))
    # The block saves `x` itself.
    assert [op.name for op in graph.operators if op.holds] == ["add"]


@pytest.mark.parametrize(("name", "held"), [("softmax", True), ("gelu", False)])
def test_an_input_is_held_until_backward_only_where_it_is_read(name: str, held: bool) -> None:
    block = dropping(name)
    x, bias = call(1)
    bias = bias * 1.0  # It is no leaf, which its gradient would hold on to.
    reference = StorageWeakRef(bias.untyped_storage())
    result = block(x, bias)
    assert block.calls == ["traced", "dropped"]
    del bias
    gc.collect()
    assert reference.expired() is not held
    result.sum().backward()
    del result
    assert reference.expired()


def test_an_input_that_was_changed_since_is_refused() -> None:
    block = dropping("softmax")
    x, bias = call(1)
    bias = bias * 1.0
    result = block(x, bias)
    bias += 1.0
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()
