"""Whole models under a plan that drops all it can: the same numbers, and less memory."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from dropper import Dropper
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import mimose
from mimose.devices import open_device

WIDTH = 16


class Layer(nn.Module):
    """A block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        h = functional.gelu(self.up(self.norm(x)))
        if mask is not None:
            h = h * mask
        return x + self.drop(self.down(h))


class Model(nn.Module):
    """Four blocks, the last two of which are one module that is called twice."""

    def __init__(self, layer: type[nn.Module] = Layer) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([layer(), layer(), layer()])
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mask = torch.ones(1)
        for block in (*self.layers, self.layers[-1]):
            x = block(x, mask=mask)
        return self.head(x).square().mean()


def batch(step: int) -> torch.Tensor:
    return torch.randn(4 + step % 2, 8, WIDTH, generator=torch.Generator().manual_seed(step))


def blocks_of(model: nn.Module) -> list[str]:
    return [name for name, _ in model.named_modules() if name.count(".") == 1 and "layers" in name]


Loop = Callable[[Callable[..., torch.Tensor], nn.Module, torch.optim.Optimizer], None]


def loop(call: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in range(6):
        call(batch(step)).backward()
        optimizer.step()
        optimizer.zero_grad()


def train(
    make: Callable[[], nn.Module], drop: bool, how: Loop = loop
) -> tuple[list[torch.Tensor], Dropper | None, Any]:
    model = make()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    torch.manual_seed(1)
    planner = Dropper() if drop else None
    handle = None
    if planner is not None:
        handle = mimose.attach(
            model,
            "1GB",
            planner=planner,
            size=lambda args, kwargs: tuple(args[0].shape[:2]),
            blocks=blocks_of(model),
        )
    how(model, model, optimizer)
    if handle is not None:
        handle.detach()
    return [p.detach().clone() for p in model.parameters()], planner, handle


def same(make: Callable[[], nn.Module], how: Loop = loop) -> tuple[Dropper, Any]:
    plain, _, _ = train(make, False, how)
    dropped, planner, handle = train(make, True, how)
    assert all(map(torch.equal, plain, dropped))
    assert planner is not None
    return planner, handle._executor.remaker


def dropping(planner: Dropper) -> list[int]:
    """Return how many blocks dropped something in each step."""
    return [len(getattr(record.plan, "remade", ())) for record in planner.records]


def test_a_block_that_is_called_twice():
    planner, remaker = same(Model)
    assert dropping(planner)[:5] == [0, 4, 4, 4, 4]
    assert remaker.strays == remaker.missed == 0


def test_gradients_are_accumulated_over_graphs_at_once():
    def both_at_once(call, model, optimizer):
        call(batch(0)).backward()
        for step in range(0, 8, 2):
            one, two = call(batch(step)), call(batch(step + 1))
            one.backward()
            two.backward()
            optimizer.step()
            optimizer.zero_grad()

    planner, remaker = same(Model, both_at_once)
    assert 4 in dropping(planner)
    assert remaker.strays == remaker.missed == 0


class Nested(Layer):
    """Recomputes a part of itself."""

    def forward(self, x, mask=None):
        h = checkpoint(lambda t: functional.gelu(self.up(self.norm(t))), x, use_reentrant=False)
        return x + self.drop(self.down(h))


def test_a_checkpoint_within_a_block():
    planner, _ = same(lambda: Model(Nested))
    assert not any(dropping(planner))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiled_blocks_are_left_alone():
    def make():
        model = Model()
        for layer in model.layers:
            layer.compile(backend="eager")
        return model

    planner, _ = same(make)
    assert not any(dropping(planner))


def test_attached_models_are_copied_and_pickled():
    model = Model()
    planner = Dropper()
    handle = mimose.attach(model, "1GB", planner=planner, blocks=blocks_of(model))
    for step in range(4):
        model(batch(step)).backward()
    assert any(dropping(planner))
    twin = copy.deepcopy(model)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    handle.detach()
    model.eval()
    for other in (twin, loaded):
        assert torch.equal(other.eval()(batch(0)), model(batch(0)))


def test_hooks_on_saved_tensors_around_the_model():
    def around(call, model, optimizer):
        for step in range(4):
            with torch.autograd.graph.save_on_cpu():
                loss = call(batch(step))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    planner, remaker = same(Model, around)
    assert not any(dropping(planner))
    assert remaker.strays == 0


def test_an_error_in_the_middle_of_a_step():
    def failing(call, model, optimizer):
        for step in range(6):
            if step % 3 == 2:
                with pytest.raises(RuntimeError):
                    call(torch.zeros(1, 2, WIDTH + 1))
            call(batch(step)).backward()
            optimizer.step()
            optimizer.zero_grad()

    planner, _ = same(Model, failing)
    assert 4 in dropping(planner)


def test_the_rate_of_dropout_falls():
    def falling(call, model, optimizer):
        for step in range(8):
            for layer in model.layers:
                layer.drop.p = 0.5 - 0.2 * (step // 3)
            call(batch(0)).backward()
            optimizer.step()
            optimizer.zero_grad()

    planner, remaker = same(Model, falling)
    assert dropping(planner)[1:7] == [4] * 6
    assert remaker.strays == 0


def test_memory_falls():
    device = open_device("cpu")
    try:
        levels = {}
        for drop in (False, True):
            model = Model()
            device.adopt(model)
            planner = Dropper()
            options = {"planner": planner, "device": device, "blocks": blocks_of(model)}
            handle = mimose.attach(model, "1GB", **options) if drop else None
            x = device.put({"x": batch(0).repeat(64, 1, 1)})["x"]
            for _ in range(4):
                model.zero_grad()
                gc.collect()
                before = device.allocated_bytes()
                loss = model(x)
                levels[drop] = device.allocated_bytes() - before
                loss.backward()
                del loss
                model.zero_grad()
                assert device.allocated_bytes() <= before
            if handle is not None:
                told = sum(
                    sum(t.bytes[v] for v in r.dropped)
                    for r in planner.records[-1].plan.remade
                    for t in [planner.traced[r.block]]
                )
                handle.detach()
        assert told > 0
        assert levels[False] - levels[True] == told
    finally:
        device.close()
