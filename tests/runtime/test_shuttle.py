"""What the collector measures, on a device whose memory is exact."""

import copy
import gc
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor
from mimose.solvers.packing import ROUND, round_up


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


class Layer(nn.Module):
    """Saves one tensor (the result of tanh) beside its input, and makes one more on the way."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.up = nn.Linear(width, width, bias=False)
        self.down = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(x)))


class Stack(nn.Module):
    def __init__(self, depth: int = 4, layer: type[nn.Module] = Layer) -> None:
        super().__init__()
        self.layers = nn.ModuleList([layer() for _ in range(depth)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


def test_a_known_block_is_measured_exactly(cpu: CpuDevice) -> None:
    rows = 1 << 16
    tensor = rows * 8 * 4
    model = Stack().train()
    cpu.adopt(model)
    x = cpu.put(torch.randn(rows, 8))
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(4), collect=True)
    loss = model(x)
    assert executor.collected() is None
    loss.backward()
    collected = executor.collected()
    assert collected is not None
    assert len(collected.blocks) == 4
    for i, sample in enumerate(collected.blocks):
        assert sample.block == i
        assert sample.activation_bytes == tensor
        assert sample.output_bytes == tensor
        # The product, its tanh and the next product live at once; then the sum.
        assert sample.kept_peak_bytes == 3 * tensor
        assert not sample.checkpointed
        assert not sample.inside_checkpoint
        assert not sample.around_checkpoint
        assert sample.forward_seconds > 0
    levels = [sample.level_bytes for sample in collected.blocks]
    steps = [high - low for low, high in itertools.pairwise(levels)]
    assert all(tensor <= step < tensor + 32768 for step in steps)
    assert collected.collector_seconds > sum(s.forward_seconds for s in collected.blocks)


def rounded(sizes: tuple[int, ...]) -> int:
    return sum(round_up(size, ROUND) for size in sizes)


def test_the_storages_of_a_known_block(cpu: CpuDevice) -> None:
    rows = 1 << 10
    model = Stack().train()
    cpu.adopt(model)
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(4), collect=True)
    model(cpu.put(torch.randn(rows, 8))).backward()
    collected = executor.collected()
    assert collected is not None
    # The inputs, which linear layers save, too, are what the block was given.
    assert [s.saved_storages for s in collected.blocks] == [(rows * 32,)] * 4
    assert [s.output_storages for s in collected.blocks] == [(rows * 32,)] * 4


class Weighing(Layer):
    """Returns the weights, too, which it saves for its backward."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        weights = torch.tanh(self.up(x))
        return x + self.down(weights), weights


class Careless(Stack):
    """Takes no notice of the weights, or returns them all."""

    def __init__(self, *, careful: bool) -> None:
        super().__init__(4, Weighing)
        self.careful = careful

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        held = []
        for layer in self.layers:
            x, weights = layer(x)
            if self.careful:
                held.append(weights)
        return x.sum(), held


@pytest.mark.parametrize("careful", [False, True])
def test_an_output_that_nobody_holds_counts_as_saved(careful: bool, cpu: CpuDevice) -> None:
    """Recomputed, a block leaves nothing of it; kept, it keeps it as it keeps its activations."""
    rows = 1 << 16
    tensor = rows * 32
    model = Careless(careful=careful).train()
    cpu.adopt(model)
    x = cpu.put(torch.randn(rows, 8))
    executor = Executor(model, cpu, find_blocks(model))

    def held_by_forward(plan: Plan, collect: bool = False) -> int:
        before = cpu.allocated_bytes()
        executor.begin(plan, collect=collect)
        loss, _weights = model(x)
        held = cpu.allocated_bytes() - before
        loss.backward()
        return round(held / tensor)

    held_by_forward(Plan.keep_all(4), collect=True)
    collected = executor.collected()
    assert collected is not None
    for sample in collected.blocks:
        outputs = 2 if careful else 1
        assert sample.output_bytes == rounded(sample.output_storages) == outputs * tensor
        assert len(sample.output_storages) == outputs
        assert sample.activation_bytes == rounded(sample.saved_storages) == (2 - outputs) * tensor
    # What a block keeps beyond what it leaves recomputed is what was measured.
    costs = held_by_forward(Plan.keep_all(4)) - held_by_forward(Plan.recompute_each(4))
    assert costs == sum(s.activation_bytes for s in collected.blocks) // tensor


def bert(attention: str = "eager") -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=256,
        num_hidden_layers=4,
        attn_implementation=attention,
    )
    return transformers.BertForQuestionAnswering(config).train()


def measured_step(
    executor: Executor, device: CpuDevice, plan: Plan, batch: dict[str, Any], collect: bool = False
) -> int:
    """Return the peak above the start of the step; gradients stay allocated between steps."""
    executor._model.zero_grad(set_to_none=False)
    torch.manual_seed(5)
    before = device.allocated_bytes()
    device.begin_step()
    executor.begin(plan, collect=collect)
    executor._model(**batch).loss.backward()
    return device.end_step().peak_allocated - before


def test_levels_add_up_to_the_peak_of_recomputing_everything(cpu: CpuDevice) -> None:
    model = bert()
    cpu.adopt(model)
    tokens = torch.randint(0, 100, (4, 64))
    batch = cpu.put(
        {
            "input_ids": tokens,
            "start_positions": torch.tensor([1] * 4),
            "end_positions": torch.tensor([3] * 4),
        }
    )
    executor = Executor(model, cpu, find_blocks(model))
    full, keep = Plan.recompute_each(4), Plan.keep_all(4)
    measured_step(executor, cpu, full, batch)
    peak_full = measured_step(executor, cpu, full, batch)
    peak_kept = measured_step(executor, cpu, keep, batch)
    measured_step(executor, cpu, full, batch, collect=True)
    peak_collecting = measured_step(executor, cpu, full, batch, collect=True)
    collected = executor.collected()
    assert collected is not None
    blocks = collected.blocks
    assert all(sample.backward_peak_bytes is not None for sample in blocks)
    highest = max(
        collected.first_peak_bytes,
        collected.head_peak_bytes,
        collected.tail_peak_bytes,
        *(s.level_bytes + s.checkpoint_peak_bytes for s in blocks),
        *(s.backward_peak_bytes for s in blocks),
    )
    assert highest == pytest.approx(peak_full, rel=0.002)
    assert peak_kept > 1.5 * peak_full
    one = max(s.activation_bytes + s.output_bytes for s in blocks)
    assert peak_collecting <= peak_full + one
    # Each block's backward holds its own activations again.
    assert all(s.backward_peak_bytes >= s.level_bytes + s.activation_bytes for s in blocks)
    # Keeping one block costs its activations from then on: seen at the block that ends the pass.
    peak_mixed = measured_step(executor, cpu, Plan.recompute_each(4, [0, 1, 2]), batch)
    assert peak_mixed == pytest.approx(peak_full, rel=0.01)


@pytest.mark.parametrize("length", [17, 64])
@pytest.mark.parametrize(("attention", "unlisted"), [("sdpa", 0), ("eager", ROUND)])
def test_storages_add_up_to_what_a_bert_layer_keeps(
    attention: str, unlisted: int, length: int, cpu: CpuDevice
) -> None:
    """Python numbers that autograd saves pass no hook: eager attention's scale is one.

    On cuda such a number lies in the host's memory.
    """
    model = bert(attention)
    cpu.adopt(model)
    positions = torch.tensor([1, 2, 3])
    batch = cpu.put(
        {
            "input_ids": torch.randint(0, 100, (3, length)),
            "attention_mask": torch.ones(3, length, dtype=torch.long),
            "start_positions": positions,
            "end_positions": positions,
        }
    )
    executor = Executor(model, cpu, find_blocks(model))
    for plan in (Plan.recompute_each(4), Plan.keep_all(4), Plan.recompute_each(4)):
        measured_step(executor, cpu, plan, batch, collect=True)
        collected = executor.collected()
        assert collected is not None
        assert len(collected.blocks) == 4
        for sample in collected.blocks:
            kept = sample.activation_bytes + sample.output_bytes
            listed = rounded(sample.saved_storages) + rounded(sample.output_storages)
            assert listed == kept - unlisted
            assert sample.output_storages == (3 * length * 64 * 4,)
            assert rounded(sample.output_storages) == sample.output_bytes
            if attention == "eager":
                # Softmax's result, dropout's mask and the product of the two.
                assert sample.saved_storages.count(3 * 2 * length * length * 4) == 3


@pytest.mark.parametrize("plan", [Plan.recompute_each(4), Plan.keep_all(4)], ids=str)
def test_a_collecting_step_leaves_nothing_behind(plan: Plan, cpu: CpuDevice) -> None:
    """Softmax and tanh save their own outputs, and a reference to it would be a cycle."""
    model = bert()
    cpu.adopt(model)
    positions = torch.tensor([1, 2])
    batch = cpu.put(
        {
            "input_ids": torch.randint(0, 100, (2, 32)),
            "start_positions": positions,
            "end_positions": positions,
        }
    )
    executor = Executor(model, cpu, find_blocks(model))
    held = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            executor.begin(plan, collect=True)
            model(**batch).loss.backward()
            model.zero_grad(set_to_none=True)
            held.append(cpu.allocated_bytes())
    finally:
        gc.enable()
    assert held[1:] == held[:1] * 3


def test_a_kept_output_of_a_collecting_step_is_freed_with_it(cpu: CpuDevice) -> None:
    """The same where the backward pass, which frees what is saved, never runs."""
    rows = 1 << 12
    model = Stack().train()
    cpu.adopt(model)
    x = cpu.put(torch.randn(rows, 8))
    executor = Executor(model, cpu, find_blocks(model))
    gc.collect()
    gc.disable()
    try:
        before = cpu.allocated_bytes()
        executor.begin(Plan.keep_all(4), collect=True)
        loss = model(x)
        assert cpu.allocated_bytes() > before + rows * 32
        del loss
        executor.begin(Plan.keep_all(4))
        assert cpu.allocated_bytes() <= before + 4096
    finally:
        gc.enable()


def test_collecting_changes_nothing(cpu: CpuDevice) -> None:
    model = bert()
    twin = copy.deepcopy(model)
    executor = Executor(model, cpu, find_blocks(model))
    batch = {"input_ids": torch.randint(0, 100, (2, 16)), "start_positions": torch.tensor([1, 2])}
    batch["end_positions"] = batch["start_positions"]
    for _ in range(2):
        measured_step(executor, cpu, Plan.keep_all(4), batch, collect=True)
        twin.zero_grad()
        torch.manual_seed(5)
        twin(**batch).loss.backward()
        for one, other in zip(model.parameters(), twin.parameters()):
            assert torch.equal(one.grad, other.grad)


class Inside(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.down, self.up(x), use_reentrant=False)


class Reentrant(Layer):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + checkpoint(self.down, self.up(x), use_reentrant=True)


@pytest.mark.parametrize("layer", [Inside, Reentrant])
def test_checkpoints_within_a_block_are_flagged(layer: type[nn.Module], cpu: CpuDevice) -> None:
    model = Stack(2)
    model.layers[1] = layer()
    executor = Executor(model.train(), cpu, find_blocks(model, ["layers.*"]))
    for _ in range(2):
        executor.begin(Plan.keep_all(2), collect=True)
        model(torch.randn(2, 8)).backward()
        collected = executor.collected()
        assert collected is not None
        assert [s.around_checkpoint for s in collected.blocks] == [False, True]


def test_a_flag_switched_on_later_is_seen(cpu: CpuDevice) -> None:
    model = bert()
    executor = Executor(model, cpu, find_blocks(model))
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable()
    measured_step(
        executor,
        cpu,
        Plan.keep_all(4),
        {
            "input_ids": torch.randint(0, 100, (2, 16)),
            "start_positions": torch.tensor([1, 2]),
            "end_positions": torch.tensor([1, 2]),
        },
        collect=True,
    )
    collected = executor.collected()
    assert collected is not None
    assert all(sample.checkpointed for sample in collected.blocks)


def test_a_checkpoint_around_the_model_is_flagged(cpu: CpuDevice) -> None:
    model = Stack(2).train()
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(2), collect=True)
    checkpoint(model, torch.randn(2, 8), use_reentrant=False).backward()
    collected = executor.collected()
    assert collected is not None
    assert [s.inside_checkpoint for s in collected.blocks] == [True, True]


def test_frozen_blocks_are_measured_but_not_run_twice(cpu: CpuDevice) -> None:
    model = Stack(3).train()
    model.layers[0].requires_grad_(False)
    calls: list[int] = []
    model.layers[0].up.register_forward_hook(lambda *_: calls.append(1))
    cpu.adopt(model)
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(3), collect=True)
    model(cpu.put(torch.randn(4096, 8))).backward()
    collected = executor.collected()
    assert collected is not None
    assert executor.free == {0}
    assert calls == [1]
    first = collected.blocks[0]
    assert (first.activation_bytes, first.backward_peak_bytes) == (0, None)


@pytest.mark.parametrize(
    ("text", "saved"),
    [
        ("keep 0-3", 4 + 4 - 1),  # each block's tanh, and each block's input but the first
        ("recompute each 0-3", 3),
        ("recompute 0-1 | recompute 2-3", 1),
        ("recompute 0-3", 0),
        ("recompute 0-3 (recompute 0-1 | recompute 2-3)", 0),
    ],
)
def test_a_region_saves_its_input_only(text: str, saved: int, cpu: CpuDevice) -> None:
    rows = 1 << 16
    model = Stack().train()
    cpu.adopt(model)
    x = cpu.put(torch.randn(rows, 8))
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(Plan.keep_all(4), collect=True)
    model(x).backward()
    before = cpu.allocated_bytes()
    executor.begin(Plan.parse(text, 4))
    loss = model(x)
    held = cpu.allocated_bytes() - before
    # Beside them a random state of 5 KiB a checkpoint.
    assert saved * rows * 32 <= held < saved * rows * 32 + 65536
    loss.backward()
    del loss
    assert cpu.allocated_bytes() <= before
