"""Three convolutional networks whose operators make graphs of different kinds.

VGG-16 (Simonyan and Zisserman 2015) is a chain of unequal layers, MobileNet (Howard et al. 2017) a
longer one of cheap and costly layers in turn, U-Net (Ronneberger et al. 2015) no chain: its early
results are read again at the end. Layers are as published, with batch norm behind each convolution;
classifiers are a single layer, and U-Net pads.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

_CLASSES = 10


def convolution(channels: int, out: int, *, stride: int = 1, groups: int = 1) -> nn.Module:
    """Return a 3 x 3 convolution (1 x 1 if pointwise) with its batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, stride, 1, groups=groups, bias=False),
        nn.BatchNorm2d(out, track_running_stats=False),
        nn.ReLU(),
    )


def pointwise(channels: int, out: int) -> nn.Module:
    """Return a 1 x 1 convolution with its batch norm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, out, 1, bias=False),
        nn.BatchNorm2d(out, track_running_stats=False),
        nn.ReLU(),
    )


class _Head(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.classifier = nn.Linear(channels, _CLASSES)

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.classifier(features.mean((2, 3)))
        return scores


def vgg16(width: int = 64) -> nn.Module:
    """Return a VGG-16 whose first stage has ``width`` channels."""
    layers: list[nn.Module] = []
    channels = 3
    for stage, count in enumerate((2, 2, 3, 3, 3)):
        out = width * min(2**stage, 8)
        for _ in range(count):
            layers.append(convolution(channels, out))
            channels = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, _Head(channels))


def mobilenet(width: int = 32) -> nn.Module:
    """Return a MobileNet whose first layer has ``width`` channels."""
    layers = [convolution(3, width, stride=2)]
    channels = width
    strides = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
    factors = (2, 4, 4, 8, 8, 16, 16, 16, 16, 16, 16, 32, 32)
    for stride, factor in zip(strides, factors):
        layers.append(convolution(channels, channels, stride=stride, groups=channels))
        layers.append(pointwise(channels, width * factor))
        channels = width * factor
    return nn.Sequential(*layers, _Head(channels))


class UNet(nn.Module):
    """A U-Net.

    Args:
        width: Channels of the first level; each level below has twice as many.
        depth: Levels below the first.
    """

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList()
        channels = 3
        for out in widths:
            self.down.append(nn.Sequential(convolution(channels, out), convolution(out, out)))
            channels = out
        self.pool = nn.MaxPool2d(2)
        self.rise, self.up = nn.ModuleList(), nn.ModuleList()
        for out in reversed(widths[:-1]):
            self.rise.append(nn.ConvTranspose2d(channels, out, 2, 2))
            self.up.append(nn.Sequential(convolution(2 * out, out), convolution(out, out)))
            channels = out
        self.last = nn.Conv2d(channels, _CLASSES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores of every pixel."""
        features, across = images, []
        for level, layer in enumerate(self.down):
            features = layer(self.pool(features) if level else features)
            across.append(features)
        for rise, layer, beside in zip(self.rise, self.up, reversed(across[:-1])):
            features = layer(torch.cat((beside, rise(features)), 1))
        scores: Tensor = self.last(features)
        return scores
