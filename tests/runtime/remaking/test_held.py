"""Looking at what a block saves holds nothing of it longer than backward needs it."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BertLayer

from mimose.devices.cpu import CpuDevice
from mimose.runtime.remaking.saving import Saving


@pytest.fixture
def cpu() -> Iterator[CpuDevice]:
    device = CpuDevice()
    yield device
    device.close()


def peak_in_backward(cpu: CpuDevice, block: BertLayer, x: torch.Tensor, *, looking: bool) -> int:
    cpu.begin_step()
    before = cpu.mark().allocated
    saving = Saving("block")
    hooks: AbstractContextManager[Any] = saving.hooks() if looking else nullcontext()
    with hooks:
        out = block(x)
    del saving, hooks
    gradient = torch.ones_like(out)
    cpu.mark()
    out.backward(gradient)
    peak = cpu.mark().peak_allocated
    cpu.end_step()
    assert peak is not None
    return peak - before


def test_saved_tensors_go_as_backward_is_done_with_them(cpu: CpuDevice) -> None:
    config = BertConfig(
        hidden_size=64, num_attention_heads=4, intermediate_size=256, attn_implementation="eager"
    )
    block = BertLayer(config).train()
    cpu.adopt(block)
    for parameter in block.parameters():
        parameter.grad = torch.zeros_like(parameter)
    x = cpu.put(torch.randn(8, 64, 64)).requires_grad_()
    x.grad = torch.zeros_like(x)
    plain = peak_in_backward(cpu, block, x, looking=False)
    assert peak_in_backward(cpu, block, x, looking=True) == plain
