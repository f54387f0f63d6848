"""Object detection: RetinaNet on COCO, the paper's OD-R50 and OD-R101."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from mimose.records import Size
from mimose_bench.experiments.data import detection
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.detection import DetectionData
from mimose_bench.experiments.data.images import DetectionExample
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.synthetic_images import SyntheticDetection
from mimose_bench.experiments.data.views import MultiScale, up
from mimose_bench.experiments.tasks.base import Scale, SizeBin
from mimose_bench.experiments.tasks.images import (
    MOST_BATCHES,
    ImageTask,
    bins_of_sizes,
    parse_sides,
    sides_of,
)

if TYPE_CHECKING:
    from torch import nn

DIVISOR = 32
COCO_IMAGES = 117266
"""Training images of COCO 2017 that have boxes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionSetting:
    """Shape of the detector and of its batches at one scale.

    Attributes:
        depths: Bottlenecks in each stage of the ResNet.
        embedding: Width of its first convolution.
        hidden: Width of each stage.
        channels: Width of pyramid and towers.
        tower_depth: Convolutions in a tower.
        batch_size: Images in a batch.
        num_classes: Classes of generated data.
        num_examples: Images in an epoch of generated data.
        lr: Learning rate of SGD with momentum.
        policy: The augmentation.
    """

    depths: tuple[int, ...]
    embedding: int
    hidden: tuple[int, ...]
    channels: int
    tower_depth: int
    batch_size: int
    num_classes: int
    num_examples: int
    lr: float
    policy: MultiScale


def _full(depths: tuple[int, ...], batch_size: int) -> DetectionSetting:
    return DetectionSetting(
        depths=depths,
        embedding=64,
        hidden=(256, 512, 1024, 2048),
        channels=256,
        tower_depth=4,
        batch_size=batch_size,
        num_classes=80,
        num_examples=COCO_IMAGES,
        lr=0.001,
        policy=MultiScale(),
    )


def _small(depths: tuple[int, ...]) -> DetectionSetting:
    return DetectionSetting(
        depths=depths,
        embedding=16,
        hidden=(32, 64, 128, 256),
        channels=32,
        tower_depth=4,
        batch_size=2,
        num_classes=80,
        num_examples=COCO_IMAGES,
        lr=0.001,
        policy=MultiScale(
            shorts=tuple(range(240, 401, 16)),
            longest=667,
            crop_shorts=(200, 250, 300),
            crop=(192, 300),
        ),
    )


def _tiny(depths: tuple[int, ...]) -> DetectionSetting:
    return DetectionSetting(
        depths=depths,
        embedding=8,
        hidden=(16, 32, 48, 64),
        channels=16,
        tower_depth=2,
        batch_size=2,
        num_classes=4,
        num_examples=203,
        lr=0.001,
        policy=MultiScale(
            shorts=tuple(range(64, 109, 4)),
            longest=160,
            crop_shorts=(56, 68, 80),
            crop=(52, 80),
        ),
    )


class Detection(ImageTask[DetectionExample]):
    """Object detection on COCO with RetinaNet, in the setting of the paper's runs.

    Multi-scale training (shorter side 480 to 800, longer at most 1333, half of the images cut
    first), images padded to multiples of 32 and a batch to its greatest height and width, wide and
    tall images in batches of their own; batch 8 (R50) or 6 (R101). The optimizer is MMDetection's
    for RetinaNet, SGD with momentum 0.9 and weight decay 1e-4. Its learning rate is 0.01, reached
    after 500 iterations of warm-up; without warm-up that diverges from random weights (tried at
    ``tiny``), and 0.001 is used here. Batch norm is trained and no stage is frozen, as in the
    released code. ``small`` has half the image's sides and an eighth of the width.

    The size is ``(images, height x width)``.
    """

    pretrained: ClassVar[str]
    optimizer_name = "momentum"
    setting: DetectionSetting
    data: DetectionData

    # -- data

    def _open_hub(self, reason: str, *, download: bool) -> DetectionData:
        policy = self.setting.policy
        return detection.open_hub(self.pretrained, policy, reason, download=download)

    def _open_path(self, path: Path, reason: str) -> DetectionData:
        return detection.open_path(path, self.setting.policy, reason)

    def _synthetic(self, reason: str, num_classes: int | None = None) -> SyntheticDetection:
        setting = self.setting
        source = DataSource(
            kind="synthetic",
            detail="coloured boxes on noise, shapes and numbers of boxes as in COCO",
            reason=reason,
        )
        return SyntheticDetection(
            source,
            setting.num_classes if num_classes is None else num_classes,
            setting.num_examples,
            setting.policy,
        )

    # -- model

    def build_model(self) -> nn.Module:
        """Return RetinaNet in training mode and fp32, on the CPU; see ``Task``."""
        from transformers import ResNetBackbone, ResNetConfig

        from mimose_bench.experiments.tasks.retinanet import RetinaNet

        setting = self.setting
        features = ["stage2", "stage3", "stage4"]
        config = ResNetConfig(
            embedding_size=setting.embedding,
            hidden_sizes=list(setting.hidden),
            depths=list(setting.depths),
            out_features=features,
        )
        if self.options.weights == "random":
            backbone = ResNetBackbone(config)
        else:
            backbone = self._load(ResNetBackbone, out_features=features)
            self._check_shape(
                backbone.config, config, ("layer_type", "depths", "hidden_sizes", "embedding_size")
            )
        model = RetinaNet(
            backbone, self.data.num_classes, setting.channels, depth=setting.tower_depth
        )
        return model.float().train()

    # -- batches

    @property
    def epoch_steps(self) -> int:
        """Number of batches in an epoch, all of them full; see ``Task``."""
        return self.data.epoch_steps(self.batch_size)

    def _examples(self, steps: int) -> Iterator[Sequence[DetectionExample]]:
        return self.data.batches(self.batch_size, steps, self.options.seed)

    def _size(self, examples: Sequence[DetectionExample]) -> Size:
        return len(examples), math.prod(_padded(examples))

    def _collate(self, examples: Sequence[DetectionExample]) -> Batch:
        """Return a batch: images, and boxes padded to the image with the most.

        ``pixel_values`` is ``float32`` of shape (N, 3, H, W), ``boxes`` ``float32`` (N, M, 4),
        ``box_labels`` ``int64`` (N, M) and ``box_mask`` ``bool`` (N, M), with M at least 1.
        """
        import torch

        height, width = _padded(examples)
        most = max(1, *(len(example.labels) for example in examples))
        boxes = np.zeros((len(examples), most, 4), np.float32)
        labels = np.zeros((len(examples), most), np.int64)
        mask = np.zeros((len(examples), most), np.bool_)
        for row, example in enumerate(examples):
            count = len(example.labels)
            boxes[row, :count] = example.boxes
            labels[row, :count] = example.labels
            mask[row, :count] = True
        images = self._painters.stack(examples, self.data.normalisation, height, width)
        arrays = {"pixel_values": images, "boxes": boxes, "box_labels": labels, "box_mask": mask}
        size = self._size(examples)
        return Batch(
            {name: torch.from_numpy(array) for name, array in arrays.items()},
            size,
            size[0] * size[1],
            size[0],
            sum(example.height * example.width for example in examples),
        )

    # -- sizes

    def longest(self) -> Size:
        """Return a bound of the batches' sizes: the policy's, reached by few; see ``Task``.

        A wide image may be cut to a tall one, and both may come together.
        """
        return self.batch_size, math.prod(self.setting.policy.greatest(DIVISOR))

    def size_bins(self) -> tuple[SizeBin, ...]:
        """Return the distribution of an epoch's batch sizes, or of its first 2000 batches'."""
        steps = min(self.epoch_steps, MOST_BATCHES)
        return bins_of_sizes(self.sizes(steps), self.batch_size)

    def parse_size(self, text: str) -> Size:
        """Return the size of a full batch of images ``480x640``, padded to multiples of 32."""
        bounds = self.setting.policy.greatest(DIVISOR)
        example = f"{bounds[0]}x{bounds[1]}"
        sides = parse_sides(text, self.name, example, square=False)
        height, width = (up(side, DIVISOR) for side in sides)
        if min(height, width) > min(bounds) or max(height, width) > max(bounds):
            raise ValueError(
                f"images of {self.name} are {example} at most at scale {self.scale}, not {text}"
            )
        return self.batch_size, height * width

    def describe_size(self, size: Size) -> str:
        """Return the area alone: many heights and widths have it."""
        return str(size[1])

    def _examples_of(self, size: Size) -> Sequence[DetectionExample]:
        bounds = self.setting.policy.greatest(DIVISOR)
        sides = None
        if len(size) == 2 and size[0] >= 1:
            sides = sides_of(size[1], DIVISOR, (min(bounds), max(bounds)))
        if sides is None:
            raise ValueError(
                f"a batch of {self.name} has a size of (images, height x width) with sides that "
                f"are multiples of {DIVISOR} and at most {bounds[0]} and {bounds[1]} at scale "
                f"{self.scale}, not {size}"
            )
        generator = self._synthetic("example", self.data.num_classes)
        return generator.of_size(size[0], *sides, self.options.seed)


def _padded(examples: Sequence[DetectionExample]) -> tuple[int, int]:
    return tuple(  # type: ignore[return-value]
        up(max(getattr(example, side) for example in examples), DIVISOR)
        for side in ("height", "width")
    )


class OdR50(Detection):
    """Object detection on COCO with RetinaNet on a ResNet-50."""

    name = "od-r50"
    title = "OD-R50"
    pretrained = "microsoft/resnet-50"
    settings_by_scale: ClassVar[Mapping[Scale, DetectionSetting]] = {
        "full": _full((3, 4, 6, 3), batch_size=8),
        "small": _small((3, 4, 6, 3)),
        "tiny": _tiny((1, 1, 1, 1)),
    }


class OdR101(Detection):
    """Object detection on COCO with RetinaNet on a ResNet-101."""

    name = "od-r101"
    title = "OD-R101"
    pretrained = "microsoft/resnet-101"
    settings_by_scale: ClassVar[Mapping[Scale, DetectionSetting]] = {
        "full": _full((3, 4, 23, 3), batch_size=6),
        "small": _small((3, 4, 23, 3)),
        "tiny": _tiny((1, 1, 3, 1)),
    }
