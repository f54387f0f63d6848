"""Whatever the plan, losses and gradients are those of the plain model, bit for bit."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers

from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

Case = tuple[torch.nn.Module, dict[str, Any]]
SMALL = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 48}


def ids(high: int = 50, batch: int = 2, length: int = 9) -> torch.Tensor:
    return torch.randint(5, high, (batch, length))


def padded(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    mask = torch.ones_like(tokens)
    mask[0, -3:] = 0
    return {"input_ids": tokens, "attention_mask": mask}


def bert() -> Case:
    config = transformers.BertConfig(vocab_size=50, num_hidden_layers=5, **SMALL)
    model = transformers.BertForSequenceClassification(config)
    return model, {**padded(ids()), "labels": torch.tensor([0, 1])}


def modernbert() -> Case:
    config = transformers.ModernBertConfig(
        vocab_size=50,
        num_hidden_layers=7,
        attention_dropout=0.1,
        mlp_dropout=0.1,
        embedding_dropout=0.1,
        local_attention=4,
        pad_token_id=0,
        **SMALL,
    )
    model = transformers.ModernBertForSequenceClassification(config)
    return model, {**padded(ids()), "labels": torch.tensor([0, 1])}


def gemma3() -> Case:
    config = transformers.Gemma3TextConfig(
        vocab_size=50,
        num_hidden_layers=6,
        num_key_value_heads=1,
        head_dim=16,
        sliding_window=4,
        attention_dropout=0.1,
        sliding_window_pattern=3,
        **SMALL,
    )
    tokens = ids()
    return transformers.Gemma3ForCausalLM(config), {**padded(tokens), "labels": tokens}


def t5() -> Case:
    config = transformers.T5Config(
        vocab_size=50, d_model=32, d_kv=16, d_ff=48, num_layers=4, num_heads=2
    )
    config.decoder_start_token_id = 0
    return transformers.T5ForConditionalGeneration(config), {**padded(ids()), "labels": ids()}


def albert() -> Case:
    config = transformers.AlbertConfig(
        vocab_size=50,
        num_hidden_layers=5,
        embedding_size=16,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        **SMALL,
    )
    model = transformers.AlbertForSequenceClassification(config)
    return model, {**padded(ids()), "labels": torch.tensor([0, 1])}


def swin() -> Case:
    config = transformers.SwinConfig(
        image_size=32,
        patch_size=2,
        embed_dim=12,
        depths=[2, 2, 3],
        num_heads=[1, 2, 4],
        window_size=4,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        drop_path_rate=0.1,
    )
    model = transformers.SwinForImageClassification(config)
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([0, 1])}


def xlnet() -> Case:
    config = transformers.XLNetConfig(
        vocab_size=50, d_model=32, n_layer=5, n_head=2, d_inner=48, dropout=0.1
    )
    model = transformers.XLNetForSequenceClassification(config)
    return model, {**padded(ids()), "labels": torch.tensor([0, 1])}


def resnet() -> Case:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[16, 24], depths=[3, 3], num_labels=2
    )
    model = transformers.ResNetForImageClassification(config)
    return model, {"pixel_values": torch.randn(3, 3, 32, 32), "labels": torch.tensor([0, 1, 1])}


def gpt2() -> Case:
    config = transformers.GPT2Config(vocab_size=50, n_positions=32, n_embd=32, n_layer=4, n_head=2)
    tokens = ids()
    return transformers.GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}


def llama() -> Case:
    config = transformers.LlamaConfig(
        vocab_size=50, num_hidden_layers=4, num_key_value_heads=2, attention_dropout=0.1, **SMALL
    )
    tokens = ids()
    return transformers.LlamaForCausalLM(config), {"input_ids": tokens, "labels": tokens}


def frozen_bottom() -> Case:
    model, batch = bert()
    for module in (model.bert.embeddings, *model.bert.encoder.layer[:2]):
        module.requires_grad_(False)
    return model, batch


def hidden_states() -> Case:
    model, batch = bert()
    return model, {**batch, "output_hidden_states": True}


# For each case its blocks and those cuts between them that the model's own data flow makes.
CASES: dict[str, tuple[Callable[[], Case], int, tuple[int, ...]]] = {
    "bert": (bert, 5, ()),
    # Global attention every third layer; rotary tables and masks alternate.
    "modernbert": (modernbert, 7, (1, 3, 4, 6)),
    "gemma3": (gemma3, 6, (2, 3, 5)),
    # The first layer of each stack makes the position bias for the rest of it.
    "t5": (t5, 8, (1, 4, 5)),
    "albert": (albert, 5, ()),
    # Shifted windows are a property of the layer; stages are joined by patch merging.
    "swin": (swin, 7, (2, 4)),
    "xlnet": (xlnet, 5, ()),
    "resnet": (resnet, 6, ()),
    "gpt2": (gpt2, 4, ()),
    "llama": (llama, 4, ()),
    "frozen_bottom": (frozen_bottom, 5, ()),
    "hidden_states": (hidden_states, 5, (1, 2, 3, 4)),
}


def without_cache(model: torch.nn.Module) -> torch.nn.Module:
    for module in model.modules():
        if getattr(getattr(module, "config", None), "use_cache", False):
            module.config.use_cache = False
    return model


def step(model: torch.nn.Module, batch: dict[str, Any]) -> tuple[torch.Tensor, list[Any]]:
    torch.manual_seed(7)
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters()]


def assert_equal(got: tuple[torch.Tensor, list[Any]], want: tuple[torch.Tensor, list[Any]]) -> None:
    assert torch.equal(got[0], want[0])
    assert sum(g is not None for g in want[1]) > 0
    for one, other in zip(got[1], want[1]):
        assert (one is None) == (other is None)
        assert one is None or torch.equal(one, other)


def plans(num_blocks: int) -> list[Plan]:
    last = num_blocks - 1
    texts = [
        "keep 0",
        f"recompute each 0-{last}",
        "keep 0 | recompute 1-2",
        "recompute 0-2 | recompute 3",
        f"recompute 0-{min(3, last)}",
        f"recompute 0-{last} (keep 0 | recompute 1-{last} (recompute each 1-2 | recompute 3))",
        "recompute 1-3 (recompute 1 | recompute 2-3)",
    ]
    return [Plan.parse(text, num_blocks) for text in texts]


@pytest.mark.parametrize("name", CASES)
def test_losses_gradients_and_buffers_equal(name: str, device: Any) -> None:
    build, num_blocks, cuts = CASES[name]
    torch.manual_seed(0)
    model, batch = build()
    model.train()
    plain = without_cache(copy.deepcopy(model))
    executor = Executor(model, device, find_blocks(model))
    executor.begin(Plan.keep_all(1), collect=True)
    assert_equal(step(model, batch), step(plain, batch))
    assert executor.exact
    assert len(executor.block_names) == num_blocks
    assert executor.cuts == cuts
    for plan in plans(num_blocks):
        executor.begin(plan)
        assert_equal(step(model, batch), step(plain, batch))
        expected = plan.cut(cuts)
        free = executor.free
        regions = tuple(r for r in expected.regions if len(r) > 1 or r.first not in free)
        assert executor.effective_plan == Plan(num_blocks, regions)
    for key, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[key], value), key


@pytest.mark.parametrize("name", ["bert", "t5", "resnet"])
def test_a_plan_that_spans_blocks_runs_single_ones_until_the_flow_is_known(
    name: str, device: Any
) -> None:
    build, num_blocks, cuts = CASES[name]
    torch.manual_seed(0)
    model, batch = build()
    model.train()
    plain = without_cache(copy.deepcopy(model))
    executor = Executor(model, device, find_blocks(model))
    assert executor.cuts is None
    plan = Plan.parse("recompute 1-2", len(executor.block_names))
    executor.begin(plan)
    assert_equal(step(model, batch), step(plain, batch))
    assert executor.effective_plan == Plan.recompute_each(num_blocks, [1, 2])
    assert executor.cuts == cuts


def test_without_the_random_state_gradients_would_differ(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model, batch = bert()
    model.train()
    plain = copy.deepcopy(model)
    executor = Executor(model, device, find_blocks(model))
    unguarded = torch.utils.checkpoint.checkpoint
    monkeypatch.setattr(
        "mimose.runtime.checkpointing.checkpoint",
        lambda *args, **kwargs: unguarded(*args, **{**kwargs, "preserve_rng_state": False}),
    )
    executor.begin(Plan.recompute_each(5))
    got, want = step(model, batch), step(plain, batch)
    assert torch.equal(got[0], want[0])
    assert any(not torch.equal(one, other) for one, other in zip(got[1], want[1]))
