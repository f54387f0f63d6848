"""A loop that does nothing about running out of memory: what the error says, what is learned."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import mimose

WIDTH, BLOCKS = 16, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + self.linear(x).tanh()


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


def fail(*_):
    raise torch.OutOfMemoryError("injected")


def in_forward(model, optimizer):
    return model.layers[2].register_forward_hook(fail)


def in_backward(model, optimizer):
    def hook(module, inputs, output):
        output.register_hook(fail)

    return model.layers[2].register_forward_hook(hook)


def in_recomputation(model, optimizer):
    def hook(module, inputs):
        if torch._C._current_graph_task_id() != -1:
            fail()

    return model.layers[2].linear.register_forward_pre_hook(hook)


def in_optimizer(model, optimizer):
    return optimizer.register_step_pre_hook(fail)


PLANS = {
    "keep 0 | recompute each 1-3": r"Give handle\.run\(\) a function .*",
    "recompute each 0-3": r"Every block was recomputed already, .* use a smaller batch\.",
}


def train(model, inject, steps=3, plan="recompute each 0-3"):
    """Take a step that fails and go on; return the error, and what became of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    observed, outcomes = [], []
    with mimose.attach(model, "1GB", "fixed", plan=plan) as handle:
        observe = handle.planner.observe
        handle.planner.observe = lambda record: (observed.append(record), observe(record))[1]
        error = None
        for number in range(steps):
            injected = inject(model, optimizer) if number == 1 else None
            try:
                model(torch.ones(2 + number, WIDTH)).backward()
                optimizer.step()
            except torch.OutOfMemoryError as caught:
                error = caught
                error.__traceback__ = None
            finally:
                if injected is not None:
                    injected.remove()
            optimizer.zero_grad()
        summary = handle.summary()
        outcomes = handle.statistics()
    return error, observed, outcomes, summary


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("inject", [in_forward, in_backward, in_recomputation])
def test_the_error_has_the_figures_and_its_step_teaches_nothing(inject, plan):
    error, observed, figures, summary = train(build(), inject, plan=plan)
    assert type(error) is torch.OutOfMemoryError
    (text,) = error.args
    assert re.fullmatch(
        r"injected Now \S+ \S+ are allocated and \S+ \S+ are reserved\. The largest free block is "
        rf"\S+ \S+\. The plan was: {re.escape(plan)}\. {PLANS[plan]}",
        text,
    ), text
    assert [r.size[0] for r in observed] == [2, 4]
    assert figures["num_violations"] == 1
    assert "violations: 1" in summary


def test_an_optimizers_step_that_fails_is_not_observed_as_done():
    error, observed, figures, _ = train(build(), in_optimizer)
    assert str(error) == "injected"
    assert [r.size[0] for r in observed] == [2, 4]
    assert figures["num_violations"] == 1


FIGURES = (
    r"injected Now \S+ \S+ are allocated and \S+ \S+ are reserved\. The largest free block is "
    r"\S+ \S+\. The plan was: recompute each 0-3\. "
)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("loss", r"Every block was recomputed already, .*"),
        ("optimizer", r"An optimizer's step had begun, .* load the last checkpoint\."),
        ("evaluation", None),
    ],
)
def test_what_fails_outside_of_the_model_is_said_on_leaving_the_handle(where, said):
    model, error = build(), torch.OutOfMemoryError("injected")
    optimizer = torch.optim.AdamW(model.parameters())

    def fail(*_):
        raise error

    def train():
        with mimose.attach(model, None, "full"):
            for number in range(2):
                output = model(torch.ones(2 + number, WIDTH))
                if number and where == "loss":
                    fail()
                output.backward()
                if number and where == "optimizer":
                    optimizer.register_step_pre_hook(fail)
                optimizer.step()
                optimizer.zero_grad()
            fail()

    with pytest.raises(torch.OutOfMemoryError) as raised:
        train()
    assert raised.value is error
    assert re.fullmatch("injected" if said is None else FIGURES + said, str(error)), str(error)


@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad")  # LBFGS of 2.8.
def test_a_closure_is_called_within_a_step_that_goes_well():
    model = build()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, WIDTH))
        loss.backward()
        return loss

    with mimose.attach(model, None, "full") as handle:
        for _ in range(2):
            optimizer.step(closure)
        figures = handle.statistics()
    assert figures["num_steps"] > 4
    assert figures["num_violations"] == 0


def test_pytorch_is_as_it_was_once_the_last_handle_is_detached():
    before = torch.autograd._engine_run_backward
    one = mimose.attach(build(), None, "full")
    assert torch.autograd._engine_run_backward is not before
    one.detach()
    assert torch.autograd._engine_run_backward is before


def test_a_backward_pass_of_something_else_is_left_alone():
    x = torch.ones(2, requires_grad=True)
    with mimose.attach(build(), None, "full"):
        y = x * 2
        y.register_hook(fail)
        with pytest.raises(torch.OutOfMemoryError, match=r"^injected$"):
            y.sum().backward()
