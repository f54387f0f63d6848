"""A profile leaves nothing behind and tells times, FLOPs and peaks."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import mimose
from mimose.costs import predict_backward_flops
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.planners.static import Solution, Static, StepCosts


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


class Fixed(Static):
    """Has a plan of its own, whatever it costs."""

    name = "fixed-for-tests"

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def solve(self, costs: StepCosts, progress: Any = None) -> Solution:
        return costs.choose([Plan.parse(self.text, costs.num_blocks)])


def bert() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=256,
        num_hidden_layers=5,
        attn_implementation="eager",
    )
    positions = torch.tensor([1, 2, 3, 4])
    batch = {"input_ids": torch.randint(0, 100, (4, 64)), "start_positions": positions}
    return transformers.BertForQuestionAnswering(config), {**batch, "end_positions": positions}


def resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[2, 2], num_labels=2
    )
    batch = {"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.tensor([0, 1, 1])}
    return transformers.ResNetForImageClassification(config), batch


def train(
    model: nn.Module,
    batch: dict[str, Any],
    cpu: CpuDevice,
    *,
    profile: bool,
    keeps_gradients: bool,
    budget: int | None,
) -> list[torch.Tensor]:
    """Return all that three steps leave, after a profile or not."""
    torch.manual_seed(5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    with mimose.attach(
        model, budget, Fixed("recompute 0-1 | keep 2"), device=cpu, enforce=budget is not None
    ) as handle:
        step = lambda: model(**batch).loss.backward()  # noqa: E731
        if profile:
            handle.profile(step, (4, 64), optimizer=optimizer, keeps_gradients=keeps_gradients)
            assert all(p.grad is None for p in model.parameters())
            assert not optimizer.state
        else:
            plan = Plan.parse("recompute 0-1 | keep 2", len(handle.block_names))
            handle.planner.unprofiled = lambda: plan
        for _ in range(3):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=not keeps_gradients)
            losses.append(loss.detach())
    state = [value for each in optimizer.state.values() for value in each.values()]
    return [*losses, *model.state_dict().values(), *state, torch.get_rng_state()]


@pytest.mark.parametrize("keeps_gradients", [True, False])
@pytest.mark.parametrize("budget", [None, 200 << 20])
@pytest.mark.parametrize("build", [bert, resnet])
def test_training_goes_on_as_if_there_had_been_no_profile(
    build: Any, budget: int | None, keeps_gradients: bool, cpu: CpuDevice
) -> None:
    torch.manual_seed(0)
    model, batch = build()
    twin = copy.deepcopy(model)
    batch = cpu.put(batch)
    ends = []
    for each, profile in ((model, True), (twin, False)):
        cpu.adopt(each.train())
        ends.append(
            train(each, batch, cpu, profile=profile, keeps_gradients=keeps_gradients, budget=budget)
        )
    assert len(ends[0]) == len(ends[1])
    assert all(map(torch.equal, *ends))


def test_flops_of_a_block_are_pytorchs(cpu: CpuDevice) -> None:
    model, batch = bert()
    cpu.adopt(model.train())
    batch = cpu.put(batch)
    planner = Fixed("keep 0")
    with mimose.attach(model, None, planner, device=cpu) as handle:
        handle.profile(lambda: model(**batch).loss.backward(), (4, 64))
    assert planner.costs is not None
    profile = planner.costs.profile
    hidden = torch.randn(4, 64, 64, requires_grad=True)
    with FlopCounterMode(display=False) as forward:
        output = model.bert.encoder.layer[0](hidden)
    with FlopCounterMode(display=False) as backward:
        output.sum().backward()
    assert profile.forward_flops == (forward.get_total_flops(),) * 5
    assert profile.backward_flops == (backward.get_total_flops(),) * 5
    # A rerun ends with the block's last saved tensor, behind its last matrix product.
    assert profile.recompute_flops == profile.forward_flops
    for times in (profile.forward_seconds, profile.recompute_seconds, profile.backward_seconds):
        assert min(times) > 0
    assert profile.outside_seconds > 0
    assert profile.outside_flops > 0


TREES = (
    "keep 0-4",
    "recompute each 0-4",
    "recompute 0-2 | keep 3 | recompute 4",
    "keep 0 | recompute 1-4",
    "recompute 0-4 (keep 0 | recompute 1-4 (recompute each 1-2 | recompute 3-4))",
    "recompute 1-3 (recompute 1 | recompute 2-3)",
)


@pytest.mark.parametrize("keeps_gradients", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_trees_cost_what_is_predicted(keeps_gradients: bool, cpu: CpuDevice) -> None:
    model, batch = bert()
    cpu.adopt(model.train())
    batch = cpu.put(batch)
    for text in TREES:
        model.zero_grad()
        planner = Fixed(text)
        with mimose.attach(model, None, planner, device=cpu) as handle:
            solution = handle.profile(
                lambda: model(**batch).loss.backward(),
                (4, 64),
                optimizer=torch.optim.SGD(model.parameters(), lr=0.1, foreach=False),
                keeps_gradients=keeps_gradients,
            )
            assert solution is not None
            assert planner.costs is not None
            handle.begin((4, 64))
            with FlopCounterMode(display=False) as counter:
                model(**batch).loss.backward()
            handle.end()
            profile = planner.costs.profile
            outside = sum(profile.forward_flops) + profile.outside_flops
            predicted = outside + predict_backward_flops(profile, solution.plan)
            assert counter.get_total_flops() == predicted, text
            del counter
            for p in model.parameters():
                p.grad = torch.zeros_like(p) if keeps_gradients else None
            handle.begin((4, 64))
            model(**batch).loss.backward()
            record = handle.end()
            assert record is not None
            assert record.peak_allocated_bytes == pytest.approx(
                record.predicted_peak_bytes, rel=0.005
            )
            model.zero_grad()


def test_gradients_in_the_way_are_refused(cpu: CpuDevice) -> None:
    model, batch = bert()
    with mimose.attach(model.train(), None, Fixed("keep 0"), device=cpu) as handle:
        next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
        with pytest.raises(ValueError, match="zero_grad"):
            handle.profile(lambda: model(**batch).loss.backward(), (4, 64))
