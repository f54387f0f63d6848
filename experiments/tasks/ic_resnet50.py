"""Image classification with ResNet-50 on ImageNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mimose_bench.experiments.tasks.base import Scale
from mimose_bench.experiments.tasks.classification import (
    IMAGENET_IMAGES,
    Classification,
    ClassificationSetting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResNetSetting(ClassificationSetting):
    """Shape of a ResNet and of its batches at one scale.

    Attributes:
        embedding: Width of the first convolution.
        hidden: Width of each stage.
    """

    embedding: int
    hidden: tuple[int, ...]


class IcResNet50(Classification):
    """ImageNet with ResNet-50 in multi-scale batches.

    Sides of 160 to 320 in steps of 32, the range of the multi-scale samplers that ImageNet models
    are trained with (Mehta and Rastegari, *MobileViT*, ICLR 2022); 64 images of the largest side
    take 11 GB. AdamW: 1e-3 suits random weights; at ``tiny`` 3e-3.

    The size is ``(images, height x width)``.
    """

    name = "ic-resnet50"
    title = "IC-ResNet50"
    pretrained = "microsoft/resnet-50"
    model_class = "ResNetForImageClassification"
    shape = ("layer_type", "depths", "hidden_sizes", "embedding_size")
    setting: ResNetSetting
    settings_by_scale: ClassVar[Mapping[Scale, ResNetSetting]] = {
        "full": ResNetSetting(
            depths=(3, 4, 6, 3),
            embedding=64,
            hidden=(256, 512, 1024, 2048),
            batch_size=64,
            sides=tuple(range(160, 321, 32)),
            num_classes=1000,
            num_examples=IMAGENET_IMAGES,
            lr=1e-3,
        ),
        "small": ResNetSetting(
            depths=(3, 4, 6, 3),
            embedding=16,
            hidden=(32, 64, 128, 256),
            batch_size=4,
            sides=tuple(range(160, 321, 32)),
            num_classes=100,
            num_examples=IMAGENET_IMAGES,
            lr=1e-3,
        ),
        "tiny": ResNetSetting(
            depths=(1, 1, 2, 1),
            embedding=8,
            hidden=(16, 32, 48, 64),
            batch_size=4,
            sides=tuple(range(64, 161, 32)),
            num_classes=8,
            num_examples=203,
            lr=3e-3,
        ),
    }

    def _config(self) -> Any:
        from transformers import ResNetConfig

        setting = self.setting
        return ResNetConfig(
            embedding_size=setting.embedding,
            hidden_sizes=list(setting.hidden),
            depths=list(setting.depths),
            num_labels=self.data.num_classes,
        )

    def _extents(self, side: int) -> tuple[int, ...]:
        return (side * side,)
