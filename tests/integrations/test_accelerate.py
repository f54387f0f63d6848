"""Accelerate: attached after prepare, planned within its autocast, part of its checkpoints."""

import warnings

import pytest
import torch

pytest.importorskip("accelerate", reason="needs accelerate")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from accelerate import Accelerator

from mimose.integrations.accelerate import attach

pytestmark = pytest.mark.filterwarnings("default")


def batch(generated, count=4):
    return generated.collate([generated.Texts(count)[i] for i in range(count)])


def test_what_was_not_prepared_is_refused(generated):
    with pytest.raises(ValueError, match=r"accelerator\.prepare\(model\) first"):
        attach(Accelerator(cpu=True), generated.build_model(), "20MB")


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
