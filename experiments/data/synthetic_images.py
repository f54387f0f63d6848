"""Generated images: shapes and boxes like COCO's, and classes that can be seen as colours."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np

from mimose_bench.experiments.data.image_order import grouped_batches, grouped_steps
from mimose_bench.experiments.data.images import (
    IMAGENET,
    DetectionExample,
    ImageExample,
    Normalisation,
)
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.views import MultiScale

# Height, width and share of COCO's images. An assumption: their longer side is nearly always 640,
# three in four are wide, and 4:3 and 3:2 are by far the commonest; the shares are rounded.
# It is checked by the areas that batches of 6 have in the paper's published log.
SHAPES = (
    ((480, 640), 0.31),
    ((427, 640), 0.25),
    ((640, 480), 0.13),
    ((640, 427), 0.09),
    ((375, 500), 0.05),
    ((360, 640), 0.05),
    ((333, 500), 0.03),
    ((640, 640), 0.03),
    ((500, 375), 0.02),
    ((512, 640), 0.02),
    ((640, 512), 0.01),
    ((640, 360), 0.01),
)
MEAN_BOXES, MOST_BOXES = 7.3, 60
"""Boxes of an image: COCO's mean, and where its tail is cut."""
_BOXES_SPREAD = 1.0  # of the logarithm of their number: a median of 4, one image in 40 over 30
_MIDDLE, _NOISE = 110, 40
_DETECTION, _CLASSES = 0xB0C5, 0xC1A5  # keep these draws apart from others with the same seed


def colours(num_classes: int) -> np.ndarray:
    """Return a colour for each class, as far apart as their number allows, ``uint8`` (N, 3)."""
    levels = max(math.ceil(num_classes ** (1 / 3) - 1e-9), 2)
    grid = np.linspace(0, 255, levels).astype(np.uint8)
    table = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), axis=-1).reshape(-1, 3)
    return np.random.default_rng(0).permutation(table)[:num_classes]


@dataclass(frozen=True, eq=False)
class Canvas:
    """Noise to paint on, drawn once and used again from a place of its own for every image.

    Attributes:
        largest: Pixels of the largest image.
    """

    largest: int

    @cached_property
    def _noise(self) -> np.ndarray:
        rng = np.random.default_rng(1)
        count = 3 * self.largest + (1 << 16)
        return rng.integers(_MIDDLE - _NOISE, _MIDDLE + _NOISE, count, dtype=np.uint8)

    def blank(self, height: int, width: int, place: int) -> np.ndarray:
        """Return an image of noise; ``place``, below 65536, says which."""
        count = 3 * height * width
        return self._noise[place : place + count].reshape(height, width, 3).copy()


@dataclass(frozen=True, eq=False)
class SyntheticDetection:
    """Rectangles in the colours of their classes, on noise.

    Shapes are drawn from :data:`SHAPES`, then go through the detector's own augmentation; every
    example is new. Boxes are painted at the size at which they are seen: no image is resized.

    Attributes:
        source: What to say of this data.
        num_classes: Number of classes.
        num_examples: Number of images in an epoch.
        policy: The augmentation.
    """

    source: DataSource
    num_classes: int
    num_examples: int
    policy: MultiScale
    normalisation: Normalisation = field(default=IMAGENET, init=False)

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[DetectionExample]]:
        """Yield the examples of ``steps`` batches, wide and tall images apart."""
        shapes, wide = self._shapes
        for epoch, chosen in grouped_batches(wide, batch_size, steps, seed):
            yield [self._example(seed, epoch, int(i), SHAPES[shapes[i]][0]) for i in chosen]

    def epoch_steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return grouped_steps(self._shapes[1], batch_size)

    @cached_property
    def _shapes(self) -> tuple[np.ndarray, np.ndarray]:
        """Which of the shapes each image has, whatever the seed, and whether it is a wide one."""
        shares = np.array([share for _, share in SHAPES])
        rng = np.random.default_rng(_DETECTION)
        drawn = rng.choice(len(SHAPES), self.num_examples, p=shares / shares.sum())
        return drawn, np.array([width >= height for (height, width), _ in SHAPES])[drawn]

    def of_size(self, count: int, height: int, width: int, seed: int) -> list[DetectionExample]:
        """Return images of which each has this height and width."""
        rng = np.random.default_rng((seed, _DETECTION))
        return [self._painted(rng, height, width, *self._boxes(rng)) for _ in range(count)]

    def _example(
        self, seed: int, epoch: int, index: int, shape: tuple[int, int]
    ) -> DetectionExample:
        rng = np.random.default_rng((seed, _DETECTION, epoch, index))
        height, width = shape
        view = self.policy.draw(rng, height, width)
        boxes, labels = self._boxes(rng)
        moved, shown = view.move(boxes * np.array([width, height, width, height]))
        return self._painted(rng, view.height, view.width, moved, labels[shown], scaled=False)

    def _boxes(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Return boxes in shares of the image's sides, and their labels."""
        mean = math.log(MEAN_BOXES - 0.5) - _BOXES_SPREAD**2 / 2
        count = int(np.clip(round(math.exp(rng.normal(mean, _BOXES_SPREAD))), 1, MOST_BOXES))
        # About COCO's sizes: the root of a box's share of the area has a median of 0.15, and it is
        # as often twice as large as half.
        side = np.exp(rng.normal(math.log(0.15), 0.8, count)).clip(0.02, 0.9)
        shape = np.exp(rng.normal(0, 0.35, count))
        sides = np.stack([side * shape, side / shape], axis=1).clip(0.02, 0.95)
        first = rng.random((count, 2)) * (1 - sides)
        labels = rng.integers(0, self.num_classes, count)
        return np.concatenate([first, first + sides], axis=1), labels

    def _painted(
        self,
        rng: np.random.Generator,
        height: int,
        width: int,
        boxes: np.ndarray,
        labels: np.ndarray,
        *,
        scaled: bool = True,
    ) -> DetectionExample:
        if scaled:
            boxes = (boxes * np.array([width, height, width, height])).astype(np.float32)
        place = int(rng.integers(1 << 16))
        pixels = partial(self._paint, height, width, boxes, labels, place)
        return DetectionExample(height, width, boxes, labels, pixels)

    def _paint(
        self, height: int, width: int, boxes: np.ndarray, labels: np.ndarray, place: int
    ) -> np.ndarray:
        image = self._canvas.blank(height, width, place)
        areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
        for number in np.argsort(-areas, kind="stable"):  # the small in front of the large
            x1, y1 = np.floor(boxes[number, :2]).astype(int)
            x2, y2 = np.ceil(boxes[number, 2:]).astype(int)
            image[y1:y2, x1:x2] = self._colours[labels[number]]
        return image

    @cached_property
    def _colours(self) -> np.ndarray:
        return colours(self.num_classes)

    @cached_property
    def _canvas(self) -> Canvas:
        return Canvas(math.prod(self.policy.greatest(32)))


@dataclass(frozen=True, eq=False)
class SyntheticClasses:
    """Squares in the colours of their classes, on noise.

    Every example is new; an epoch only decides where a smaller last batch comes.

    Attributes:
        source: What to say of this data.
        num_classes: Number of classes.
        num_examples: Number of images in an epoch.
        longest: Greatest side of an image in pixels.
    """

    source: DataSource
    num_classes: int
    num_examples: int
    longest: int
    normalisation: Normalisation = field(default=IMAGENET, init=False)

    def batch(self, epoch: int, chosen: np.ndarray, side: int, seed: int) -> list[ImageExample]:
        """Return the images numbered ``chosen`` of an epoch, squares of ``side`` pixels."""
        return [
            self._example(np.random.default_rng((seed, _CLASSES, epoch, int(index))), side)
            for index in chosen
        ]

    def of_size(self, count: int, side: int, seed: int) -> list[ImageExample]:
        """Return images of this side."""
        return self.batch(0, np.arange(count), side, seed)

    def _example(self, rng: np.random.Generator, side: int) -> ImageExample:
        label = int(rng.integers(self.num_classes))
        sides = rng.uniform(0.5, 0.9, 2)
        first = rng.random(2) * (1 - sides)
        corners = tuple(int(x) for x in np.concatenate([first, first + sides]) * side)
        place = int(rng.integers(1 << 16))
        return ImageExample(side, side, label, partial(self._paint, side, corners, label, place))

    def _paint(self, side: int, corners: tuple[int, ...], label: int, place: int) -> np.ndarray:
        image = self._canvas.blank(side, side, place)
        x1, y1, x2, y2 = corners
        image[y1:y2, x1:x2] = self._colours[label]
        return image

    @cached_property
    def _colours(self) -> np.ndarray:
        return colours(self.num_classes)

    @cached_property
    def _canvas(self) -> Canvas:
        return Canvas(self.longest**2)
