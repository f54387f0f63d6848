"""The checks' measurements on real tensors: a narrow BERT on the cpu device."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from mimose_bench.experiments.figures import clock, fig3, fig9, stars
from mimose_bench.experiments.figures.session import opened, training
from mimose_bench.experiments.figures.softmax import keep_softmax_input
from mimose_bench.experiments.figures.workloads import MC_BERT, QA_BERT, TC_BERT, _bert

NARROW = {"hidden_size": 64, "num_attention_heads": 1, "intermediate_size": 256, "vocab_size": 99}


def narrow(workload, head, num_layers=4):
    model = partial(_bert, head, num_hidden_layers=num_layers, **NARROW)
    return replace(workload, new_model=model, batch_size=2, longest=64)


@pytest.fixture
def device():
    with opened("cpu") as found:
        yield found


def test_unchecked_memory_grows_with_length_and_is_the_steps_own(device):
    peaks = fig3.measure(device, narrow(QA_BERT, "BertForQuestionAnswering"), [64, 16, 32])
    assert peaks[16] < peaks[32] < peaks[64]


def test_recomputing_the_last_encoder_saves_nothing(device):
    plans = {"none": "keep 0-3", "first": "recompute 0", "last": "recompute 3"}
    workload = narrow(MC_BERT, "BertForMultipleChoice")
    peaks = {name: fig9.measure(device, workload, plan, [64])[64] for name, plan in plans.items()}
    assert peaks["first"] < peaks["none"] <= peaks["last"]


def test_the_least_limit_lets_a_run_finish_and_less_does_not():
    workload = narrow(TC_BERT, "BertForSequenceClassification")
    measurement = stars.Measurement(partial(opened, "cpu"), workload, "baseline")
    lengths = [16, 64, 32, 64]
    least = measurement.under_least_limit(lengths)
    assert least <= measurement.reserved(lengths)
    assert measurement.reserved(lengths, limit_bytes=least * 9 // 10) is None


def test_the_old_softmax_keeps_its_input_and_changes_no_gradient(device):
    torch.manual_seed(0)
    model = _bert("BertForSequenceClassification", num_hidden_layers=2, **NARROW).eval()
    tensors = TC_BERT.example_batch(16).tensors
    device.adopt(model)
    found = []
    for _ in range(2):
        before = device.allocated_bytes()
        loss = model(**tensors).loss
        kept = device.allocated_bytes() - before
        loss.backward()
        found.append((loss.item(), kept, model.bert.embeddings.word_embeddings.weight.grad.clone()))
        del loss
        model.zero_grad(set_to_none=False)
        keep_softmax_input(model)
    (loss, kept, gradient), (old_loss, old_kept, old_gradient) = found
    assert loss == old_loss
    assert torch.equal(gradient, old_gradient)
    assert old_kept - kept == 2 * (32 * 16 * 16 * 4)


def test_a_model_without_attention_has_no_softmax_to_change():
    with pytest.raises(ValueError, match="Linear has no self-attention"):
        keep_softmax_input(torch.nn.Linear(2, 2))


def test_a_time_is_of_the_part_asked_for(device):
    workload = narrow(TC_BERT, "BertForSequenceClassification")
    (timing,) = (t for t in clock.TIMINGS if t.name == "fig4-pytorch-55")
    timing = replace(timing, workload=workload)
    assert clock.measure(device, timing) > 0
    with training(device, workload, "baseline") as session:
        record = session.step(16)
    halves = clock.part(record, replace(timing, part="forward and backward"))
    assert 0 < halves < clock.part(record, timing)


def test_a_planner_that_learns_is_taught_before_it_counts(device):
    workload = narrow(TC_BERT, "BertForSequenceClassification")
    with training(device, workload, "mimose", 1 << 30) as session:
        clock.teach(session, [16, 32, 48, 64])
        assert session.step(64).phase == "responsive"
        assert session.step(16).phase == "responsive"


def test_a_step_that_does_not_fit_says_which():
    workload = narrow(TC_BERT, "BertForSequenceClassification", num_layers=12)
    with (
        opened("cpu") as device,
        training(device, workload, "baseline", 24 << 20) as session,
        pytest.raises(torch.OutOfMemoryError, match="TC-Bert at length 512 did not fit"),
    ):
        session.step(512)


def test_a_batch_is_padded_to_its_length_and_masked():
    batch = MC_BERT.example_batch(33)
    assert batch.tensors["input_ids"].shape == (16, 4, 33)
    assert batch.size == (16, 33)
    mask = batch.tensors["attention_mask"]
    assert mask[0].sum() == 4 * 33
    assert mask[1].sum() == 4 * 17
    assert batch.num_tokens == int(mask.sum())
