"""ResNets on ImageNet, which DELTA's authors trained: square images in batches of one size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mimose_bench.experiments.data.batch import Batch

_CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """A ResNet and its batches; of a task it has what the training loop asks for.

    Attributes:
        name: What it is called.
        depths: Bottlenecks in each stage.
        batch_size: Images in a batch.
        side: Height and width of the images.
        embedding: Channels of the first convolution.
        widths: Channels of each stage's output.
    """

    name: str
    depths: tuple[int, ...]
    batch_size: int = 64
    side: int = 224
    embedding: int = 64
    widths: tuple[int, ...] = (256, 512, 1024, 2048)

    def build_model(self) -> nn.Module:
        """Return the model in training mode."""
        import transformers

        config = transformers.ResNetConfig(
            depths=list(self.depths),
            embedding_size=self.embedding,
            hidden_sizes=list(self.widths),
            num_labels=_CLASSES,
        )
        model: nn.Module = transformers.ResNetForImageClassification(config)
        return model.train()

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> torch.optim.Optimizer:
        """Return SGD with momentum."""
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=foreach)

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the model's own loss."""
        loss: Tensor = model(**tensors).loss
        return loss

    def settings(self) -> dict[str, Any]:
        """Return what tells this workload from others."""
        return {"depths": self.depths, "widths": self.widths, "side": self.side}

    def batch(self, images: int | None = None) -> Batch:
        """Return a batch of so many images, by default as many as :attr:`batch_size`."""
        count = self.batch_size if images is None else images
        pixels = count * self.side**2
        return Batch(
            {
                "pixel_values": torch.zeros(count, 3, self.side, self.side),
                "labels": torch.zeros(count, dtype=torch.long),
            },
            size=(count, self.side**2),
            input_size=pixels,
            num_samples=count,
            num_tokens=pixels,
        )


RESNET50 = Classifier(name="ResNet-50", depths=(3, 4, 6, 3))
RESNET101 = Classifier(name="ResNet-101", depths=(3, 4, 23, 3))
