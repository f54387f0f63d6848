"""Blocks are found on the right level, on models with Hugging Face's flag and without."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from mimose.plan import Plan
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

NARROW = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 20}


def text() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 20, (1, 4))}


def picture() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 32, 32)}


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=20, d_model=8, d_kv=4, d_ff=8, num_layers=12, num_heads=2
    )
    return transformers.T5Model(config)


def swin() -> nn.Module:
    return transformers.SwinModel(
        transformers.SwinConfig(
            image_size=32,
            patch_size=1,
            embed_dim=4,
            depths=[2, 2, 6, 2],
            num_heads=[1, 1, 1, 1],
            window_size=2,
        )
    )


def swinv2() -> nn.Module:
    """Only its stages carry the flag, and they do nothing but chain their layers."""
    return transformers.Swinv2Model(
        transformers.Swinv2Config(
            image_size=32,
            patch_size=1,
            embed_dim=4,
            depths=[2, 3, 2],
            num_heads=[1, 1, 1],
            window_size=2,
        )
    )


def mixtral() -> nn.Module:
    config = transformers.MixtralConfig(
        **NARROW, num_hidden_layers=3, num_key_value_heads=1, num_local_experts=2
    )
    return transformers.MixtralModel(config)


def resnet50() -> nn.Module:
    return transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=4, hidden_sizes=[8, 8, 8, 8], depths=[3, 4, 6, 3])
    )


def xlnet() -> nn.Module:
    return transformers.XLNetModel(
        transformers.XLNetConfig(vocab_size=20, d_model=8, n_layer=12, n_head=2, d_inner=8)
    )


def albert() -> nn.Module:
    config = transformers.AlbertConfig(**NARROW, embedding_size=4, num_hidden_layers=12)
    return transformers.AlbertModel(config)


def bert() -> nn.Module:
    return transformers.BertModel(transformers.BertConfig(**NARROW, num_hidden_layers=12))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Any], int, str]] = {
    "bert": (bert, text, 12, "BertLayer"),
    "albert": (albert, text, 12, "AlbertLayer"),
    "xlnet": (xlnet, text, 12, "XLNetLayer"),
    "t5": (t5, lambda: {**text(), "decoder_input_ids": torch.ones(1, 3).long()}, 24, "T5Block"),
    "resnet50": (resnet50, picture, 16, "ResNetBottleNeckLayer"),
    "swin": (swin, picture, 12, "SwinLayer"),
    "swinv2": (swinv2, picture, 7, "Swinv2Layer"),
    "mixtral": (mixtral, text, 3, "MixtralDecoderLayer"),
}


@pytest.mark.parametrize("name", MODELS)
def test_calls_and_level(name: str, device: Any) -> None:
    build, batch, count, level = MODELS[name]
    model = build().train()
    executor = Executor(model, device, find_blocks(model))
    assert not executor.exact
    executor.begin(Plan.keep_all(len(executor.block_names)))
    model(**batch())
    assert executor.exact
    assert len(executor.block_names) == len(set(executor.block_names)) == count
    assert {type(module).__name__ for module in executor.block_modules} == {level}


def test_calls_of_a_shared_module_are_told_apart(device: Any) -> None:
    model = albert().train()
    executor = Executor(model, device, find_blocks(model))
    version = executor.version
    executor.begin(Plan.keep_all(1))
    model(**text())
    first = "encoder.albert_layer_groups.0.albert_layers.0"
    assert executor.block_names[:3] == (first, f"{first}#1", f"{first}#2")
    assert executor.version > version


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.linear(x)


class Stack(nn.Module):
    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(depth)])
        self.head = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Backwards(Stack):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in reversed(self.layers):
            x = layer(x)
        return self.head(x)


def names(model: nn.Module, blocks: list[str] | None = None) -> list[str]:
    return [block.name for block in find_blocks(model, blocks)]


def test_plain_models() -> None:
    assert names(Stack()) == ["layers.0", "layers.1", "layers.2"]
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(4, 1, 4), 2, enable_nested_tensor=False
    )
    assert names(encoder) == ["layers.0", "layers.1"]


def test_numbers_follow_the_first_forward(device: Any) -> None:
    model = Backwards().train()
    executor = Executor(model, device, find_blocks(model))
    executor.begin(Plan.keep_all(3))
    model(torch.randn(2, 4))
    assert executor.block_names == ("layers.2", "layers.1", "layers.0")


def test_blocks_by_name() -> None:
    assert names(bert(), ["encoder.layer.*.attention"])[2] == "encoder.layer.2.attention"
    assert len(names(bert(), ["encoder.layer.*"])) == 12
    assert names(bert(), ["**.layer.3", "encoder.layer.5"]) == [
        "encoder.layer.3",
        "encoder.layer.5",
    ]


def test_what_cannot_be_used_says_what_to_change() -> None:
    with pytest.raises(ValueError, match=r"no blocks were found in Linear: .*blocks=\["):
        find_blocks(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="no module of BertModel is called 'layer") as caught:
        find_blocks(bert(), ["layer.*"])
    assert "the nearest are encoder.layer.*; " in str(caught.value)
    assert str(caught.value).endswith("without blocks= the blocks are encoder.layer.* (12)")
    with pytest.raises(ValueError, match=r"'upp': the nearest are up$"):
        find_blocks(nn.ModuleDict({"up": nn.Linear(2, 2), "x": nn.ReLU()}), ["upp"])
    with pytest.raises(ValueError, match=r"lies within block encoder\.layer\.0"):
        find_blocks(bert(), ["encoder.layer.0", "encoder.layer.0.attention"])
    with pytest.raises(ValueError, match="is a list of names"):
        find_blocks(bert(), "encoder.layer.*")
    model = bert()
    model.encoder.layer[3].gradient_checkpointing = True
    with pytest.raises(ValueError, match=r"turn it off with model\.\w+_checkpointing_disable\(\)"):
        find_blocks(model)
