"""Sizes read by default, calls that no plan is for, and options of the wrong kind."""

import json
import warnings

import pytest
import torch
from torch import nn

import mimose
from mimose.plan import Plan
from mimose.records import Situation, StepRecord
from mimose.runtime.sizes import Alike, SizeReader

MIB = 1 << 20


def numbers(*shape):
    return torch.zeros(shape, device="meta")


def ids(*shape):
    return torch.zeros(shape, dtype=torch.long, device="meta")


@pytest.mark.parametrize(
    ("args", "size"),
    [
        ((ids(4, 30),), (4, 30)),
        ((ids(4, 3, 30),), (12, 30)),
        ((numbers(4, 30, 64),), (4, 30)),
        ((numbers(4, 3, 8, 16),), (4, 128)),
        ((numbers(4), ids(4, 30)), (4, 30)),
        ((numbers(4, 1), numbers(4, 3, 8, 16)), (4, 128)),
        ((numbers(4),), (4, 1)),
        (([numbers(3, 8, 16), numbers(3, 10, 4)],), (2, 160)),
        (([ids(7), ids(9), ids(2)],), (3, 9)),
        (([numbers(7, 32), numbers(9, 32)],), (2, 9)),
        (((ids(4, 30), ids(4, 50)),), (4, 30)),
        (({"x": ids(4, 30)},), (4, 30)),
    ],
)
def test_a_first_batch_is_read(args, size):
    reader = SizeReader()
    assert (reader(args, {}), reader.copy()(args, {})) == (size, size)


def test_named_inputs_come_first_and_the_decoders_follow():
    reader = SizeReader(encoder_decoder=True)
    kwargs = {"attention_mask": ids(2, 5), "input_ids": ids(2, 5), "labels": ids(2, 7)}
    assert reader((), kwargs) == (2, 5, 7)
    assert SizeReader()((), {"decoder_input_ids": ids(2, 7)}) == (2, 7)
    with pytest.raises(ValueError, match="pass size=a function"):
        reader((3,), {})


@pytest.mark.parametrize(
    ("shapes", "sizes"),
    [
        ([(4, 8, 200), (4, 8, 300), (2, 8, 300)], [(4, 8), (4, 300), (2, 300)]),
        ([(4, 8, 64), (4, 9, 64), (4, 9, 65)], [(4, 8), (4, 9), (4, 585)]),
        ([(2, 5, 3, 8, 8), (2, 7, 3, 8, 8)], [(2, 192), (2, 7)]),
        ([(2, 3, 8, 8), (2, 3, 8, 9), (2, 3, 9, 8)], [(2, 64), (2, 72), (2, 72)]),
    ],
)
def test_an_extent_that_was_left_out_counts_once_it_varies(shapes, sizes):
    reader = SizeReader()
    readings = []
    for shape, size in zip(shapes, sizes):
        assert reader((numbers(*shape),), {}) == size
        readings.append(reader.reading)
    assert readings[0] == ""
    # What was learned of sizes that were read otherwise is apart.
    usual = [size == SizeReader()((numbers(*s),), {}) for s, size in zip(shapes, sizes)]
    assert [not reading for reading in readings] == usual


def test_the_number_of_samples_in_a_list_counts_once_it_varies():
    reader = SizeReader()
    assert reader(([numbers(7, 32)] * 2,), {}) == (7, 32)
    assert reader(([numbers(7, 32)] * 5,), {}) == (5, 7)
    assert reader.reading


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Conv1d(8, 8, 3, padding=1)

    def forward(self, x):
        return x + torch.tanh(self.inner(x))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Convolution() for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

    def training_step(self, x):
        return self.forward_twin(x).mean()

    def forward_twin(self, x):
        return Convolutions.forward(self, x)


def test_a_long_signal_is_planned_for_by_its_length():
    model = Convolutions()
    with mimose.attach(model, "60MB", sheltered=3) as handle:
        for length in (100, 200, 300, 400, 250, 60000):
            model(torch.randn(2, 8, length)).mean().backward()
            model.zero_grad()
        handle.end()
        assert handle.last_record.size == (2, 60000)
        assert len(handle.last_record.plan.recomputed) == 3
        x = torch.randn(2, 8, 300)
        assert not handle.plan_for(x).recomputed
        assert handle.longest(x) > 60000


def test_asking_does_not_change_how_sizes_are_read():
    model = Convolutions()
    with mimose.attach(model, "40MB") as handle:
        model(torch.randn(2, 8, 100)).mean().backward()
        handle.plan_for(torch.randn(2, 8, 500))
        model(torch.randn(2, 8, 100)).mean().backward()
        handle.end()
        assert handle.last_record.size == (2, 8)


def record(peak, *, size=(4, 8), plan=None, **situation):
    return StepRecord(
        size,
        plan or Plan.keep_all(2),
        "responsive",
        Situation(10 * MIB, **situation),
        peak_allocated_bytes=10 * MIB + peak,
    )


def test_very_different_peaks_of_one_size_are_said_once():
    alike = Alike(100 * MIB)
    for peak in (20, 25):
        alike.add(record(peak * MIB))
    alike.add(record(90 * MIB, size=(4, 80)))
    alike.add(record(50 * MIB, grads_resident=False))
    alike.add(record(2 * MIB, plan=Plan.recompute_each(2)))
    alike.add(record(3 * MIB, plan=Plan.recompute_each(2)))  # Far apart, but of no weight.
    alike.add(record(20 * MIB))
    with pytest.warns(UserWarning, match=r"4 x 8, took from 20.00 MiB to 35.00 MiB.* pass size="):
        alike.add(record(35 * MIB))
    alike.add(record(90 * MIB))


# -- calls that no plan is for


@pytest.mark.parametrize(("planner", "budget"), [("full", None), ("mimose", "30MB")])
def test_training_past_the_forward_pass_is_said(planner, budget):
    model = Convolutions()
    x = torch.randn(2, 8, 50)
    with mimose.attach(model, budget, planner):
        with torch.no_grad():
            model.training_step(x)
        with pytest.warns(UserWarning, match="forward pass was never called"):
            model.training_step(x).backward()
        model.training_step(x).backward()  # Once.


def test_an_optimizer_without_any_planned_pass_is_said_for_policies_without_blocks():
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with mimose.attach(model, None, "dtr"):
        optimizer.step()  # Without gradients.
        model[0](torch.randn(2, 4)).mean().backward()
        with pytest.warns(UserWarning, match="forward pass was never called"):
            optimizer.step()


def test_a_usual_loop_is_told_nothing():
    model = Convolutions()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(2, 8, 50)).pow(2).mean()
        loss.backward()
        return loss

    with warnings.catch_warnings(), mimose.attach(model, "30MB"):
        warnings.simplefilter("error")
        model(torch.randn(0, 8, 50)).sum().backward()
        optimizer.step(closure)


@pytest.mark.parametrize(("planner", "budget"), [("full", None), ("mimose", "30MB")])
def test_transforms_run_the_model_as_it_is(planner, budget):
    model = Convolutions()
    x = torch.randn(2, 8, 50)
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(p):
        return torch.func.functional_call(model, p, (x,)).pow(2).mean()

    expected = torch.func.grad(loss)(parameters)
    batched = torch.vmap(model)(x[None])
    with mimose.attach(model, budget, planner):
        with pytest.warns(UserWarning, match="under a transform of torch.func"):
            found = torch.func.grad(loss)(parameters)
        assert torch.equal(torch.vmap(model)(x[None]), batched)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("planner", ["dtr", "delta"])
def test_policies_go_on_when_the_optimizer_steps_within_backward(planner):
    def train(attached):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(4)]
        model = nn.Sequential(*layers)
        optimizers = {p: torch.optim.SGD([p], 0.1) for p in model.parameters()}

        def update(parameter):
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        handle = mimose.attach(model, "3MB", planner, reserve=0) if attached else None
        for rows in (1500, 1400, 1500):
            model(torch.randn(rows, 64)).pow(2).mean().backward()
        evicted = 0
        if handle is not None:
            handle.end()
            evicted = handle.last_record.extra["num_evictions"]
            handle.detach()
        return [p.detach().clone() for p in model.parameters()], evicted

    plain, (attached, evicted) = train(False)[0], train(True)
    assert evicted > 0
    assert all(map(torch.equal, plain, attached))
    assert torch.utils._python_dispatch._len_torch_dispatch_stack() == 0


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_an_attached_model_is_exported_and_scripting_it_is_refused():
    model, x = Convolutions().eval(), torch.randn(2, 8, 50)
    expected = model(x)
    with mimose.attach(model, "30MB"):
        assert torch.equal(torch.export.export(model, (x,)).module()(x), expected)
        with pytest.raises(AttributeError, match=r"call detach\(\) on its handle first"):
            torch.jit.script(model)


# -- options


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": 5}, "size is a function .*, not 5"),
        ({"blocks": [5]}, "which 5 is not"),
        ({"blocks": 5}, "which 5 is not"),
        ({"sheltered": 2.7}, "must be a whole number, from 1 to 30, not 2.7"),
        ({"sheltered": True}, "not True"),
        ({"sheltered": float("inf")}, "not inf"),
        ({"margin": "10GB"}, "leaves nothing of a budget of 90.00 MiB"),
        ({"planner": "rotor", "margin": "90MB"}, "leaves nothing of a budget of 90.00 MiB"),
        ({"planner": "full", "every": 2.5}, "every must be a whole number"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(options, sentence):
    model = Convolutions()
    with pytest.raises(ValueError, match=sentence):
        mimose.attach(model, "90MB", **options)
    assert "forward" not in vars(model)


def test_a_foreign_state_is_refused_without_digests():
    with mimose.attach(Convolutions(), "90MB") as handle:
        state = json.loads(json.dumps(handle.state_dict()))
    model = Convolutions()
    model.layers[0].inner.weight.requires_grad_(False)
    with (
        mimose.attach(model, "90MB") as handle,
        pytest.raises(ValueError, match="it was 6 of 6 and is 5 of 6; load"),
    ):
        handle.load_state_dict(state)
    model = Convolutions()
    model.layers[0].inner = nn.Conv1d(8, 8, 5, padding=2)
    with (
        mimose.attach(model, "90MB") as handle,
        pytest.raises(ValueError, match="parameters of other shapes; load"),
    ):
        handle.load_state_dict(state)
