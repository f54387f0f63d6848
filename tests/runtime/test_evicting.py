"""When the eviction runtime is switched on and off, with one that only takes notes."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

import mimose
import mimose.runtime.evicting
from mimose.devices import open_device
from mimose.eviction import Eviction, EvictionFigures
from mimose.handle import attach
from mimose.planners.full import Full
from mimose.records import Decision
from mimose.runtime.evicting import NoRoomError
from mimose.runtime.eviction.engine import NoRoom
from mimose.runtime.eviction.graph import Storage
from mimose.units import MIB


class Notes:
    """A runtime that evicts nothing."""

    made: list[Notes] = []  # noqa: RUF012 - reset by the fixture

    def __init__(self, device, settings, budget_bytes):
        self.settings = settings
        self.budget_bytes = budget_bytes
        self.active = self.failed = False
        self.calls: list[str] = []
        self.fails: Exception | None = None
        Notes.made.append(self)

    def start(self, model, args, kwargs):
        assert not self.active
        self.active = True
        self.calls.append("start")

    def stop(self, *, regardless=False):
        assert self.active
        if self.fails is not None and not regardless:
            raise self.fails
        self.active = False
        self.calls.append("stop regardless" if regardless else "stop")
        return EvictionFigures(num_evictions=len(self.calls), recompute_seconds=0.25)

    def abandon(self):
        assert self.active
        self.active = False
        self.calls.append("abandon")
        return EvictionFigures(num_evictions=7)


@pytest.fixture
def notes(monkeypatch):
    Notes.made = []
    monkeypatch.setattr(mimose.runtime.evicting, "_live", Notes)
    return Notes.made


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu(self.inner(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(3))
        self.fails = False

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        if self.fails:
            raise RuntimeError("no forward today")
        return x.sum()


@pytest.fixture
def trained(notes):
    """A model under dtr on the cpu, its handle and optimizer."""
    with contextlib.closing(open_device("cpu")) as device:
        model = Net()
        device.adopt(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with attach(
            model,
            "64MB",
            "dtr",
            blocks=["layers.*"],
            device=device,
            size=lambda args, kwargs: tuple(args[0].shape),
            reserve="16MB",
        ) as handle:
            yield model, handle, optimizer


def batch():
    return torch.ones(4, 8)


def test_on_from_the_forward_pass_to_the_optimizer(trained, notes):
    model, handle, optimizer = trained
    for _ in range(2):
        loss = model(batch())
        assert notes[0].active
        loss.backward()
        assert notes[0].active
        optimizer.step()
        assert not notes[0].active
        optimizer.zero_grad()
    (runtime,) = notes  # One for all steps: it learns.
    assert runtime.calls == ["start", "stop"] * 2
    assert runtime.budget_bytes == 64 << 20
    assert runtime.settings == Eviction(system="dtr", reserve_bytes=16 << 20)
    record = handle.last_record
    assert record.plan == runtime.settings
    assert record.phase == "static"
    assert record.extra["num_evictions"] == 4
    assert record.extra["recompute_seconds"] == 0.25


def test_without_an_optimizer_it_ends_with_the_step(trained, notes):
    model, handle, _ = trained
    model(batch()).backward()
    record = handle.end()
    assert notes[0].calls == ["start", "stop"]
    assert record.extra["num_evictions"] == 2


def test_the_next_forward_pass_ends_it(trained, notes):
    model, _, _ = trained
    model(batch()).backward()
    model(batch())
    assert notes[0].calls == ["start", "stop", "start"]


def test_detaching_ends_it(trained, notes):
    model, handle, _ = trained
    loss = model(batch())
    handle.detach()
    assert notes[0].calls == ["start", "stop regardless"]
    loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_evaluation_is_left_alone(trained, notes):
    model, _, _ = trained
    with torch.no_grad():
        model(batch())
    model.eval()
    model(batch())
    assert notes == []


def test_a_forward_pass_that_fails_is_given_up(trained, notes):
    model, _, _ = trained
    model.fails = True
    with pytest.raises(RuntimeError, match="no forward today"):
        model(batch())
    assert notes[0].calls == ["start", "abandon"]
    model.fails = False
    model(batch()).backward()
    assert notes[0].active


def test_a_step_that_fails_is_given_up_and_not_repeated(trained, notes):
    model, handle, _ = trained
    attempts = []

    def passes():
        attempts.append(model(batch()))
        raise torch.OutOfMemoryError("no room")

    handle.begin((4, 8))
    with pytest.raises(torch.OutOfMemoryError, match="The plan was: evict h_DTR_eq"):
        handle.run(passes)
    assert len(attempts) == 1
    assert notes[0].calls == ["start", "abandon"]
    record = handle.end(failed=True, outcome="thrashing")
    assert record.outcome == "thrashing"
    assert record.extra["num_evictions"] == 7  # So far.


def test_a_failed_step_does_not_fail_once_more_with_the_next(trained, notes):
    model, _, _ = trained
    model(batch())
    notes[0].failed = True  # An operator has said so, and the loop has caught it.
    model(batch())
    assert notes[0].calls == ["start", "abandon", "start"]


def test_what_does_not_fit_is_pytorch_s_own_error_in_a_sentence(trained, notes):
    model, handle, _ = trained
    model(batch())
    notes[0].fails = NoRoom(MIB, 46 * MIB, 48 * MIB, ())
    with pytest.raises(torch.OutOfMemoryError) as caught:
        handle.end()
    assert str(caught.value) == (
        "restoring what is still in use needs 1.00 MiB, and parameters, gradients and other "
        "tensors that cannot be evicted take 46.00 MiB, together more than the 48.00 MiB that dtr "
        "has for itself (a budget of 64.00 MiB less a reserve of 16.00 MiB): give a larger budget "
        "or a smaller reserve"
    )


def test_an_operator_that_does_not_fit_is_named():
    storage = Storage(3 * MIB, 0)
    storage.resident, storage.locks = True, 1
    error = NoRoom(2 * MIB, 5 * MIB, 6 * MIB, [storage])
    text = str(NoRoomError.of(error, Eviction(system="dtr"), "aten.mm.default"))
    assert text == (
        "operator aten.mm.default needs 2.00 MiB beside 3.00 MiB that it works on, and "
        "parameters, gradients and other tensors that cannot be evicted take 2.00 MiB, together "
        "more than the 6.00 MiB that dtr has for itself: give a larger budget"
    )


def test_what_cannot_be_restored_ends_the_step(trained, notes):
    model, handle, _ = trained
    model(batch())
    notes[0].fails = mimose.Thrashing(9.0, 1.0, 3.0)
    with pytest.raises(mimose.Thrashing):
        handle.end()
    assert notes[0].calls == ["start", "abandon"]


class TestWhatDoesNotFitAtAStepsEnd:
    @pytest.fixture
    def stuck(self, trained, notes):
        model, handle, optimizer = trained
        model(batch()).backward()
        notes[0].fails = torch.OutOfMemoryError("it does not fit")
        with pytest.raises(torch.OutOfMemoryError, match="it does not fit"):
            optimizer.step()
        assert notes[0].calls == ["start"]  # Nothing is lost.
        return model, handle, optimizer

    def test_detaching_brings_it_back(self, stuck, notes):
        stuck[1].detach()
        assert notes[0].calls == ["start", "stop regardless"]

    def test_the_optimizer_may_be_called_again(self, stuck, notes):
        _, handle, optimizer = stuck
        notes[0].fails = None
        optimizer.step()
        assert notes[0].calls == ["start", "stop"]
        assert handle.last_record.outcome == "ok"

    def test_the_next_forward_pass_gives_it_up(self, stuck, notes):
        model, handle, _ = stuck
        model(batch())
        assert notes[0].calls == ["start", "abandon", "start"]
        assert handle.last_record.outcome == "oom"


def test_a_reserve_of_the_whole_budget_is_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"a reserve of 8\.00 MiB leaves nothing of a budget"):
        attach(Net(), "8MB", "dtr", reserve="8MB")
    attach(Net(), "8MB", "full").detach()  # Nothing of the first is left behind.


@pytest.mark.parametrize("name", ["dtr", "delta"])
def test_models_without_blocks_and_batches_without_samples(name):
    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    with attach(model, "none", name) as handle:
        assert handle.budget_bytes is None
        assert handle.block_names == ()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for samples in (4, 0, 2):
            model(torch.ones(samples, 8)).sum().backward()
            optimizer.step()
            if samples:  # An empty batch is no step.
                assert handle.last_record.size == (samples, 8)
        assert handle.last_record.size == (2, 8)
    with pytest.raises(ValueError, match="no blocks were found"):
        attach(model, None, "full")


def test_another_policy_gets_another_runtime(trained, notes):
    model, handle, _ = trained
    model(batch())
    other = Eviction(system="dtr", heuristic="lru")
    handle.planner.plan = lambda size, situation: Decision(other)
    model(batch())
    assert [runtime.settings for runtime in notes] == [
        Eviction(system="dtr", reserve_bytes=16 << 20),
        other,
    ]
    assert notes[0].calls == ["start", "stop"]


def test_another_planner_may_take_over(trained, notes):
    model, handle, optimizer = trained
    model(batch()).backward()
    optimizer.step()
    handle.planner = Full()
    handle.rebind()
    for _ in range(2):
        model(batch()).backward()
        optimizer.step()
    assert notes[0].calls == ["start", "stop"]
    assert handle.last_record.num_alloc_retries == 0
    assert handle.last_record.plan.num_recomputed == 3
    assert handle.last_record.extra == {}
