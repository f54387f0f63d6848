"""Accelerate: attached after prepare, planned within its autocast, part of its checkpoints."""

import warnings
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("accelerate", reason="needs accelerate")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from accelerate import Accelerator

from mimose import learning
from mimose.integrations.accelerate import _Kept, attach, recovering

pytestmark = pytest.mark.filterwarnings("default")


def batch(generated, count=4):
    return generated.collate([generated.Texts(count)[i] for i in range(count)])


def test_what_was_not_prepared_is_refused(generated):
    with pytest.raises(ValueError, match=r"accelerator\.prepare\(model\) first"):
        attach(Accelerator(cpu=True), generated.build_model(), "20MB")


def test_checkpointing_by_accelerate_is_refused(generated):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(generated.build_model())
    accelerator.state.fsdp_plugin = SimpleNamespace(activation_checkpointing=True)
    with pytest.raises(ValueError, match="leave activation_checkpointing out"):
        attach(accelerator, model, "20MB")


def test_its_autocast_is_planned_for_and_detaching_leaves_it(generated):
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model = accelerator.prepare(generated.build_model())
    prepared = vars(model)["forward"]
    inputs = batch(generated)
    torch.manual_seed(0)
    expected = model(**inputs).loss
    expected.backward()
    gradients = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with attach(accelerator, model, None, "full") as handle:
        torch.manual_seed(0)
        loss = model(**inputs).loss
        loss.backward()
        record = handle.end()
    assert "autocast torch.bfloat16" in record.situation.signature
    assert record.plan.num_recomputed == 6
    assert torch.equal(loss, expected)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), gradients))
    assert vars(model)["forward"] is prepared


@pytest.mark.parametrize("out_at", [None, 1, 3, 6])
def test_accumulated_micro_batches_are_run_again_together(generated, out_at):
    """Two optimizer's steps of three micro-batches; one of the six runs out of memory."""

    def trained(planner, out_at=None, **options):
        torch.manual_seed(0)
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
        net = torch.nn.Sequential(
            *(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5)) for _ in range(3))
        )
        model, optimizer = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1))
        left = [out_at]

        def run_out(*_):
            if left[0] is not None:
                left[0] -= 1
                if left[0] == 0:
                    raise torch.OutOfMemoryError("CUDA out of memory. Injected by a test")

        net[1].register_forward_hook(run_out)
        losses, resident = [], []
        size = {"size": lambda args, kwargs: tuple(args[0].shape)}
        with attach(accelerator, model, None, planner, **size, **options) as handle:
            run = recovering(accelerator, handle)
            for inputs in torch.arange(6 * 32.0).reshape(6, 4, 8) / 100:
                with accelerator.accumulate(model):

                    def gradients(inputs=inputs):
                        loss = model(inputs).square().mean()
                        accelerator.backward(loss)
                        return loss.item()

                    losses.append(run(gradients))
                    resident.append(handle.open_step.situation.grads_resident)
                    optimizer.step()
                    optimizer.zero_grad()
            summary = handle.summary()
        return losses, [p.detach() for p in net.parameters()], resident, summary

    losses, parameters, resident, summary = trained("fixed", out_at, plan="keep 0")
    expected, undisturbed, _, _ = trained("baseline")
    assert losses == expected
    assert all(torch.equal(p, q) for p, q in zip(parameters, undisturbed))
    assert resident == 2 * [False, True, True]
    assert f"violations: {int(out_at is not None)}" in summary


def test_a_checkpoint_holds_what_was_learned(generated, tmp_path):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(generated.build_model())
    with attach(accelerator, model, "20MB", sheltered=1) as handle:
        for _ in range(2):
            model(**batch(generated)).loss.backward()
            handle.end()
            model.zero_grad()
        accelerator.save_state(str(tmp_path))
    again = Accelerator(cpu=True)
    model = again.prepare(generated.build_model())
    with attach(again, model, "20MB", sheltered=1) as handle:
        again.load_state(str(tmp_path))
        model(**batch(generated)).loss.backward()
        assert handle.end().phase == "responsive"


def test_it_can_be_left_out_of_checkpoints(generated):
    accelerator = Accelerator(cpu=True)
    model = accelerator.prepare(generated.build_model())
    with attach(accelerator, model, "20MB", checkpoint=False):
        assert accelerator._custom_objects == []


class Remembering:
    """Stands where a handle would."""

    def __init__(self, model="one", learned=0):
        self.state = {"model": model, "planner": "auto", "learned": learned}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def test_each_process_loads_what_it_saved_and_otherwise_the_first_ones(tmp_path):
    def kept(rank, **state):
        place = SimpleNamespace(process_index=rank, _custom_objects=[])
        return _Kept(place, Remembering(**state))

    for rank in range(2):
        kept(rank, learned=rank).save([], [], str(tmp_path))
    # Accelerate writes the first one's.
    assert [file.name for file in tmp_path.iterdir()] == ["mimose_state_0_1.json"]
    first = kept(0).state_dict()
    for rank, learned in ((0, 0), (1, 1), (2, 0)):
        loading = kept(rank, learned=9)
        loading.load([], str(tmp_path))
        loading.load_state_dict(first)
        assert loading.state_dict()["learned"] == learned
    # What the first process wrote of another model, later and alone, is not the other one's.
    loading = kept(1)
    loading.load([], str(tmp_path))
    loading.load_state_dict({**first, "model": "another", "learned": 5})
    assert loading.state_dict()["learned"] == 5


def test_a_state_of_all_processes_has_each_ones_own(monkeypatch):
    of_all = {"learned": 0, "others": [{"learned": 1}]}
    for rank, learned in ((0, 0), (1, 1), (2, 0)):
        monkeypatch.setattr(learning, "rank", lambda rank=rank: rank)
        assert learning.learned_by_this(of_all) == {"learned": learned}
    assert learning.learned_by_all(of_all, None) is of_all
