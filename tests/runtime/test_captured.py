"""Hooks inside a block that store what it computes: measuring must leave nothing with them."""

import copy
import itertools
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.records import Collected
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor

LAYERS = 6
FULL = Plan.recompute_each(LAYERS)
CAPTURING = "transformers.utils.output_capturing"


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


class Lab:
    """A BERT under an executor, and its twin that is trained plainly."""

    def __init__(self, device: CpuDevice, **asked: bool) -> None:
        torch.manual_seed(1)
        config = transformers.BertConfig(
            vocab_size=100,
            hidden_size=64,
            num_attention_heads=2,
            intermediate_size=256,
            num_hidden_layers=LAYERS,
            attn_implementation="eager",
        )
        self.model = transformers.BertForQuestionAnswering(config).train()
        self.twin = copy.deepcopy(self.model)
        device.adopt(self.model)
        self.device = device
        self.batch = {
            "input_ids": torch.randint(0, 100, (4, 64)),
            "start_positions": torch.tensor([1] * 4),
            "end_positions": torch.tensor([3] * 4),
            **asked,
        }
        self.executor = Executor(self.model, device, find_blocks(self.model))

    def layers(self) -> nn.ModuleList:
        return self.model.bert.encoder.layer

    def train(self, model: nn.Module, batch: dict[str, Any], share: float = 0.0) -> Any:
        """Return the output and the gradients; attentions make up a share of the loss."""
        model.zero_grad(set_to_none=False)
        torch.manual_seed(5)
        output = model(**batch)
        loss = output.loss
        if share:
            loss = loss + share * sum(a.square().sum() for a in output.attentions)
        loss.backward()
        return output, [p.grad for p in model.parameters() if p.grad is not None]

    def step(self, collect: bool = False, share: float = 0.0) -> int:
        """Return the peak of a recomputing step, which must equal plain training."""
        batch = self.device.put(self.batch)
        before = self.device.allocated_bytes()
        self.device.begin_step()
        self.executor.begin(FULL, collect=collect)
        self.output, grads = self.train(self.model, batch, share)
        peak = self.device.end_step().peak_allocated - before
        self.executor.begin(FULL)
        self.model.zero_grad
        return peak
