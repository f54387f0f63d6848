"""Images with boxes, from anywhere, as a detector's batches."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np

from mimose_bench.experiments.data.coco import BoxedImage, BoxedImages, from_rows, read_coco
from mimose_bench.experiments.data.image_hub import cached_or_asked, read_normalisation
from mimose_bench.experiments.data.image_order import grouped_batches, grouped_steps
from mimose_bench.experiments.data.images import (
    IMAGENET,
    DetectionExample,
    Normalisation,
    Picture,
    View,
)
from mimose_bench.experiments.data.sources import DataSource, HubUnavailableError
from mimose_bench.experiments.data.views import MultiScale

HUB = "detection-datasets/coco"
log = logging.getLogger(__name__)
_STREAM = 0xC0C0  # keeps these draws apart from others with the same seed


class DetectionData(Protocol):
    """Images with boxes, in batches.

    Attributes:
        source: What to say of this data.
        num_classes: Number of classes.
        normalisation: How pixels become inputs.
    """

    source: DataSource
    num_classes: int
    normalisation: Normalisation

    @property
    def num_examples(self) -> int:
        """Number of images in an epoch."""

    def epoch_steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[DetectionExample]]:
        """Yield the examples of ``steps`` batches; equal seeds give equal batches."""


@dataclass(frozen=True, slots=True)
class StoredDetection:
    """Images on disk, seen differently every epoch; see :class:`DetectionData`."""

    images: list[BoxedImage]
    source: DataSource
    num_classes: int
    policy: MultiScale
    normalisation: Normalisation = field(default=IMAGENET)

    @property
    def num_examples(self) -> int:
        """Number of images."""
        return len(self.images)

    @property
    def _wide(self) -> np.ndarray:
        return np.array([image.width >= image.height for image in self.images])

    def epoch_steps(self, batch_size: int) -> int:
        """Return the number of batches in an epoch."""
        return grouped_steps(self._wide, batch_size)

    def batches(self, batch_size: int, steps: int, seed: int) -> Iterator[list[DetectionExample]]:
        """Yield the examples of ``steps`` batches, wide and tall images apart."""
        for epoch, chosen in grouped_batches(self._wide, batch_size, steps, seed):
            yield [self._example(seed, epoch, int(index)) for index in chosen]

    def _example(self, seed: int, epoch: int, index: int) -> DetectionExample:
        image = self.images[index]
        rng = np.random.default_rng((seed, _STREAM, epoch, index))
        view = self.policy.draw(rng, image.height, image.width)
        boxes, shown = view.move(image.boxes)
        pixels = partial(_pixels, image.picture, view)
        return DetectionExample(view.height, view.width, boxes, image.labels[shown], pixels)


def _pixels(picture: Picture, view: View) -> np.ndarray:
    return view.take(picture.load())


def open_path(path: Path, policy: MultiScale, reason: str) -> StoredDetection:
    """Return the images of a COCO ``instances`` file; see :func:`read_coco`.

    Raises:
        ValueError: If the file or its images are missing or not what they should be.
    """
    started = time.perf_counter()
    found = read_coco(path)
    seconds = time.perf_counter() - started
    log.info("read %d images with boxes in %.1f s", len(found.images), seconds)
    detail = f"{path}, images in {found.folder}"
    return _stored(found, DataSource(kind="path", detail=detail, reason=reason), policy, IMAGENET)


def open_hub(model: str, policy: MultiScale, reason: str, *, download: bool) -> StoredDetection:
    """Return COCO's training images from the hub.

    Args:
        model: The model whose image processor says how pixels become inputs.
        policy: The augmentation.
        reason: Why this source was taken.
        download: Whether to fetch what is not cached here: 19 GB.

    Raises:
        HubUnavailableError: If the hub does not answer and holds no copy here.
    """
    from datasets import Image

    rows = cached_or_asked((HUB,), "train", download=download, size="19 GB")
    rows = rows.cast_column("image", Image(decode=False))
    found = from_rows(rows, _category_names(rows))
    source = DataSource(kind="hub", detail=f"{HUB}, split train", reason=reason)
    return _stored(found, source, policy, read_normalisation(model))


def _category_names(rows: object) -> list[str]:
    objects = rows.features["objects"]  # type: ignore[attr-defined]
    inner = getattr(objects, "feature", objects)
    category = inner["category"]
    names = getattr(getattr(category, "feature", category), "names", None)
    if not names:
        raise HubUnavailableError(f"the hub's {HUB} names no categories")
    return list(names)


def _stored(
    found: BoxedImages, source: DataSource, policy: MultiScale, normalisation: Normalisation
) -> StoredDetection:
    notes = ()
    if len(found.omitted):
        told = found.omitted.describe()
        notes = (f"left out {len(found.omitted)} of {found.total} records: {told}",)
    source = DataSource(kind=source.kind, detail=source.detail, reason=source.reason, notes=notes)
    return StoredDetection(found.images, source, len(found.categories), policy, normalisation)
