"""What a handle says: the plan for a batch, the longest one, its figures, what it has learned."""

from __future__ import annotations

import gc
import inspect
import json
import os
import weakref

import pytest
import torch
from torch import nn

import mimose
from mimose.attaching import OWN_NAMES, budget_bytes
from mimose.devices import open_device

WIDTH, ROWS = 64, 8
LENGTHS = (200, 320, 120, 280, 160, 320, 240, 400, 88, 360)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + nn.functional.dropout(self.down(torch.tanh(self.up(x))), 0.1)


class Model(nn.Module):
    def __init__(self, blocks=6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(blocks)])

    def forward(self, tokens):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def build(blocks=6):
    torch.manual_seed(0)
    return Model(blocks).train()


def tokens(length):
    return torch.arange(ROWS * length).reshape(ROWS, length) % 50


def train(model, lengths=LENGTHS, handle=None):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    records = []
    for length in lengths:
        model(tokens(length)).backward()
        optimizer.step()
        optimizer.zero_grad()
        records.append(None if handle is None else handle.last_record)
    return records


BUDGET = "48MB"
TIGHT = "40MB"  # The longest have to recompute once the margin is known.


@pytest.fixture(scope="module")
def learned():
    """The state after nine steps, as JSON, and the records of the same nine from there on."""
    model = build()
    with mimose.attach(model, TIGHT, sheltered=5) as handle:
        train(model, LENGTHS[:9], handle=handle)
        state = json.dumps(handle.state_dict())
        return state, train(model, LENGTHS[:9], handle=handle)


def test_the_plan_for_a_batch_is_the_one_that_it_gets():
    model = build()
    with mimose.attach(model, BUDGET, sheltered=5) as handle:
        train(model, handle=handle)
        for length in (400, 100, 300):
            expected = handle.plan_for(tokens(length))
            before = handle.last_record
            assert handle.plan_for(tokens(length)) == expected
            assert handle.last_record is before
            model(tokens(length)).backward()
            model.zero_grad()
            assert handle.end().plan == expected


def test_the_longest_batch_fits_and_a_much_longer_one_is_refused():
    model = build()
    with mimose.attach(model, None, "full") as handle:
        least = max(r.peak_reserved_bytes for r in train(model, (400, 400), handle))
    model = build()
    with mimose.attach(model, int(1.1 * least), sheltered=10) as handle:
        with pytest.raises(ValueError, match="three different ones"):
            handle.longest(tokens(100))
        train(model, handle=handle)
        longest = handle.longest(tokens(100))
        # No shorter than what has been run already.
        assert max(LENGTHS) <= longest < 3 * max(LENGTHS)
        model(tokens(longest)).backward()
        model.zero_grad()
        record = handle.end()
        assert (record.outcome, record.num_alloc_retries) == ("ok", 0)
        assert record.peak_reserved_bytes <= handle.budget_bytes
        # Beyond it there may be room, without a margin: so it is tried, and shows what it takes.
        model(tokens(2 * longest)).backward()
        model.zero_grad()
        longest = handle.longest(tokens(100))
        with pytest.raises(mimose.Infeasible, match=f"or cut lengths to {longest}, which would"):
            model(tokens(3 * longest))


def test_a_length_that_went_beyond_the_budget_is_not_said_to_fit():
    model = build()
    with mimose.attach(model, None, "full") as handle:
        most = max(r.peak_reserved_bytes for r in train(model, (400, 400), handle))
    model = build()
    with mimose.attach(model, int(0.95 * most), sheltered=10) as handle:
        records = train(model, handle=handle)
        assert any(r.peak_reserved_bytes > handle.budget_bytes for r in records)
        assert handle.longest(tokens(100)) < max(LENGTHS)


def test_garbage_in_a_cycle_refuses_no_batch():
    model = build()
    with mimose.attach(model, None, "full") as handle:
        least = max(r.peak_allocated_bytes for r in train(model, (400, 400), handle))
    model = build()
    collecting = gc.isenabled()
    with mimose.attach(model, int(1.25 * least), sheltered=10) as handle:
        train(model, handle=handle)
        gc.collect()
        gc.disable()  # So that it comes at no other time.
        try:
            kept = torch.zeros(handle.budget_bytes // 8)  # Half the budget.
            for ask in (handle.plan_for, model):
                with pytest.raises(mimose.Infeasible):
                    ask(tokens(400))
            plan, record = [], None
            for ask in (handle.plan_for, model):
                cycle = [torch.zeros(handle.budget_bytes // 8) if kept is None else kept]
                kept = None
                cycle.append(cycle)
                alive = weakref.ref(cycle[0])
                del cycle
                assert alive() is not None
                plan.append(ask(tokens(400)))
                assert alive() is None
            plan.pop().backward()
            record = handle.end()
        finally:
            if collecting:
                gc.enable()
        assert [record.plan] == plan
        assert record.situation.resident_bytes < handle.budget_bytes // 2


def test_outside_of_autocast_the_answer_is_for_what_training_was_cast_to():
    model = build()
    with mimose.attach(model, BUDGET) as handle:
        with torch.autocast("cpu", torch.bfloat16):
            train(model, LENGTHS[:9], handle=handle)
            torch.clear_autocast_cache()  # Its copies are in use only in here.
            longest, plan = handle.longest(tokens(100)), handle.plan_for(tokens(300))
        assert handle.longest(tokens(100)) == longest
        assert handle.plan_for(tokens(300)) == plan
        assert "bfloat16" in handle.last_record.situation.signature
        # Asked about another dtype, it has nothing to say.
        with (
            torch.autocast("cpu", torch.float16),
            pytest.raises(ValueError, match="three different ones"),
        ):
            handle.longest(tokens(100))
        state = json.loads(json.dumps(handle.state_dict()))
    again = build()
    with mimose.attach(again, BUDGET) as handle:
        handle.load_state_dict(state)
        assert handle.longest(tokens(100)) > max(LENGTHS)
        # Training without it is what is asked about from then on.
        train(again, LENGTHS[:1], handle=handle)
        with pytest.raises(ValueError, match="three different ones"):
            handle.longest(tokens(100))


def test_a_detached_handle_is_not_asked():
    model = build()
    with mimose.attach(model, BUDGET, sheltered=2) as handle:
        train(model, LENGTHS[:4], handle=handle)
    for ask in (handle.plan_for, handle.longest):
        with pytest.raises(ValueError, match=r"detached, .*: ask before detach\(\)"):
            ask(tokens(100))
    # What was learned and what came of it is still there.
    assert handle.state_dict()["learned"]
    assert "steps: 4" in handle.summary()


def test_without_a_batch_one_is_asked_for():
    with mimose.attach(build(), BUDGET) as handle:
        with pytest.raises(ValueError, match=r"pass a batch .* handle\.longest\(\*\*batch\)"):
            handle.longest()
        with pytest.raises(ValueError, match=r"pass a batch .* handle\.plan_for\(\*\*batch\)"):
            handle.plan_for((2, 1000))


def test_an_option_like_one_of_attach_s_own_names_that():
    own = list(inspect.signature(mimose.attach).parameters)[1:-1]
    assert list(OWN_NAMES) == own
    for wrong, meant in {"block": "blocks", "enforced": "enforce", "sizes": "size"}.items():
        with pytest.raises(ValueError, match=f"has no option {wrong}: did you mean '{meant}', "):
            mimose.attach(build(), BUDGET, **{wrong: None})
    with pytest.raises(ValueError, match="has no option margn: its options are"):
        mimose.attach(build(), BUDGET, margn=3)


def test_only_a_planner_that_predicts_says_which_length_fits():
    with (
        mimose.attach(build(), "1GB", "full") as handle,
        pytest.raises(ValueError, match="predicts no memory"),
    ):
        handle.longest(tokens(8))
    with mimose.attach(build(), None) as handle, pytest.raises(ValueError, match="without a bud"):
        handle.longest(tokens(8))


def test_a_resumed_run_measures_nothing_and_plans_alike(learned):
    state, after = learned
    model = build()
    with mimose.attach(model, TIGHT, sheltered=5) as handle:
        handle.load_state_dict(json.loads(state))
        records = train(model, LENGTHS[:9], handle=handle)
        assert json.loads(json.dumps(handle.state_dict()))["model"] == json.loads(state)["model"]
    assert {r.phase for r in records} == {"responsive"}
    assert [r.plan for r in records] == [r.plan for r in after]
    assert any(not r.plan.keeps_all for r in records)


def test_what_was_learned_includes_the_step_that_has_just_ended():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with mimose.attach(model, "1GB", sheltered=2) as handle:
        for number in range(1, 3):
            model(tokens(100 * number)).backward()
            optimizer.step()
            optimizer.zero_grad()
            assert handle.statistics()["num_steps"] == 1
            (known,) = handle.state_dict()["learned"]["known"].values()
            assert known["iterations"] == number


def test_an_optimizer_that_was_resumed_is_known_to_have_its_state():
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(tokens(40)).backward()
    optimizer.step()
    optimizer.zero_grad()
    saved = optimizer.state_dict()
    ready = []
    for resumed in (False, True):
        again = build()
        optimizer = torch.optim.AdamW(again.parameters(), lr=1e-3)
        if resumed:
            optimizer.load_state_dict(saved)
        with mimose.attach(again, "1GB", sheltered=2) as handle:
            for _ in range(2):
                again(tokens(40)).backward()
                optimizer.step()
                optimizer.zero_grad()
                ready.append(handle.last_record.situation.optimizer_ready)
    assert ready == [False, True, True, True]


def frozen(model):
    model.layers[0].requires_grad_(False)
    return model


@pytest.mark.parametrize(
    ("change", "planner", "sentence"),
    [
        (lambda m: m.to(torch.bfloat16), "auto", "another dtype"),
        (frozen, "auto", "other trainable parameters"),
        (lambda m: build(7), "auto", "other blocks"),
        (lambda m: m, "full", "by the planner 'auto', not by 'full'"),
    ],
)
def test_what_was_learned_of_something_else_is_refused(learned, change, planner, sentence):
    state = json.loads(learned[0])
    model = change(build())
    options = {"sheltered": 5} if planner == "auto" else {}
    with mimose.attach(model, BUDGET, planner, **options) as handle:
        with pytest.raises(ValueError, match=sentence):
            handle.load_state_dict(state)
        with pytest.warns(UserWarning, match="learned anew"):
            handle.load_state_dict(state, strict=False)
        if planner == "auto":
            assert train(model, LENGTHS[:1], handle)[0].phase == "sheltered"


def test_samples_of_another_version_are_refused(learned):
    state = json.loads(learned[0])
    for known in state["learned"]["known"].values():
        known["samples"][0]["bytes"].pop()
    with (
        mimose.attach(build(), BUDGET, sheltered=5) as handle,
        pytest.raises(ValueError, match="saved by another version"),
    ):
        handle.load_state_dict(state)


def test_figures_are_of_the_steps_since_they_were_last_asked_for():
    model = build()
    with mimose.attach(model, BUDGET, "mimose", sheltered=5) as handle:
        assert handle.statistics() == {
            "num_steps": 0,
            "num_violations": 0,
            "planning_seconds": 0.0,
        }
        assert "steps: none yet" in handle.summary()
        train(model, LENGTHS[:4], handle)
        first = handle.statistics()
        records = train(model, LENGTHS[4:], handle)
        second = handle.statistics()
        assert "\n" not in repr(handle)
        summary = handle.summary()
    assert first["num_steps"] == 4
    assert first["recomputed_blocks"] == 6
    assert second["num_steps"] == len(records)
    assert second["peak_allocated_bytes"] == max(r.peak_allocated_bytes for r in records)
    assert second["recomputed_blocks"] == sum(r.plan.num_recomputed for r in records) / len(records)
    assert 0 < second["budget_use"] < 1
    assert second["predicted_peak_bytes"] == pytest.approx(second["peak_allocated_bytes"], rel=0.02)
    assert "Model (measured on cpu)" in summary
    assert "steps: 10, of which" in summary
    assert "violations: 0" in summary


def test_a_budget_may_be_a_share_of_the_devices_memory():
    model = build()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert budget_bytes("50%", model, None) == machine // 2
    assert budget_bytes(0.25, model, None) == machine // 4
    device = open_device("sim:v100-16gb")
    try:
        assert budget_bytes("50%", model, device) == device.gpu.memory_bytes // 2
    finally:
        device.close()


@pytest.mark.parametrize("budget", ["0%", "101%", "x%", 1.5])
def test_what_is_no_share_is_refused(budget):
    with pytest.raises(ValueError, match="no share of the device's memory"):
        mimose.attach(build(), budget)
