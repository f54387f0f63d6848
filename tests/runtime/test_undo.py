"""What undoing a pass teaches about the buffers that passes change: nothing."""

import pytest
import torch
from torch import nn

from mimose.devices import open_device
from mimose.runtime.recovery import Undo


def test_buffers_that_change_are_learned_from_a_pass_that_stays():
    device = open_device("cpu")
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.register_buffer("steady", torch.ones(3))
        device.adopt(model)
        norm = model[1]
        undo = Undo(model, device)
        data = torch.randn(8, 4)
        for _ in range(2):  # As profiled passes are: saved, run, undone.
            undo.save()
            model(data)
            undo.restore()
            assert norm.running_mean.eq(0).all()
        undo.save()
        model(data)
        kept = norm.running_mean.clone()
        assert kept.ne(0).any()
        steady = next(c for c in undo._copies.values() if c.tensor is model.steady)
        undo.save()
        assert steady in undo._copies.values()  # Copied once.
        model(data)
        undo.restore()
        assert torch.equal(norm.running_mean, kept)
    finally:
        device.close()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 2)
        self.register_buffer("late", torch.zeros(()))
        self.register_buffer("ema", torch.zeros(4))
        self.calls, self.seen, self.counting = 0, [], False

    def forward(self, x):
        self.calls += 1
        self.seen.append(x.sum())
        self.ema = 0.9 * self.ema + 0.1 * x.mean(0)
        if self.counting:
            self.late += 1
        if not hasattr(self, "lazy"):
            self.register_buffer("lazy", torch.ones(()))
        return self.head(x).sum()


@pytest.fixture
def cpu():
    device = open_device("cpu")
    yield device
    device.close()


def test_replaced_late_and_new_buffers_and_attributes_come_back(cpu):
    model = Model()
    cpu.adopt(model)
    undo = Undo(model, cpu)
    data = torch.randn(8, 4)
    for step in range(4):
        undo.save()
        model.counting = step == 3
        model(data).backward()
        if step in (0, 3):
            undo.restore()
            assert hasattr(model, "lazy") == (step == 3)
            assert (model.calls, len(model.seen)) == (max(0, step - 1), max(0, step - 1))
        model.zero_grad()
    assert float(model.late) == 0
    expected = data.mean(0) * (0.1 + 0.9 * 0.1)
    assert torch.allclose(model.ema, expected)


def test_parameters_that_came_after_attaching_keep_no_gradient(cpu):
    model = Model()
    cpu.adopt(model)
    undo = Undo(model, cpu)
    undo.save()
    model.head = nn.Linear(4, 2)
    undo.save()
    assert undo.possible
    model(torch.randn(8, 4)).backward()
    undo.restore()
    assert model.head.weight.grad is None
    model(torch.randn(8, 4)).backward()
    undo.save()
    assert not undo.possible  # Gradients of an earlier pass: the new parameters' are seen, too.


def test_a_change_that_the_version_counter_does_not_show_is_said(cpu):
    model = Model()
    cpu.adopt(model)
    undo = Undo(model, cpu)
    for _ in range(3):
        undo.save()
        model(torch.randn(8, 4))
    model.late.data.add_(1)
    with pytest.warns(UserWarning, match="buffer late changes in a way"):
        undo.restore()
