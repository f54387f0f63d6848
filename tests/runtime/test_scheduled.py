"""Explicit schedules on real models: numbers as without one, memory and FLOPs as predicted."""

import copy
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import mimose
from mimose.costs import predict_backward_flops, predict_peak
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.planners.static import Solution, Static, StepCosts
from mimose.records import Situation
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor
from mimose.schedule import Instruction, Schedule

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def random_schedule(count: int, chance: random.Random) -> Schedule:
    """Return a valid schedule: what is kept, held, let go and computed once more is all chance."""
    found = [Instruction(block) for block in range(count)]
    saved = {block for block in range(count) if chance.random() < 0.4}
    held = {block for block in range(count - 1) if chance.random() < 0.4}

    def make(block: int) -> None:
        if block >= 0 and block not in held:
            make(block - 1)
            found.append(Instruction(block))
            held.add(block)

    for stage in reversed(range(count)):
        make(stage - 1)
        if stage not in saved:
            found.append(Instruction(stage))
        if stage and chance.random() < 0.3:
            early = chance.randrange(stage)
            make(early - 1)
            found.append(Instruction(early))
            held.add(early)
            saved.add(early)
            make(stage - 1)
        found.append(Instruction(stage, True))
        held -= {block for block in held if chance.random() < 0.5 and block != stage - 1}
    return Schedule(count, tuple(found))


def bert(**settings: Any) -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(
        vocab_size=50, num_hidden_layers=5, attn_implementation="eager", **{**SMALL, **settings}
    )
    tokens = torch.randint(5, 50, (2, 9))
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
    return transformers.BertForSequenceClassification(config), {
        **batch,
        "labels": torch.tensor([0, 1]),
    }


def frozen_bottom() -> tuple[nn.Module, dict[str, Any]]:
    model, batch = bert()
    for module in (model.bert.embeddings, *model.bert.encoder.layer[:2]):
        module.requires_grad_(False)
    return model, batch


def t5() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=48, num_layers=3, num_heads=2
    )
    config.decoder_start_token_id = 0
    model = transformers.T5ForConditionalGeneration(config)
    batch = {"input_ids": torch.randint(5, 50, (2, 9)), "labels": torch.randint(5, 50, (2, 7))}
    return model, batch


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[3, 3], num_labels=2
    )
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.tensor([0, 1, 1])}


MODELS = {"bert": bert, "frozen_bottom": frozen_bottom, "t5": t5, "resnet": resnet}


def step(model: nn.Module, batch: dict[str, Any]) -> list[torch.Tensor]:
    """Return the loss, the gradients, the buffers and the random state after a step."""
    torch.manual_seed(7)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    buffers = [b.clone() for b in model.buffers()]
    return [loss.detach(), *gradients, *buffers, torch.get_rng_state()]


def assert_equal(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    assert len(got) == len(want)
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("name", MODELS)
def test_any_schedule_gives_the_same_numbers(name: str, cpu: CpuDevice) -> None:
    torch.manual_seed(0)
    model, batch = MODELS[name]()
    model.train()
    state = copy.deepcopy(model.state_dict())
    plain = copy.deepcopy(model)
    for config in (module.config for module in plain.modules() if hasattr(module, "config")):
        if getattr(config, "use_cache", False):
            config.use_cache = False
    want = step(plain, batch)
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(6), collect=True)  # The data flow is recorded.
    step(model, batch)
    chance = random.Random(3)
    carried_out = 0
    for _ in range(8):
        schedule = random_schedule(len(executor.block_names), chance)
        model.load_state_dict(state)
        executor.begin(schedule)
        assert_equal(step(model, batch), want)
        tree = schedule.to_plan()
        if tree is None:
            assert executor.effective_plan == schedule
            carried_out += 1
        else:
            assert executor.effective_plan == tree.cut(executor.cuts or ())
    assert carried_out >= 5


class Choosy(Static):
    """Keeps what it was told of a step's costs."""

    name = "choosy"

    def solve(self, costs: StepCosts, progress: Any = None) -> Solution:
        return costs.choose([Plan.keep_all(costs.num_blocks)])


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize("name", ["bert", "t5", "resnet"])
def test_peaks_and_flops_are_as_predicted(name: str, resident: bool, cpu: CpuDevice) -> None:
    torch.manual_seed(0)
    if name == "bert":
        model, _ = bert(hidden_size=64, intermediate_size=256)
        batch = {"input_ids": torch.randint(5, 50, (4, 96)), "labels": torch.tensor([0, 1, 1, 0])}
    elif name == "t5":
        model, _ = t5()
        tokens = torch.randint(5, 50, (8, 64))
        batch = {"input_ids": tokens, "labels": tokens}
    else:
        model, _ = resnet()
        images = torch.randn(8, 3, 64, 64)
        batch = {"pixel_values": images, "labels": torch.zeros(8, dtype=torch.long)}
    cpu.adopt(model.train())
    batch = cpu.put(batch)
    planner = Choosy()
    with mimose.attach(model, None, planner, device=cpu) as handle:
        handle.profile(lambda: model(**batch).loss.backward(), (4, 96), keeps_gradients=resident)
        assert planner.costs is not None
        profile, info = planner.costs.profile, planner.info
        executor = handle._executor
        chance = random.Random(1)
        worst = 0
        for _ in range(5):
            schedule = random_schedule(info.num_blocks, chance)
            if schedule.to_plan() is not None:
                continue
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if resident else None
            before = cpu.allocated_bytes()
            cpu.begin_step()
            executor.begin(schedule)
            model(**batch).loss.backward()
            got = cpu.end_step().peak_allocated - before
            want = predict_peak(profile, schedule, info, Situation(0, grads_resident=resident))
            assert got <= want.bytes * 1.005
            # A run that stops early never makes its block's output.
            assert want.bytes <= got * 1.02 + 2 * max(profile.output)
            worst = max(worst, got)
            executor.begin(schedule)
            with FlopCounterMode(display=False) as counter:
                model(**batch).loss.backward()
            cuts = info.cuts or ()
            outside = sum(profile.forward_flops) + profile.outside_flops
            predicted = outside + predict_backward_flops(profile, schedule, cuts)
            assert counter.get_total_flops() == predicted
        keep = predict_peak(profile, Plan.keep_all(info.num_blocks), info, Situation(0))
        assert worst < keep.bytes


def test_memory_after_the_forward_and_the_backward_pass(cpu: CpuDevice) -> None:
    """What no run keeps is gone after the forward pass, and everything after the backward pass."""
    model, _ = bert(hidden_size=64, intermediate_size=256)
    cpu.adopt(model.train())
    batch = cpu.put(
        {"input_ids": torch.randint(5, 50, (4, 64)), "labels": torch.tensor([0, 1, 1, 0])}
    )
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(5), collect=True)
    model(**batch).loss.backward()

    def held(plan: Plan | Schedule) -> int:
        model.zero_grad(set_to_none=False)
        before = cpu.allocated_bytes()
        executor.begin(plan)
        loss = model(**batch).loss
        after = cpu.allocated_bytes() - before
        loss.backward()
        # Though the loss is still there: its scalar, and what lies in the graph besides.
        assert cpu.allocated_bytes() - before < 16384
        return after

    output = 4 * 64 * 64 * 4
    nothing = Schedule.parse(
        "f0 f1 f2 f3 f4 f0 f1 f2 f3 F4 B4 f0 f1 f2 F3 B3 f0 f1 F2 F0 B2 F1 B1 B0"
    )
    assert nothing.to_plan() is None
    assert held(nothing) < held(Plan.recompute_each(5)) - 3 * output
    assert held(Plan.keep_all(5)) > 10 * held(Plan.recompute_each(5))


def test_before_the_flow_is_known_blocks_are_recomputed_singly(cpu: CpuDevice) -> None:
    model, batch = bert()
    executor = Executor(model.train(), cpu, find_blocks(model))
    schedule = Schedule.parse("f0 f1 f2 F3 F4 B4 B3 f0 f1 F2 F0 B2 F1 B1 B0")
    assert schedule.to_plan() is None
    plain = step(copy.deepcopy(model), batch)
    for expected in (Plan.recompute_each(5, [0, 1, 2]), schedule):
        executor.begin(schedule)
        assert_equal(step(model, batch), plain)
        assert executor.effective_plan == expected
    assert str(executor.effective_plan) == str(schedule)


def test_a_block_that_must_not_run_twice_stays_as_it_is(cpu: CpuDevice) -> None:
    model, batch = bert()
    executor = Executor(model.train(), cpu, find_blocks(model))
    executor.begin(Plan.keep_all(5), collect=True)
    step(model, batch)
    executor._keep_only.add((1, 0))
    plain = step(copy.deepcopy(model), batch)
    executor.begin(Schedule.parse("f0 f1 f2 F3 F4 B4 B3 f0 f1 F2 F0 B2 F1 B1 B0"))
    assert_equal(step(model, batch), plain)
    assert executor.effective_plan == Plan.recompute_each(5, [0, 2])


def kept_after(loss: torch.Tensor, cpu: CpuDevice, before: int, times: int) -> list[int]:
    """Go back through one graph several times; return what is allocated after each."""
    held = []
    for left in reversed(range(times)):
        loss.backward(retain_graph=left > 0)
        held.append(cpu.allocated_bytes() - before)
    return held


@pytest.mark.parametrize(
    "text",
    [
        "f0 f1 f2 F3 F4 B4 B3 f0 f1 F2 F0 B2 F1 B1 B0",
        "F0 f1 f2 F3 F4 B4 B3 F1 F2 B2 B1 B0",  # Comes to a tree, which PyTorch's checkpoint runs.
        "f0 f1 f2 f3 f4 f0 f1 f2 f3 F4 B4 f0 f1 f2 F3 B3 f0 f1 F2 F0 B2 F1 B1 B0",
    ],
)
def test_going_back_twice_gives_the_same_gradients_twice(cpu: CpuDevice, text: str) -> None:
    model, batch = bert()
    cpu.adopt(model.train())
    batch = cpu.put(batch)
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(5), collect=True)
    step(model, batch)
    model.zero_grad()

    def gradients(plan: Any) -> tuple[list[torch.Tensor], list[int]]:
        torch.manual_seed(3)
        before = cpu.allocated_bytes()
        executor.begin(plan)
        held = kept_after(model(**batch).loss, cpu, before, 3)
        found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        return found, held

    (plain, _), (again, held) = gradients(Plan.keep_all(5)), gradients(Schedule.parse(text))
    assert len(plain) == len(again) > 0
    assert all(map(torch.equal, plain, again))
    # What stays for the next time stays as it was, and all of it goes with the last.
    assert held[0] == held[1] > held[2]


def test_gradients_of_gradients_are_refused(cpu: CpuDevice) -> None:
    model, batch = bert()
    executor = Executor(model.train(), cpu, find_blocks(model))
    executor.begin(Plan.keep_all(5), collect=True)
    step(model, batch)
    executor.begin(Schedule.parse("f0 f1 f2 F3 F4 B4 B3 f0 f1 F2 F0 B2 F1 B1 B0"))
    loss = model(**batch).loss
    with pytest.raises(RuntimeError, match=r"create_graph=True\): use a plan"):
        loss.backward(create_graph=True)


def test_a_step_that_fails_lets_go_of_everything(cpu: CpuDevice) -> None:
    model, batch = bert()
    cpu.adopt(model.train())
    batch = cpu.put(batch)
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(5), collect=True)
    step(model, batch)
    model.zero_grad()
    before = cpu.allocated_bytes()
    executor.begin(Schedule.parse("f0 f1 f2 F3 F4 B4 B3 f0 f1 F2 F0 B2 F1 B1 B0"))
    loss = model(**batch).loss
    del loss  # No backward pass.
    assert cpu.allocated_bytes() <= before
