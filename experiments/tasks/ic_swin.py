"""Image classification with Swin Transformer (tiny) on ImageNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mimose_bench.experiments.data.views import up
from mimose_bench.experiments.tasks.base import Scale
from mimose_bench.experiments.tasks.classification import (
    IMAGENET_IMAGES,
    Classification,
    ClassificationSetting,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SwinSetting(ClassificationSetting):
    """Shape of a Swin Transformer and of its batches at one scale.

    Attributes:
        embedding: Width of the first stage.
        num_heads: Attention heads of each stage.
        patch: Side of a patch in pixels.
        window: Side of a window in tokens.
    """

    embedding: int
    num_heads: tuple[int, ...]
    patch: int
    window: int


class IcSwin(Classification):
    """ImageNet with Swin-T (window 7) in multi-scale batches.

    Sides of 256 to 448 in steps of 32. No smaller ones: at 224 the last stage has no more tokens
    than a window, and the model then gives up shifting its windows for good; below, it fails (its
    position biases are made for whole windows). Above 448 another row of windows would begin.
    32 images of the largest side take 13 GB. AdamW; the learning rate, 3e-4, suits random
    weights without warm-up, and narrow models take 1e-3.

    Attention works on whole windows: each stage's tokens are padded to multiples of the window, so
    that its memory does not follow the image's area. The size therefore is
    ``(images, height x width, p1, p2, p3, p4)``, where ``p1`` to ``p4`` are the areas, in pixels of
    the image, of each stage's padded tokens.
    """

    name = "ic-swin"
    title = "IC-Swin"
    pretrained = "microsoft/swin-tiny-patch4-window7-224"
    model_class = "SwinForImageClassification"
    shape = ("depths", "embed_dim", "num_heads", "patch_size", "window_size")
    attends = True
    setting: SwinSetting
    settings_by_scale: ClassVar[Mapping[Scale, SwinSetting]] = {
        "full": SwinSetting(
            depths=(2, 2, 6, 2),
            embedding=96,
            num_heads=(3, 6, 12, 24),
            patch=4,
            window=7,
            batch_size=32,
            sides=tuple(range(256, 449, 32)),
            num_classes=1000,
            num_examples=IMAGENET_IMAGES,
            lr=3e-4,
        ),
        "small": SwinSetting(
            depths=(2, 2, 6, 2),
            embedding=32,
            num_heads=(1, 2, 4, 8),
            patch=4,
            window=7,
            batch_size=2,
            sides=tuple(range(256, 449, 32)),
            num_classes=100,
            num_examples=IMAGENET_IMAGES,
            lr=1e-3,
        ),
        "tiny": SwinSetting(
            depths=(1, 1, 2, 1),
            embedding=8,
            num_heads=(1, 1, 2, 2),
            patch=4,
            window=2,
            batch_size=2,
            sides=tuple(range(96, 193, 32)),
            num_classes=8,
            num_examples=203,
            lr=1e-3,
        ),
    }

    def _config(self) -> Any:
        from transformers import SwinConfig

        setting = self.setting
        return SwinConfig(
            image_size=max(setting.sides),
            patch_size=setting.patch,
            embed_dim=setting.embedding,
            depths=list(setting.depths),
            num_heads=list(setting.num_heads),
            window_size=setting.window,
            num_labels=self.data.num_classes,
            attn_implementation=self.options.attention,
        )

    def _loading(self) -> dict[str, Any]:
        return {**super()._loading(), "attn_implementation": self.options.attention}

    def _extents(self, side: int) -> tuple[int, ...]:
        setting = self.setting
        return side * side, *padded_areas(
            side, setting.patch, setting.window, len(setting.num_heads)
        )


def padded_areas(side: int, patch: int, window: int, stages: int) -> tuple[int, ...]:
    """Return, for each stage, the area in pixels that its tokens cover once padded to windows."""
    areas = []
    tokens, pixels = -(-side // patch), patch
    for _ in range(stages):
        areas.append((up(tokens, window) * pixels) ** 2)
        tokens, pixels = -(-tokens // 2), 2 * pixels
    return tuple(areas)
