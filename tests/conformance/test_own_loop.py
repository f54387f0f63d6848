"""A user's own loop: attached, trained as before, detached."""

import copy

import pytest
import torch
from transformers import BertConfig, BertForQuestionAnswering

import mimose

LENGTHS = (24, 40, 16, 32, 48, 24, 40, 36)


def build():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=200,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    return BertForQuestionAnswering(config).train()


def inputs(length):
    generator = torch.Generator().manual_seed(length)
    return {
        "input_ids": torch.randint(200, (4, length), generator=generator),
        "start_positions": torch.randint(length, (4,), generator=generator),
        "end_positions": torch.randint(length, (4,), generator=generator),
    }


def train(model, after_step=lambda: None):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for length in LENGTHS:
        loss = model(**inputs(length)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
        after_step()
    return losses


@pytest.fixture(scope="module")
def plain():
    model = build()
    return train(model), model.state_dict()


def test_the_loop_stays_as_it_was(plain):
    losses, parameters = plain
    model = build()
    records = []
    # Gradients are freed after each step here; the budget leaves room for a part of the blocks.
    with mimose.attach(model, budget="9MB", sheltered=3) as handle:
        assert handle.last_record is None
        assert train(model, lambda: records.append(handle.last_record)) == losses
        assert handle.end() is None
    assert [r.size for r in records] == [(4, length) for length in LENGTHS]
    assert [r.phase for r in records[:3]] == ["sheltered"] * 3
    assert {r.phase for r in records} == {"sheltered", "responsive"}
    assert all(r.peak_allocated_bytes > r.situation.resident_bytes for r in records)
    assert all(r.step_seconds > 0 for r in records)
    for name, expected in parameters.items():
        assert torch.equal(model.state_dict()[name], expected), name


@pytest.mark.parametrize("between", [0, 32 << 20])
def test_what_comes_between_two_steps_is_not_the_optimizers(between):
    model = build()
    peaks = []
    with mimose.attach(model, budget="9MB", sheltered=3) as handle:

        def after_step():
            torch.empty(between, dtype=torch.uint8)  # An evaluation, say.
            record = handle.last_record
            peaks.append(record.optimizer_peak_bytes + record.situation.resident_bytes)

        train(model, after_step)
    # Parameters, gradients and both moments, and what AdamW makes on the way.
    parameters = sum(p.nbytes for p in model.parameters())
    assert all(4 * parameters < peak < 6 * parameters for peak in peaks)


def test_recomputation_in_a_users_loop(plain):
    losses, _ = plain
    model = build()
    with mimose.attach(model, None, planner="full") as handle:
        assert train(model) == losses
        assert handle.end().plan.num_recomputed == 4


def test_running_out_of_memory_in_a_users_loop_leaves_no_trace(plain):
    losses, parameters = plain
    model = build()
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    calls = iter(range(100))

    def fail(*_):
        if next(calls) == 3:
            raise torch.OutOfMemoryError("injected")

    seen, outcomes = [], []
    with mimose.attach(model, None, planner="fixed", plan="keep 0") as handle:
        model.qa_outputs.register_forward_hook(fail)
        for length in LENGTHS:

            def forward_and_backward(length=length):
                loss = model(**inputs(length)).loss
                loss.backward()
                return float(loss.detach())

            seen.append(handle.run(forward_and_backward))
            optimizer.step()
            optimizer.zero_grad()
            outcomes.append(handle.end().outcome)
    assert seen == losses
    assert outcomes == ["ok"] * 3 + ["retried"] + ["ok"] * 4
    for name, expected in parameters.items():
        assert torch.equal(model.state_dict()[name], expected), name


def test_evaluation_in_between_is_left_alone(plain):
    losses, _ = plain
    model = build()
    reference = []
    observed = []

    def evaluate(into):
        generator = torch.get_rng_state()
        model.eval()
        with torch.no_grad():
            into.append(model(**inputs(20)).loss)
        model.train()
        with torch.no_grad():
            into.append(model(**inputs(20)).loss)
        torch.set_rng_state(generator)

    train(model, lambda: evaluate(reference))
    model = build()
    with mimose.attach(model, None, planner="full") as handle:
        records = []

        def after_step():
            evaluate(observed)
            records.append(handle.last_record)

        assert train(model, after_step) == losses
    # Neither evaluation opened a step of its own.
    sizes = [r.size for r in records]
    assert sizes == [(4, length) for length in LENGTHS]
    assert all(torch.equal(a, b) for a, b in zip(observed, reference))
    assert len(observed) == len(reference) == 2 * len(LENGTHS)


def test_a_step_that_no_one_asked_about_ends_with_the_next_or_with_detaching(plain):
    losses, _ = plain
    model = build()
    seen = []
    handle = mimose.attach(model, None, planner="full")
    observe = handle.planner.observe
    handle.planner.observe = lambda record: (seen.append(record.size), observe(record))
    assert train(model, lambda: seen.append("step")) == losses
    handle.detach()
    sizes = [(4, length) for length in LENGTHS]
    assert seen == ["step", *[x for size in sizes[:-1] for x in (size, "step")], sizes[-1]]
    assert handle.last_record.size == sizes[-1]


def test_a_last_step_without_an_optimizers_ends_with_detaching():
    model = build()
    with mimose.attach(model, None, planner="full") as handle:
        for length in LENGTHS[:3]:
            model(**inputs(length)).loss.backward()
        assert handle.last_record.size == (4, LENGTHS[1])
    assert handle.last_record.size == (4, LENGTHS[2])
    assert "steps: 3, " in handle.summary()
    with mimose.attach(model, None, planner="full") as handle:
        model(**inputs(LENGTHS[0]))  # No step: there is no backward pass.
    assert "steps: none yet" in handle.summary()


def test_detaching_restores_the_model(plain):
    losses, _ = plain
    model = build()

    def looks():
        return [
            (name, sorted(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks))
            for name, module in model.named_modules()
        ]

    before, names = looks(), list(model.state_dict())
    handle = mimose.attach(model, None, planner="full")
    assert list(model.state_dict()) == names
    assert isinstance(model, BertForQuestionAnswering)
    handle.detach()
    assert looks() == before
    assert "forward" not in vars(model)
    handle.detach()
    assert train(copy.deepcopy(model)) == losses
    mimose.attach(model, None, planner="full").detach()


def test_what_cannot_be_attached():
    model = build()
    with mimose.attach(model, None), pytest.raises(ValueError, match="attached already"):
        mimose.attach(model, None)
    with pytest.raises(ValueError, match="no blocks were found in Linear"):
        mimose.attach(torch.nn.Linear(3, 3), None)
    with pytest.raises(ValueError, match=r"less than the model's parameters take .* write 6GB if"):
        mimose.attach(model, 6)
    with pytest.raises(ValueError, match=r"cannot be meant: .* write 6GB if"):
        mimose.attach(model, "6")
    with pytest.raises(ValueError, match="enforce must be True or False, not 'yes'"):
        mimose.attach(model, "1GB", enforce="yes")


def test_tensors_are_evicted_in_a_users_loop(plain):
    losses, parameters = plain
    model = build()
    records = []
    with mimose.attach(model, "9MB", planner="dtr", reserve="82%") as handle:
        assert train(model, lambda: records.append(handle.last_record)) == losses
    assert all(str(r.plan).startswith("evict h_DTR_eq") for r in records)
    assert sum(r.extra["num_evictions"] for r in records) > 0
    most = records[0].plan.own_budget(9 << 20)
    assert max(r.peak_allocated_bytes for r in records) <= most
    for name, expected in parameters.items():
        assert torch.equal(model.state_dict()[name], expected), name


def test_a_users_loop_goes_on_after_an_operator_that_does_not_fit():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    failed = []
    options = {"reserve": "91%", "thrash_limit": None}
    with mimose.attach(model, "9MB", planner="dtr", **options):
        for length in (16, 64, 16):
            try:
                model(**inputs(length)).loss.backward()
                optimizer.step()
            except torch.OutOfMemoryError as error:
                failed.append((length, str(error)))
            optimizer.zero_grad()
    ((length, sentence),) = failed
    assert length == 64
    assert "tensors that cannot be evicted take" in sentence


def test_thrashing_arrives_in_a_users_loop(plain):
    losses, _ = plain
    model = build()
    with mimose.attach(model, "9MB", planner="dtr", reserve="82%", thrash_limit=1.001) as handle:
        with pytest.raises(mimose.Thrashing, match=r"more than 1\.001 times"):
            train(model)
        for parameter in model.parameters():
            # What there is can be read; it is nothing that was evicted.
            assert parameter.grad is None or parameter.grad.isfinite().all()
        model.zero_grad()
        handle.detach()
    assert train(build()) == losses
