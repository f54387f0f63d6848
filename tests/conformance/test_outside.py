"""Blocks that are trained outside of the model's forward pass: warned of once, nothing else is."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import mimose

WIDTH = 8


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH)) for _ in range(3)])

    def encode(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def forward(self, x):
        return self.encode(x).pow(2).mean()

    def training_step(self, x):
        return self.encode(x).abs().mean()


def steps(model, losses, count):
    """Train on what ``losses`` are for each step; return the warnings, each with its step."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    said = []
    for number in range(count):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for loss in losses(number):
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        said += [(number, str(w.message)) for w in caught if w.category is UserWarning]
    return said


@pytest.mark.parametrize("planner", ["full", "baseline"])
def test_a_method_that_trains_blocks_beside_the_forward_pass_is_warned_of_once(planner):
    model = Model().train()
    x = torch.ones(2, WIDTH)
    with mimose.attach(model, None, planner):
        (said,) = steps(model, lambda _: [model(x), model.training_step(x)], 6)
    assert said[0] == 2, "at the third step"
    assert "blocks of Model are being trained outside of its forward pass" in said[1]


def test_what_does_not_train_blocks_there_is_not_warned_of():
    model = Model().train()
    x = torch.ones(2, WIDTH)

    def losses(number):
        model.training_step(x)  # Has gradients, and no backward pass.
        with torch.no_grad():
            model.training_step(x)
        model.eval()
        model.training_step(x).backward()  # Of inputs, say: nothing is trained in eval mode.
        model.train()
        model.zero_grad()
        yield model(x)
        yield model(torch.ones(0, WIDTH)).nan_to_num()  # A pass in no step is the model's own.
        if number % 3 == 0 and number < 6:
            yield model.training_step(x)  # Twice, as a user's probe may.

    with mimose.attach(model, None, "baseline"):
        assert steps(model, losses, 8) == []


def test_detached_nothing_is_looked_at():
    model = Model().train()
    handle = mimose.attach(model, None, "full")
    x = torch.ones(2, WIDTH)
    model(x).backward()
    loss = model.training_step(x)
    handle.detach()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss.backward()
