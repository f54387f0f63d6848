"""What people do to a handle that is not in the manual."""

from __future__ import annotations

import gc
import warnings
import weakref

import pytest
import torch
from torch import nn

import mimose

WIDTH = 32


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, log=None):
        if log is not None:
            log.append(len(log))
            x = x * (1 + len(log))
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(100, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(6)])

    def forward(self, tokens, log=None):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, log)
        return x.pow(2).mean()


def build():
    torch.manual_seed(0)
    return Model().train()


def batch(generator):
    rows, length = (
        int(torch.randint(low, high, (), generator=generator)) for low, high in ((1, 16), (4, 120))
    )
    return torch.randint(0, 100, (rows, length), generator=generator)


class Fails:
    """Runs out of memory in backward, the first time."""

    def __init__(self, model, tokens):
        self.model, self.tokens, self.calls = model, tokens, 0

    def __call__(self):
        self.calls += 1
        if self.calls == 1:
            hook = self.model.layers[1].up.weight.register_hook(self.fail)
        try:
            self.model(self.tokens).backward()
        finally:
            if self.calls == 1:
                hook.remove()

    @staticmethod
    def fail(gradient):
        raise torch.OutOfMemoryError("injected")


def gradients(model):
    return {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}


def equal(a, b):
    return all(
        (x is None and y is None) or torch.equal(x, y) for x, y in zip(a.values(), b.values())
    )


def test_layers_unfrozen_after_attaching_are_undone_as_well():
    tokens = torch.arange(40).reshape(2, 20)
    plain = build()
    torch.manual_seed(1)
    plain(tokens).backward()
    model = build()
    model.layers[4:].requires_grad_(False)
    with mimose.attach(model, None, "full") as handle:
        model.layers[4:].requires_grad_(True)
        torch.manual_seed(1)
        handle.run(Fails(model, tokens))
    assert handle.last_record is None or handle.last_record.outcome == "retried"
    assert equal(gradients(model), gradients(plain))


def test_gradients_of_earlier_micro_batches_are_never_lost():
    tokens = torch.arange(40).reshape(2, 20)
    model = build()
    model(tokens).backward()
    before = gradients(model)
    fails = Fails(model, tokens)
    with mimose.attach(model, None, "full") as handle, pytest.raises(torch.OutOfMemoryError):
        handle.run(fails)
    assert fails.calls == 1
    late = model.layers[0].up.weight.grad
    assert torch.equal(late, before["layers.0.up.weight"])


def test_rescue_goes_on_where_no_optimizer_of_torch_steps():
    tokens = torch.arange(40).reshape(2, 20)
    model = build()
    with mimose.attach(model, None, "full") as handle:
        for _ in range(3):
            fails = Fails(model, tokens)
            handle.run(fails)
            assert fails.calls == 2
            model.zero_grad()


@pytest.mark.parametrize(("budget", "seed"), [("8MB", 1), ("10MB", 2), ("8MB", 3)])
@pytest.mark.parametrize("enforce", [False, True])
def test_a_model_that_was_there_before_the_device_stays_within_the_budget(budget, seed, enforce):
    model = build()
    optimizer = torch.optim.AdamW(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    with mimose.attach(model, budget, enforce=enforce) as handle:
        for _ in range(80):
            tokens = batch(generator)
            handle.run(lambda tokens=tokens: model(tokens).backward())
            optimizer.step()
            optimizer.zero_grad()
            record = handle.last_record
            assert record.outcome == "ok"
            assert record.num_alloc_retries == 0
            assert record.peak_reserved_bytes <= handle.budget_bytes


def test_a_handle_that_is_forgotten_is_freed_and_so_is_its_model():
    model = build()
    handle = mimose.attach(model, "1GB")
    seen = weakref.ref(handle), weakref.ref(model)
    del handle, model
    gc.collect()
    assert [s() for s in seen] == [None, None]
    mimose.attach(build(), "1GB").detach()


@pytest.mark.parametrize("planner", [None, dict, object()])
def test_a_failed_attach_leaves_the_model_as_it_was(planner):
    model = build()
    before = [dict(vars(m)) for m in model.modules()]
    with pytest.raises(ValueError, match="planner is a name or a planner"):
        mimose.attach(model, "1GB", planner)
    assert [dict(vars(m)) for m in model.modules()] == before
    mimose.attach(model, "1GB").detach()


def test_a_second_model_is_refused_in_a_sentence_about_handles():
    with (
        mimose.attach(build(), None, "full"),
        pytest.raises(ValueError, match=r"call detach\(\) on its handle first"),
    ):
        mimose.attach(build(), None, "full")


def test_a_block_that_writes_into_the_callers_list_does_so_once():
    tokens = torch.arange(40).reshape(2, 20)
    plain, model = build(), build()
    logs = [], []
    torch.manual_seed(1)
    expected = plain(tokens, logs[0])
    with mimose.attach(model, "1GB") as handle:
        torch.manual_seed(1)
        loss = model(tokens, logs[1])
        loss.backward()
        assert handle._step.decision.phase == "sheltered"
    assert logs[0] == logs[1]
    assert torch.equal(loss, expected)


def test_a_loop_in_which_nothing_can_be_measured_does_not_stay_sheltered():
    model = build()
    generator = torch.Generator().manual_seed(0)
    with mimose.attach(model, "1GB") as handle, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        previous = None
        for _ in range(35):
            loss = model(batch(generator))
            if previous is not None:  # One step late, as a pipeline does.
                previous.backward()
                model.zero_grad()
            previous = loss
        decision = handle._step.decision
    assert (decision.phase, decision.collect) == ("responsive", False)
    assert decision.plan.num_recomputed == 6
    assert [w.category for w in caught] == [UserWarning]
    assert "could not measure" in str(caught[0].message)
