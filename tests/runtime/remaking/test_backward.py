"""What may come between a forward pass and its backward pass, and how often backward may come."""

from __future__ import annotations

import gc
import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dropping import Dropping
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional

WIDTH = 8


class Block(nn.Module):
    """Saves its input's projection, a GELU's output, a norm's and a batch norm's."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.batch = nn.BatchNorm1d(WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = self.norm(functional.gelu(self.batch(self.first(x))) + x)
        if mask is not None:
            h = h.masked_fill(mask, 0.0).sigmoid()
        return self.second(h.exp())


def data(seed: int) -> torch.Tensor:
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(seed), requires_grad=True)


def ready(plain: bool = False) -> Any:
    """Return a block that has run once; from then on it drops all that it can."""
    block = Block().train()
    call: Any = block if plain else Dropping(block)
    call(data(0)).sum().backward()
    block.zero_grad()
    return block, call


def gradients(block: nn.Module, *inputs: torch.Tensor) -> list[torch.Tensor | None]:
    return [t.grad for t in (*block.parameters(), *inputs)]


def equal(one: Any, other: Any) -> bool:
    return all((a is None and b is None) or torch.equal(a, b) for a, b in zip(one, other))


def test_two_forwards_before_two_backwards():
    found = []
    for plain in (True, False):
        block, call = ready(plain)
        one, two = data(1), data(2)
        losses = call(one).square().mean(), call(two).square().mean()
        for loss in losses:
            loss.backward()
        found.append(gradients(block, one, two))
        if not plain:
            assert call.calls[1:] == ["dropped"] * 2
    assert equal(*found)


def test_backward_comes_twice():
    found = []
    for plain in (True, False):
        block, call = ready(plain)
        x = data(1)
        loss = call(x).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        found.append(gradients(block, x))
    assert equal(*found)


def test_backward_comes_in_parts():
    found = []
    for plain in (True, False):
        block, call = ready(plain)
        x = data(1)
        loss = call(x).square().mean()
        parts = [
            torch.autograd.grad(loss, p, retain_graph=True)[0] for p in (x, block.norm.weight, x)
        ]
        found.append([*parts, *torch.autograd.grad(loss, list(block.parameters()))])
    assert equal(*found)


def test_gradients_of_gradients():
    found = []
    for plain in (True, False):
        block, call = ready(plain)
        x = data(1)
        (slope,) = torch.autograd.grad(call(x).square().mean(), x, create_graph=True)
        slope.square().sum().backward()
        found.append([slope.detach(), *gradients(block, x)])
        if not plain:
            assert call.calls[-1] == "dropped"
    assert equal(*found)


@pytest.mark.parametrize("name", ["first.weight", "norm.weight", "second.weight"])
def test_a_parameter_is_changed_between(name):
    for plain in (True, False):
        block, call = ready(plain)
        loss = call(data(1)).square().mean()
        with torch.no_grad():
            block.get_parameter(name).mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_parameter_that_only_a_recipe_reads_is_changed_between():
    block, call = ready()
    loss = call(data(1)).square().mean()
    with torch.no_grad():
        block.first.bias.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_input_is_changed_between():
    for plain in (True, False):
        _, call = ready(plain)
        x = data(1)
        loss = call(x).square().mean()
        with torch.no_grad():
            x.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()


def test_a_mask_is_changed_between():
    _, call = ready()
    mask = data(3) > 0
    call(data(0), mask).sum().backward()
    loss = call(data(1), mask).square().mean()
    assert call.calls[-1] == "dropped"
    mask.logical_not_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_parameter_is_replaced_between():
    found = []
    for plain in (True, False):
        block, call = ready(plain)
        x = data(1)
        loss = call(x).square().mean()
        old = dict(block.named_parameters())
        block.first.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        loss.backward()
        found.append([x.grad, *(p.grad for p in old.values())])
    assert equal(*found)


@pytest.mark.parametrize("backward", [True, False])
def test_nothing_is_left_when_a_graph_goes(backward):
    block, call = ready()
    call(data(0)).sum().backward()
    made: list[StorageWeakRef] = []
    for module in block.children():
        module.register_forward_hook(
            lambda module, given, output: made.append(StorageWeakRef(output.untyped_storage()))
        )
    call(data(0)).sum().backward()
    gc.collect()
    gc.disable()
    try:
        del made[:]
        loss = call(data(1)).square().mean()
        assert call.calls[-1] == "dropped"
        left = [reference.expired() for reference in made]
        assert any(left)
        assert not all(left)
        if backward:
            loss.backward()
        else:
            del loss
        assert all(reference.expired() for reference in made)
    finally:
        gc.enable()


def test_hooks_of_others_on_saved_tensors():
    found = []
    for plain in (True, False):
        block, call = ready(plain)
        x = data(1)
        with torch.autograd.graph.save_on_cpu():
            loss = call(x).square().mean()
        loss.backward()
        found.append(gradients(block, x))
        if not plain:
            assert call.calls[-1] == "left alone"
    assert equal(*found)


def test_hooks_on_saved_tensors_are_forbidden():
    _, call = ready()
    with torch.autograd.graph.disable_saved_tensors_hooks("not here"):
        call(data(1)).sum().backward()
    assert call.calls[-1] == "left alone"


def test_hooks_of_the_block_itself():
    class Saving(Block):
        def forward(self, x, mask=None):
            with torch.autograd.graph.save_on_cpu():
                h = functional.gelu(self.first(x))
            return self.second(self.norm(h).exp())

    found = []
    for plain in (True, False):
        block = Saving()
        call: Any = block if plain else Dropping(block)
        for _ in range(3):
            x = data(1)
            call(x).square().mean().backward()
        found.append(gradients(block, x))
        if not plain:
            assert call.calls[-1] == "dropped"
    assert equal(*found)


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("cache", [True, False])
def test_backward_within_autocast_and_outside(inside, cache):
    found = []
    for plain in (True, False):
        block = Block()
        call: Any = block if plain else Dropping(block)
        for _ in range(3):
            x = data(1)
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=cache):
                loss = call(x).float().square().mean()
                if inside:
                    loss.backward()
            if not inside:
                loss.backward()
        found.append(gradients(block, x))
        if not plain:
            assert call.calls[1:] == ["dropped"] * 2
    assert equal(*found)


def test_copies_of_weights_that_autocast_holds_are_not_dropped():
    block = Block()
    call = Dropping(block)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(data(1)).float().sum()
        loss.backward()
    trace = call.trace
    assert trace is not None
    names = trace.graph.names()
    assert {names[v].partition("#")[0] for v in trace.graph.fixed} >= {"to_copy"}
    assert not set(call.choose(trace)) & trace.graph.fixed


def test_weights_that_autocast_has_cached_before_are_read_from_there():
    block = Block()
    block.first = nn.Linear(WIDTH, WIDTH, bias=False)
    call = Dropping(block)
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            block(data(2))
            loss = call(data(1)).float().sum()
        loss.backward()
    assert "mm" in {name.partition("#")[0] for name in call.names}


def test_a_block_that_comes_twice_within_one_autocast():
    found = []
    for plain in (True, False):
        block = Block()
        call: Any = block if plain else Dropping(block)
        for step in range(3):
            x = data(step)
            with torch.autocast("cpu", torch.bfloat16):
                loss = call(call(x).float()).float().square().mean()
            loss.backward()
        found.append(gradients(block, x))
        if not plain:
            assert call.calls == ["traced", *["dropped"] * 5]
    assert equal(*found)


def test_an_error_in_the_forward_pass():
    block, call = ready()
    fails = True

    def hook(module, given, output):
        if fails:
            raise ValueError("not this time")

    block.norm.register_forward_hook(hook)
    with pytest.raises(ValueError, match="not this time"):
        call(data(1))
    fails = False
    call(data(1)).sum().backward()
    call(data(1)).sum().backward()
    assert call.calls[-1] == "dropped"


def test_memory_runs_out_in_a_recipe(monkeypatch):
    from mimose.runtime.remaking import saving

    _, call = ready()
    call(data(1)).sum().backward()
    loss = call(data(1)).sum()
    plain = saving.run

    def run(*args):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(saving, "run", run)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        loss.backward()
    monkeypatch.setattr(saving, "run", plain)
    call(data(1)).sum().backward()
    assert call.calls[-1] == "dropped"


def test_what_does_not_come_out_the_same_is_not_dropped(monkeypatch):
    block = Block()
    call = Dropping(block)
    call(data(0)).sum().backward()
    assert call.trace is not None
    # As a kernel does whose sums come in another order each time.
    place = [o.name for o in call.trace.graph.operators].index("gelu")
    step = call.trace.steps[place]
    assert step is not None
    steps = list(call.trace.steps)
    steps[place] = type(step)(lambda *a, **k: step.function(*a, **k) * (1 + 1e-7), *_rest(step))
    object.__setattr__(call.trace, "steps", tuple(steps))
    call(data(1)).sum().backward()
    assert call.calls[-1] == "strayed"


def _rest(step: Any) -> tuple[Any, ...]:
    return step.args, step.kwargs, step.outputs, step.given


def test_a_block_that_saves_something_else_each_time_is_left_alone():
    turns = itertools.count(1)

    class Fickle(Block):
        def forward(self, x, mask=None):
            h = functional.gelu(self.first(x))
            for _ in range(next(turns) % 2 + 1):
                h = self.second(h)
            return h.exp()

    call = Dropping(Fickle())
    for _ in range(10):
        call(data(1)).sum().backward()
    assert call.calls.count("strayed") == 3
    assert call.calls[-1] == "left alone"
    assert call.remaker.strays == 3


@pytest.mark.parametrize("what", ["module", "function", "attention"])
def test_what_is_compiled_within_a_block_is_left_alone(what):
    block = Block()
    if what == "module":
        block.second.compile(backend="eager")
    elif what == "function":
        block.act = torch.compile(functional.gelu, backend="eager")
    else:
        block.config = SimpleNamespace(_attn_implementation="flex_attention")
    call = Dropping(block)
    assert call.remaker.look((0, 0), call.wrapper, (data(0),), {}) is None
