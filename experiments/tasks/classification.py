"""Image classification in batches of squares whose side changes from batch to batch."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from mimose.records import Size
from mimose_bench.experiments.data import classes
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.classes import ClassData, multi_scale_batches
from mimose_bench.experiments.data.images import ImageExample
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.synthetic_images import SyntheticClasses
from mimose_bench.experiments.tasks.base import SizeBin
from mimose_bench.experiments.tasks.images import ImageTask, parse_sides

if TYPE_CHECKING:
    from torch import nn

IMAGENET_IMAGES = 1281167


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassificationSetting:
    """Shape of a classifier's batches at one scale.

    Attributes:
        depths: Blocks in each stage.
        batch_size: Images in a batch.
        sides: Sides that a batch's squares may have, in pixels, the smallest first.
        num_classes: Classes of generated data.
        num_examples: Images in an epoch of generated data.
        lr: Learning rate.
    """

    depths: tuple[int, ...]
    batch_size: int
    sides: tuple[int, ...]
    num_classes: int
    num_examples: int
    lr: float


class Classification(ImageTask[ImageExample]):
    """A task over images with one class each; every batch has a side of its own.

    Attributes:
        model_class: Name of the model's class in ``transformers``.
        shape: Names of the configuration that a saved model must share with the scale's.
    """

    model_class: ClassVar[str]
    shape: ClassVar[tuple[str, ...]]
    setting: Any
    data: ClassData

    # -- what a classifier must say

    @abstractmethod
    def _config(self) -> Any:
        """Return the configuration of the model with random weights."""

    @abstractmethod
    def _extents(self, side: int) -> tuple[int, ...]:
        """Return what memory is proportional to, for squares of this side; the area comes first."""

    # -- data

    def _open_hub(self, reason: str, *, download: bool) -> ClassData:
        return classes.open_hub(self.pretrained, reason, download=download)

    def _open_path(self, path: Path, reason: str) -> ClassData:
        return classes.open_path(path, reason)

    def _synthetic(self, reason: str, num_classes: int | None = None) -> SyntheticClasses:
        setting = self.setting
        source = DataSource(
            kind="synthetic", detail="on noise, a rectangle in its class's colour", reason=reason
        )
        return SyntheticClasses(
            source,
            setting.num_classes if num_classes is None else num_classes,
            setting.num_examples,
            max(setting.sides),
        )

    # -- model

    def build_model(self) -> nn.Module:
        """Return the classifier in training mode and fp32, on the CPU; see ``Task``."""
        import transformers

        kind = getattr(transformers, self.model_class)
        config = self._config()
        if self.options.weights == "random":
            model = kind(config)
        else:
            model = self._load(kind, **self._loading())
            self._check_shape(model.config, config, self.shape)
        found: nn.Module = model.float().train()
        return found

    def _loading(self) -> dict[str, Any]:
        # A head for other classes is replaced by a new one, as fine-tuning does.
        return {"num_labels": self.data.num_classes, "ignore_mismatched_sizes": True}

    # -- batches

    def _examples(self, steps: int) -> Iterator[Sequence[ImageExample]]:
        return multi_scale_batches(
            self.data, self.setting.sides, self.batch_size, steps, self.options.seed
        )

    def _size(self, examples: Sequence[ImageExample]) -> Size:
        return len(examples), *self._extents(examples[0].height)

    def _collate(self, examples: Sequence[ImageExample]) -> Batch:
        """Return a batch: ``pixel_values``, ``float32`` (N, 3, S, S), and ``labels``, ``int64``."""
        import torch

        side = examples[0].height
        images = self._painters.stack(examples, self.data.normalisation, side, side)
        labels = np.array([example.label for example in examples], np.int64)
        tensors = {"pixel_values": torch.from_numpy(images), "labels": torch.from_numpy(labels)}
        pixels = len(examples) * side * side
        return Batch(tensors, self._size(examples), pixels, len(examples), pixels)

    # -- sizes

    def longest(self) -> Size:
        """Return the size of the largest batch to come; see ``Task``."""
        return self._full_size(max(self.setting.sides))

    def size_bins(self) -> tuple[SizeBin, ...]:
        """Return the sizes of a full batch, all as frequent; see ``Task``."""
        sides = self.setting.sides
        return tuple(SizeBin(self._full_size(side), 1 / len(sides)) for side in sides)

    def parse_size(self, text: str) -> Size:
        """Return the size of a full batch of squares, for example ``224``."""
        example = self.describe_size(self.longest())
        height, width = parse_sides(text, self.name, example, square=True)
        if height != width or height not in self.setting.sides:
            raise ValueError(f"{self._told_sides()}, not {text}")
        return self._full_size(height)

    def describe_size(self, size: Size) -> str:
        """Return the sides of the squares, such as ``320x320``."""
        side = math.isqrt(size[1])
        return f"{side}x{side}"

    def _full_size(self, side: int) -> Size:
        return min(self.batch_size, self.num_examples), *self._extents(side)

    def _told_sides(self) -> str:
        sides = ", ".join(map(str, self.setting.sides))
        return f"images of {self.name} are squares of {sides} pixels at scale {self.scale}"

    def _examples_of(self, size: Size) -> Sequence[ImageExample]:
        side = math.isqrt(size[1]) if len(size) > 1 and size[1] > 0 else 0
        if side not in self.setting.sides or size[0] < 1 or size[1:] != self._extents(side):
            raise ValueError(f"{self._told_sides()}, and no batch of them has size {size}")
        generator = self._synthetic("example", self.data.num_classes)
        return generator.of_size(size[0], side, self.options.seed)

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings as plain data."""
        return {**super().settings(), "model": self.model_class}
