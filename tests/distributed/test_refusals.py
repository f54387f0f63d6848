"""Ways to train in several processes that are refused, each with one sentence."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mimose


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 4)) for _ in range(2)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.mean()


def engine():
    """As ``deepspeed.initialize`` returns one: a module around the model."""

    members = {"__module__": "deepspeed.runtime.engine"}
    made = type("DeepSpeedEngine", (nn.Module,), members)()
    made.module = Model()
    return made


def partitioned():
    """As ZeRO-3 leaves a model's own parameters."""
    model = Model()
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id = number
    return model


def stage():
    """As ``torch.distributed.pipelining`` makes one, which is no module."""
    members = {"__module__": "torch.distributed.pipelining.stage", "submod": Model()}
    return type("PipelineStage", (), members)()


def pipelined():
    members = {"__module__": "torch.distributed.pipelining._IR"}
    return type("Pipe", (nn.Module,), members)()


def data_parallel():
    return torch.nn.DataParallel(Model())


SAID = {
    engine: r"DeepSpeed is not supported: .*; shard with PyTorch's fully_shard",
    partitioned: r"DeepSpeed is not supported: .*; shard with PyTorch's fully_shard",
    stage: r"pipelines are not supported: .*; train with DistributedDataParallel or .*",
    pipelined: r"pipelines are not supported: .*; train with DistributedDataParallel or .*",
    data_parallel: r"torch\.nn\.DataParallel is not supported, .*: use DistributedDataParallel, .*",
}


@pytest.mark.parametrize("make", SAID, ids=lambda make: make.__name__)
def test_what_is_refused_is_said_in_one_sentence(make):
    model = make()
    with pytest.raises(ValueError, match=SAID[make]) as refused:
        mimose.attach(model, "1GB")
    text = str(refused.value)
    assert ". " not in text
    assert "\n" not in text
    inner = getattr(model, "submod", model)
    assert not any("forward" in vars(module) for module in inner.modules()), "left as it was"
