"""A window of micro-batches that runs out of memory is run again as a whole, or not at all."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mimose
from mimose.plan import Plan

WIDTH, BLOCKS, WINDOW, WINDOWS = 16, 4, 3, 3
FAILING = 4  # In the second window.


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x):
        return x + nn.functional.dropout(self.norm(self.linear(x)).tanh(), 0.2)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(BLOCKS)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def build():
    torch.manual_seed(0)
    return Model().train()


def micro_batch(number):
    generator = torch.Generator().manual_seed(number)
    return torch.randn(4 + number, WIDTH, generator=generator)


class Injected:
    """Runs out of memory once, in a layer's forward or backward pass of one micro-batch."""

    def __init__(self, model, place):
        self.place, self.passes = place, 0
        model.layers[2].register_forward_hook(self)

    def __call__(self, module, inputs, output):
        if torch._C._current_graph_task_id() != -1:
            return
        self.passes += 1
        if self.passes - 1 != FAILING:
            return
        if self.place == "forward":
            self.fail()
        output.register_hook(self.fail)

    def fail(self, *_):
        raise torch.OutOfMemoryError("injected")


def window(model, number, optimizer=None):
    for micro in range(WINDOW):
        (model(micro_batch(number * WINDOW + micro)) / WINDOW).backward()
    if optimizer is not None:
        optimizer.step()


def train(model, handle=None, windows=WINDOWS):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for number in range(windows):
        if handle is None:
            window(model, number)
        else:
            handle.run(lambda number=number: window(model, number))
        optimizer.step()
        optimizer.zero_grad()


def same(a, b):
    return all(torch.equal(x, y) for x, y in zip(a.state_dict().values(), b.state_dict().values()))


@pytest.fixture(scope="module")
def undisturbed():
    model = build()
    train(model)
    return model


OPTIONS = {
    "fixed": {"planner": "fixed", "plan": "keep 0"},
    "full": {"planner": "full"},
    "mimose": {"sheltered": 2},
    "while measuring": {"sheltered": 10},
}


@pytest.mark.parametrize("planner", OPTIONS)
@pytest.mark.parametrize("place", ["forward", "backward"])
def test_the_whole_window_is_run_again(undisturbed, place, planner):
    model = build()
    records = []
    with mimose.attach(model, "1GB", **OPTIONS[planner]) as handle:
        injected = Injected(model, place)
        observe = handle.planner.observe
        handle.planner.observe = lambda record: (records.append(record), observe(record))[1]
        train(model, handle)
        handle.end()
        figures = handle.statistics()
    assert same(model, undisturbed)
    assert injected.passes == WINDOW * WINDOWS + FAILING - WINDOW + 1
    rows = [r.size[0] - 4 for r in records]
    assert rows == [0, 1, 2, 3, 4, 3, 4, 5, 6, 7, 8]
    assert [r.outcome for r in records] == ["retried" if i == 4 else "ok" for i in range(11)]
    assert all(r.plan == Plan.recompute_each(BLOCKS) for r in records[5:8])
    assert figures["num_violations"] == 1


def test_a_micro_batch_alone_is_not_run_again_and_the_text_says_what_would_be(undisturbed):
    model = build()
    with mimose.attach(model, None) as handle:  # Keeps everything: there is more to recompute.
        Injected(model, "backward")

        def one_by_one():
            for number in range(WINDOW * WINDOWS):
                x = micro_batch(number)
                handle.run(lambda x=x: model(x).backward())

        with pytest.raises(torch.OutOfMemoryError, match="runs all micro-batches") as caught:
            one_by_one()
    text = str(caught.value)
    assert type(caught.value) is torch.OutOfMemoryError
    assert len(caught.value.args) == 1
    assert text.startswith("injected Now ")
    assert "are reserved. The largest free block is " in text
    assert "The plan was: keep 0-3." in text


@pytest.mark.parametrize("inside", [False, True])
def test_a_failure_in_the_optimizers_step_is_raised_as_it_is(inside):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    steps = []

    def fail(*_):
        steps.append(len(steps))
        raise torch.OutOfMemoryError("injected")

    with mimose.attach(model, None, "full") as handle:
        optimizer.register_step_pre_hook(fail)

        def step():
            handle.run(lambda: window(model, 0, optimizer if inside else None))
            optimizer.step()

        with pytest.raises(torch.OutOfMemoryError, match="injected") as caught:
            step()
    assert type(caught.value) is torch.OutOfMemoryError
    assert steps == [0]
    assert ("load the last checkpoint" in str(caught.value)) is inside


def test_nothing_is_run_again_once_an_optimizer_has_stepped():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    runs = []

    def two_steps():
        runs.append(len(runs))
        for number in range(2):
            window(model, number, optimizer)
            optimizer.zero_grad()

    with mimose.attach(model, None, "full") as handle:
        Injected(model, "forward")
        with pytest.raises(torch.OutOfMemoryError, match="load the last checkpoint"):
            handle.run(two_steps)
    assert runs == [0]


def test_gradients_that_are_there_are_planned_for():
    """In the second micro-batch of a window they are resident, in the first they grow."""
    model = build()
    seen = []
    with mimose.attach(model, "1GB", sheltered=2) as handle:
        observe = handle.planner.observe
        handle.planner.observe = lambda record: (seen.append(record), observe(record))[1]
        train(model)
    assert [r.situation.grads_resident for r in seen] == [False, True, True] * WINDOWS
    assert [r.optimizer_peak_bytes is None for r in seen] == [True, True, False] * WINDOWS
