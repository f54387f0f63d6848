"""Recomputing attention cores alone: numbers as without it, less memory, the core's FLOPs more."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
Case = tuple[nn.Module, dict[str, Any]]


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def tokens(*shape: int) -> dict[str, torch.Tensor]:
    ids = torch.randint(5, 50, shape)
    mask = torch.ones_like(ids)
    mask[..., -2:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def bert(attention: str = "eager") -> Case:
    config = transformers.BertConfig(
        vocab_size=50, num_hidden_layers=4, attn_implementation=attention, **SMALL
    )
    labels = torch.tensor([0, 1])
    return transformers.BertForSequenceClassification(config), {**tokens(2, 9), "labels": labels}


def bert_attentions() -> Case:
    model, batch = bert()
    return model, {**batch, "output_attentions": True}


def roberta() -> Case:
    config = transformers.RobertaConfig(vocab_size=50, num_hidden_layers=4, **SMALL)
    model = transformers.RobertaForMultipleChoice(config)
    return model, {**tokens(2, 3, 9), "labels": torch.tensor([0, 1])}


def xlnet() -> Case:
    config = transformers.XLNetConfig(
        vocab_size=50, d_model=32, n_layer=4, n_head=2, d_inner=48, dropout=0.1
    )
    model = transformers.XLNetForSequenceClassification(config)
    return model, {**tokens(2, 9), "labels": torch.tensor([0, 1])}


def t5() -> Case:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=48, num_layers=2, num_heads=2
    )
    config.decoder_start_token_id = 0
    batch = {**tokens(2, 9), "labels": torch.randint(5, 50, (2, 7))}
    return transformers.T5ForConditionalGeneration(config), batch


def swin() -> Case:
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=12,
        depths=[2, 2],
        num_heads=[1, 2],
        window_size=4,
        attention_probs_dropout_prob=0.1,
        drop_path_rate=0.1,
    )
    model = transformers.SwinForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}


CASES: dict[str, Callable[[], Case]] = {
    "bert": bert,
    "bert_sdpa": lambda: bert("sdpa"),
    "bert_attentions": bert_attentions,
    "roberta": roberta,
    "xlnet": xlnet,
    "t5": t5,
    "swin": swin,
}
ALL = Plan(4, (), (0, 1, 2, 3))


def counted_step(model: nn.Module, batch: dict[str, Any]) -> tuple[list[torch.Tensor], int]:
    """Return what :func:`step` does, and the FLOPs that it took."""
    with FlopCounterMode(display=False) as counter:
        return step(model, batch), counter.get_total_flops()


def step(model: nn.Module, batch: dict[str, Any]) -> list[torch.Tensor]:
    """Return loss, outputs and gradients."""
    torch.manual_seed(7)
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    attentions = output.attentions if batch.get("output_attentions") else ()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    made = [output.loss.detach(), *(a.detach() for a in attentions), *gradients]
    return [*made, torch.get_rng_state()]


@pytest.mark.parametrize("name", CASES)
def test_the_same_numbers(name: str, cpu: CpuDevice) -> None:
    torch.manual_seed(0)
    model, batch = CASES[name]()
    model.train()
    plain = copy.deepcopy(model)
    for config in (module.config for module in plain.modules() if hasattr(module, "config")):
        if getattr(config, "use_cache", False):
            config.use_cache = False
    want, flops = counted_step(plain, batch)
    executor = Executor(model, cpu, find_blocks(model))
    texts = (
        "selective 0-3",
        "selective 0-3",
        "keep 0 | selective 1-2",
        "recompute 0 | selective 2",
    )
    for text in texts:
        plan = Plan.parse(text, 4)
        executor.begin(plan)
        got, more = counted_step(model, batch)
        assert executor.effective_plan == plan
        assert len(got) == len(want)
        assert all(map(torch.equal, got, want))
        assert more > flops
    assert executor.cores == {0, 1, 2, 3}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_grows_with_the_square_of_the_length_is_not_held(
    attention: str, cpu: CpuDevice
) -> None:
    model, _ = bert(attention)
    cpu.adopt(model.train())
    executor = Executor(model, cpu, find_blocks(model))

    def held(plan: Plan, length: int) -> int:
        batch = cpu.put({"input_ids": torch.randint(5, 50, (2, length)), "labels": [0, 1]})
        batch["labels"] = cpu.put(torch.tensor([0, 1]))
        executor.begin(plan)
        before = cpu.allocated_bytes()
        loss = model(**batch).loss
        after = cpu.allocated_bytes() - before
        loss.backward()
        return after

    held(ALL, 16)
    scores = 4 * 2 * 2 * 128 * 128 * 4  # One matrix of scores in each of four layers.
    difference = held(Plan.keep_all(4), 128) - held(ALL, 128)
    # Three of them: softmax's result, dropout's mask and the product of the two.
    assert 2.9 * scores < difference < 3.1 * scores


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_a_collecting_step_measures_blocks_without_their_cores(name: str, cpu: CpuDevice) -> None:
    model, batch = CASES[name]()
    cpu.adopt(model.train())
    batch = cpu.put(batch)
    want = step(copy.deepcopy(model), batch)
    executor = Executor(model, cpu, find_blocks(model))
    samples = {}
    for cores in ((), (0, 1, 2, 3), (0, 1, 2, 3)):
        executor.begin(Plan(4, (), cores), collect=True, count=True)
        with executor.counting():
            got = step(model, batch)
        assert all(map(torch.equal, got, want))
        assert executor.effective_plan == Plan.recompute_each(4)
        collected = executor.collected()
        assert collected is not None
        samples[cores] = collected.blocks
    plain, selective = samples[()], samples[0, 1, 2, 3]
    for one, other in zip(plain, selective):
        assert not other.around_checkpoint
        assert other.forward_flops == one.forward_flops
        assert other.recompute_flops == one.recompute_flops
        assert one.core_flops == 0 < (other.core_flops or 0)
        assert (other.backward_flops or 0) - (one.backward_flops or 0) == other.core_flops
        assert other.core_seconds > 0


def test_nothing_is_left_behind() -> None:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    device = CpuDevice()
    try:
        for name in ("bert", "xlnet"):
            model, batch = CASES[name]()
            attributes = {n: set(vars(m)) for n, m in model.named_modules()}
            executor = Executor(model.train(), device, find_blocks(model))
            executor.begin(ALL)
            before = set(vars(FUNCTIONS))
            step(model, batch)
            assert set(vars(FUNCTIONS)) == before
            executor.detach()
            assert {n: set(vars(m)) for n, m in model.named_modules()} == attributes
    finally:
        device.close()


def test_a_model_without_such_a_core_is_refused(cpu: CpuDevice) -> None:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[2, 2], num_labels=2
    )
    model = transformers.ResNetForImageClassification(config).train()
    executor = Executor(model, cpu, find_blocks(model))
    executor.begin(ALL)
    with pytest.raises(ValueError, match="ALL_ATTENTION_FUNCTIONS") as error:
        model(torch.randn(2, 3, 32, 32), labels=torch.tensor([0, 1]))
    assert "XLNet" in str(error.value)
