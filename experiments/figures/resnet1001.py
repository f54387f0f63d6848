"""ResNet-1001 on images of 224 x 224, the largest network of Rotor's evaluation.

Identity mappings (He et al. 2016, arXiv:1603.05027): three stages of 111 pre-activation bottlenecks
behind one 3 x 3 convolution. Stages 256, 512 and 1024 channels wide, the first at the images' own
resolution, are what comes to the 225 GiB that Beaumont et al. (2019, arXiv:1911.13214) name for
plain training in batches of 8; the 16 to 64 channels of the networks for images of 32 x 32 pixels
would take a quarter of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mimose_bench.experiments.data.batch import Batch

BLOCKS = (111, 111, 111)
WIDTHS = (64, 128, 256)
_EXPANSION = 4
_CLASSES = 1000


class Bottleneck(nn.Module):
    """Three convolutions, each behind its batch norm and ReLU, added to the input."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        out = width * _EXPANSION
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, out, 1, bias=False)
        changes = stride != 1 or channels != out
        self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False) if changes else None
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: Tensor) -> Tensor:
        """Return the block's output."""
        hidden = self.relu(self.norm1(features))
        skipped = features if self.shortcut is None else self.shortcut(hidden)
        hidden = self.conv1(hidden)
        hidden = self.conv2(self.relu(self.norm2(hidden)))
        return self.conv3(self.relu(self.norm3(hidden))) + skipped


class ResNet(nn.Module):
    """A pre-activation ResNet of bottlenecks.

    Args:
        blocks: Number of blocks in each stage.
        widths: Width of each stage's bottlenecks; its output is four times as wide.
    """

    def __init__(self, blocks: tuple[int, ...] = BLOCKS, widths: tuple[int, ...] = WIDTHS) -> None:
        super().__init__()
        channels = widths[0]
        self.stem = nn.Conv2d(3, channels, 3, 1, 1, bias=False)
        found = []
        for stage, (count, width) in enumerate(zip(blocks, widths)):
            for index in range(count):
                stride = 2 if stage and not index else 1
                found.append(Bottleneck(channels, width, stride))
                channels = width * _EXPANSION
        self.blocks = nn.Sequential(*found)
        self.norm = nn.BatchNorm2d(channels)
        self.classifier = nn.Linear(channels, _CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Return the classes' scores."""
        features = torch.relu(self.norm(self.blocks(self.stem(images))))
        scores: Tensor = self.classifier(features.mean((2, 3)))
        return scores


class ImageWorkload:
    """A ResNet and its batches of square images; of a task it has what the training loop asks for.

    Args:
        blocks: Number of blocks in each stage.
        widths: Width of each stage's bottlenecks.
        side: Height and width of the images.
        batch_size: Images in a batch.
    """

    name = "resnet"

    def __init__(
        self,
        blocks: tuple[int, ...] = BLOCKS,
        widths: tuple[int, ...] = WIDTHS,
        side: int = 224,
        batch_size: int = 8,
    ) -> None:
        self.blocks, self.widths, self.side, self.batch_size = blocks, widths, side, batch_size

    def build_model(self) -> nn.Module:
        """Return the model in training mode."""
        return ResNet(self.blocks, self.widths).train()

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(model.parameters(), lr=0.1, foreach=foreach)

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the cross entropy."""
        return nn.functional.cross_entropy(model(tensors["images"]), tensors["labels"])

    def settings(self) -> dict[str, Any]:
        """Return what tells this workload from others."""
        return {"blocks": self.blocks, "widths": self.widths}

    def batch(self) -> Batch:
        """Return a batch."""
        side = self.side
        return Batch(
            {
                "images": torch.zeros(self.batch_size, 3, side, side),
                "labels": torch.zeros(self.batch_size, dtype=torch.long),
            },
            size=(self.batch_size, side * side),
            input_size=self.batch_size * side * side,
            num_samples=self.batch_size,
            num_tokens=self.batch_size * side * side,
        )
