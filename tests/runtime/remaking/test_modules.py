"""Modules of ``torch.nn`` between two layers: the numbers are those of the plain block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from dropping import both
from torch import nn
from torch.nn.utils import parametrizations

CHANNELS, SIDE = 4, 6


class Around(nn.Module):
    """A block: a convolution, the module, and what saves its output."""

    def __init__(self, inner: nn.Module, before: str) -> None:
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.inner = inner
        self.before = before

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.sigmoid(self.first(x)) * 2
        if self.before == "rows":
            h = h.flatten(2)
        if self.before == "flat":
            h = h.flatten(1)
        if self.before == "numbers":
            h = (h.flatten(1) * 3).long()
        result = self.inner(h)
        result = result[0] if isinstance(result, tuple) else result
        return result.float().exp().sigmoid() * result.float().tanh()


class Attend(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(SIDE * SIDE, 2, dropout=0.1, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.attention(x, x, x)[0]


MODULES: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "BatchNorm2d": (lambda: nn.BatchNorm2d(CHANNELS), ""),
    "BatchNorm2d without statistics": (
        lambda: nn.BatchNorm2d(CHANNELS, track_running_stats=False),
        "",
    ),
    "BatchNorm2d, cumulative": (lambda: nn.BatchNorm2d(CHANNELS, momentum=None), ""),
    "BatchNorm2d, frozen": (lambda: nn.BatchNorm2d(CHANNELS).eval(), ""),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(CHANNELS, affine=True), ""),
    "GroupNorm": (lambda: nn.GroupNorm(2, CHANNELS), ""),
    "LocalResponseNorm": (lambda: nn.LocalResponseNorm(2), ""),
    "MaxPool2d": (lambda: nn.MaxPool2d(2), ""),
    "FractionalMaxPool2d": (lambda: nn.FractionalMaxPool2d(2, 3), ""),
    "AdaptiveAvgPool2d": (lambda: nn.AdaptiveAvgPool2d(2), ""),
    "Upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), ""),
    "PixelShuffle": (lambda: nn.PixelShuffle(2), ""),
    "ReLU in place": (lambda: nn.ReLU(inplace=True), ""),
    "Hardswish in place": (lambda: nn.Hardswish(inplace=True), ""),
    "PReLU": (lambda: nn.PReLU(CHANNELS), ""),
    "RReLU": (lambda: nn.RReLU(), ""),
    "Dropout2d": (lambda: nn.Dropout2d(0.5), ""),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.5), ""),
    "Dropout in place": (lambda: nn.Dropout(0.5, inplace=True), ""),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2), ""),
    "Unfold": (lambda: nn.Unfold(2), ""),
    "GLU": (lambda: nn.GLU(1), ""),
    "LSTM": (lambda: nn.LSTM(SIDE * SIDE, 5, batch_first=True), "rows"),
    "GRU": (lambda: nn.GRU(SIDE * SIDE, 5, batch_first=True, bidirectional=True), "rows"),
    "MultiheadAttention": (Attend, "rows"),
    "TransformerEncoderLayer": (
        lambda: nn.TransformerEncoderLayer(SIDE * SIDE, 2, 8, batch_first=True),
        "rows",
    ),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(CHANNELS * SIDE * SIDE, 3)),
        "flat",
    ),
    "weight norm": (
        lambda: parametrizations.weight_norm(nn.Linear(CHANNELS * SIDE * SIDE, 3)),
        "flat",
    ),
    "Embedding": (lambda: nn.Embedding(8, 3), "numbers"),
    "Embedding, bounded": (lambda: nn.Embedding(8, 3, max_norm=0.5), "numbers"),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(8, 3), "numbers"),
}


def inputs(step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(3, CHANNELS, SIDE, SIDE, generator=generator)
    return (x.requires_grad_(),), {}


@pytest.mark.parametrize("name", MODULES)
def test_a_module(name):
    make, before = MODULES[name]
    torch.manual_seed(0)
    outcome = both(Around(make(), before), inputs)
    assert outcome.calls[1:] == ["dropped"] * 2


@pytest.mark.parametrize("name", ["ReLU in place", "BatchNorm2d", "MaxPool2d", "Dropout2d"])
def test_channels_last(name):
    make, before = MODULES[name]
    torch.manual_seed(0)
    block = Around(make(), before).to(memory_format=torch.channels_last)

    def turned(step: int) -> Any:
        (x,), _ = inputs(step)
        x = x.detach().contiguous(memory_format=torch.channels_last)
        return (x.requires_grad_(),), {}

    assert both(block, turned).calls[1:] == ["dropped"] * 2
