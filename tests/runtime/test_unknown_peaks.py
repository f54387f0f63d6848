"""Where the device cannot tell a segment's peak, the collector bounds it from above."""

from __future__ import annotations

from dataclasses import replace

import torch
import transformers

from mimose.devices.base import Mark
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan
from mimose.records import Collected
from mimose.runtime.blocks import find_blocks
from mimose.runtime.executor import Executor


class UnknownPeaks(CpuDevice):
    """As CUDA is where the peak statistics belong to the user."""

    def mark(self) -> Mark:
        return replace(super().mark(), peak_allocated=None)


def collect(device: CpuDevice) -> Collected:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=2, intermediate_size=256
    )
    model = transformers.BertForQuestionAnswering(config).train()
    device.adopt(model)
    ids = torch.randint(0, 1000, (4, 96))
    answers = torch.zeros(4, dtype=torch.long)
    executor = Executor(model, device, find_blocks(model))
    for _ in range(2):  # The second time gradients are resident, as in most steps.
        executor.begin(Plan.keep_all(4), collect=True)
        model(input_ids=ids, start_positions=answers, end_positions=answers).loss.backward()
    collected = executor.collected()
    assert collected is not None
    executor.detach()
    device.close()
    return collected


def test_bounds_are_no_lower_than_the_peaks_and_not_far_above() -> None:
    known, bounded = collect(CpuDevice()), collect(UnknownPeaks())
    for exact, bound in zip(known.blocks, bounded.blocks):
        assert bound.activation_bytes == exact.activation_bytes
        assert exact.backward_peak_bytes is not None
        assert bound.backward_peak_bytes is not None
        assert bound.backward_peak_bytes >= exact.backward_peak_bytes
        assert bound.backward_peak_bytes <= exact.backward_peak_bytes + exact.activation_bytes
        assert bound.checkpoint_peak_bytes >= exact.checkpoint_peak_bytes
    assert bounded.head_peak_bytes >= known.head_peak_bytes
    assert bounded.tail_peak_bytes >= known.tail_peak_bytes
