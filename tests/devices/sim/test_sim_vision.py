"""What detectors and image classifiers need of a simulated GPU: kernels' costs and memory."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from torch import nn
from torch.nn import functional

from mimose.devices.cpu import CpuDevice
from mimose.devices.sim.costs import flop_count, moved_bytes
from mimose.devices.sim.device import SimDevice
from mimose_bench.experiments.figures.session import training
from mimose_bench.experiments.tasks import TaskOptions, make_task

aten = torch.ops.aten
MIB = 1 << 20


@pytest.fixture
def device():
    opened = SimDevice("v100")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "stride", "groups"),
    [
        pytest.param(3, 64, 7, 2, 1, id="stem"),
        pytest.param(64, 64, 3, 1, 1, id="3x3"),
        pytest.param(64, 128, 3, 2, 1, id="3x3, strided"),
        pytest.param(64, 256, 1, 1, 1, id="1x1"),
        pytest.param(64, 128, 3, 1, 4, id="grouped"),
        pytest.param(64, 64, 3, 2, 64, id="depthwise"),
    ],
)
def test_each_gradient_of_a_convolution_takes_the_forwards_flops(
    channels, outputs, kernel, stride, groups
):
    x = torch.empty(2, channels, 56, 48, device="meta")
    weight = torch.empty(outputs, channels // groups, kernel, kernel, device="meta")
    pad = kernel // 2
    how = (None, [stride] * 2, [pad] * 2, [1, 1], False, [0, 0], groups)
    y = aten.convolution(x, weight, *how)
    forward = flop_count(aten.convolution, (x, weight, *how), {}, y)
    assert forward == 2 * y.numel() * (channels // groups) * kernel**2
    for mask in ([True, True, False], [False, True, True], [True, False, False]):
        given = (y, x, weight, *how, mask)
        found = flop_count(aten.convolution_backward, given, {}, None)
        assert found == forward * sum(mask[:2])


def test_a_transposed_convolutions_gradients_take_its_forwards_flops():
    x, weight = torch.empty(2, 8, 10, 12, device="meta"), torch.empty(8, 4, 2, 2, device="meta")
    how = (None, [2, 2], [0, 0], [1, 1], True, [0, 0], 1)
    y = aten.convolution(x, weight, *how)
    forward = 2 * x.numel() * 4 * 2 * 2
    given = (y, x, weight, *how, [True, True, False])
    assert flop_count(aten.convolution_backward, given, {}, None) == 2 * forward


def test_group_norm_reads_its_input_twice():
    x = torch.empty(2, 8, 16, 16, device="meta")
    scale = torch.empty(8, device="meta")
    given = (x, scale, scale.clone(), 2, 8, 256, 2, 1e-5)
    found = moved_bytes(aten.native_group_norm, given, aten.native_group_norm(*given))
    assert found == pytest.approx(3 * x.numel() * 4, rel=0.05)


def test_a_convolutional_block_keeps_what_cudas_kernels_do(device):
    size, channels = (8, 64, 112, 112), 64
    full = 4 * 8 * 64 * 112 * 112
    x = torch.empty(8, 3, 224, 224, device="meta")
    layers = [
        # Its output, which batch norm saves.
        (nn.Conv2d(3, channels, 7, 2, 3, bias=False), full),
        # Its output, and mean and inverse deviation of each channel.
        (nn.BatchNorm2d(channels), full + 2 * 512),
        # ReLU saves its result alone: what it was given goes.
        (nn.ReLU(), 0),
        # A quarter as many values, and where they came from as 64-bit integers.
        (nn.MaxPool2d(3, 2, 1), full // 4 + full // 2),
    ]
    for layer, expected in layers:
        device.adopt(layer)
        before = device.allocated_bytes()
        x = layer(x)
        assert device.allocated_bytes() - before == pytest.approx(expected, abs=MIB)
    assert x.shape == (size[0], channels, 56, 56)
    before = device.allocated_bytes()
    larger = functional.interpolate(x, scale_factor=2, mode="nearest")
    assert device.allocated_bytes() - before == full  # and nothing for its backward
    normed = nn.GroupNorm(8, channels, device="meta")(larger)
    loss = (normed.sigmoid() * (1 - normed.sigmoid()) ** 2).mean()
    loss.backward()
    assert layers[0][0].weight.grad.shape == (channels, 3, 7, 7)


def peaks(device, name, planner):
    task = make_task(name, TaskOptions(scale="tiny", data="synthetic"))
    try:
        with training(device, task, planner) as session:
            records = [session.take(batch) for batch in islice(task.batches(4), 4)]
    finally:
        device.close()
    # AdamW's counters of steps lie on the host of a GPU, and so count on the CPU alone.
    return [(r.size, r.peak_allocated_bytes - r.situation.resident_bytes) for r in records]


@pytest.mark.parametrize("planner", ["baseline", "full"])
@pytest.mark.parametrize(
    ("name", "off"), [("ic-resnet50", 0.08), ("ic-swin", 0.05), ("od-r50", 0.05)]
)
def test_peaks_are_those_of_the_cpu(name, off, planner):
    """Within what the CPU's kernels for images allocate while they run and a GPU's do not."""
    real = peaks(CpuDevice(), name, planner)
    seen = peaks(SimDevice("v100", cuda_kernels=False), name, planner)
    for (size, measured), (same, claimed) in zip(real, seen, strict=True):
        assert same == size
        assert claimed == pytest.approx(measured, rel=off, abs=72 * 1024)
