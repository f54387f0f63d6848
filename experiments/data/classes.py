"""Images with one class each, from anywhere, in batches of squares of one size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mimose_bench.experiments.data.image_folder import read_image_folder
from mimose_bench.experiments.data.image_hub import cached_or_asked, read_normalisation
from mimose_bench.experiments.data.images import (
    IMAGENET,
    ImageExample,
    Normalisation,
    Picture,
    RowPicture,
)
from mimose_bench.experiments.data.order import epoch_batches
from mimose_bench.experiments.data.sources import DataSource, HubUnavailableError
from mimose_bench.experiments.data.views import resized_crop

HUB = "ILSVRC/imagenet-1k"
_STREAM, _SIDES = 0x1C00, 0x51DE  # keep these draws apart from others with the same seed


class ClassData(Protocol):
    """Images with one class each.

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

    def batch(self, epoch: int, chosen: np.ndarray, side: int, seed: int) -> list[ImageExample]:
        """Return the images numbered ``chosen``, squares of ``side`` pixels."""


def multi_scale_batches(
    data: ClassData, sides: Sequence[int], batch_size: int, steps: int, seed: int
) -> Iterator[list[ImageExample]]:
    """Yield the examples of ``steps`` batches, each of squares of a side drawn from ``sides``."""
    order = epoch_batches(data.num_examples, batch_size, steps, seed)
    for step, (epoch, chosen) in enumerate(order):
        side = int(np.random.default_rng((seed, _SIDES, step)).choice(sides))
        yield data.batch(epoch, chosen, side, seed)


@dataclass(frozen=True, slots=True)
class StoredClasses:
    """Images on disk, seen differently every epoch; see :class:`ClassData`."""

    pictures: Sequence[Picture]
    labels: Sequence[int]
    source: DataSource
    num_classes: int
    normalisation: Normalisation = field(default=IMAGENET)

    @property
    def num_examples(self) -> int:
        """Number of images."""
        return len(self.pictures)

    def batch(self, epoch: int, chosen: np.ndarray, side: int, seed: int) -> list[ImageExample]:
        """Return the images numbered ``chosen``, squares of ``side`` pixels."""
        return [self._example(epoch, int(index), side, seed) for index in chosen]

    def _example(self, epoch: int, index: int, side: int, seed: int) -> ImageExample:
        pixels = partial(_pixels, self.pictures[index], side, (seed, _STREAM, epoch, index))
        return ImageExample(side, side, int(self.labels[index]), pixels)


def _pixels(picture: Picture, side: int, seed: tuple[int, ...]) -> np.ndarray:
    image = picture.load()
    view = resized_crop(np.random.default_rng(seed), image.height, image.width, side)
    return view.take(image)


def open_path(path: Path, reason: str) -> StoredClasses:
    """Return the images of a folder with a folder a class; see :func:`read_image_folder`.

    Raises:
        ValueError: If it is not such a folder.
    """
    found = read_image_folder(path)
    notes = ()
    if len(found.omitted):
        notes = (f"left out {len(found.omitted)} of {found.total}: {found.omitted.describe()}",)
    source = DataSource(kind="path", detail=str(path), reason=reason, notes=notes)
    return StoredClasses(found.pictures, found.labels, source, len(found.classes))


def open_hub(model: str, reason: str, *, download: bool) -> StoredClasses:
    """Return ImageNet's training images from the hub.

    Args:
        model: The model whose image processor says how pixels become inputs.
        reason: Why this source was taken.
        download: Whether to fetch what is not cached here: 150 GB.

    Raises:
        HubUnavailableError: If the hub does not answer, or refuses, and holds no copy here.
    """
    from datasets import Image

    try:
        rows = cached_or_asked((HUB, "imagenet-1k"), "train", download=download, size="150 GB")
    except HubUnavailableError as error:
        raise HubUnavailableError(
            f"{error} (it needs a token: accept its terms on the hub, then run hf auth login)"
        ) from error
    rows = rows.cast_column("image", Image(decode=False))
    labels = np.asarray(rows["label"])
    classes = rows.features["label"].num_classes
    kept = np.flatnonzero((labels >= 0) & (labels < classes))  # hidden labels are -1
    pictures = _Rows(rows, kept)
    notes = ()
    if len(kept) < len(labels):
        notes = (f"left out {len(labels) - len(kept)} of {len(labels)} images without a class",)
    source = DataSource(kind="hub", detail=f"{HUB}, split train", reason=reason, notes=notes)
    return StoredClasses(pictures, labels[kept], source, classes, read_normalisation(model))


class _Rows(Sequence[Picture]):
    """The pictures of a data set, made when they are asked for: there are a million."""

    def __init__(self, rows: Any, kept: np.ndarray) -> None:
        self._rows, self._kept = rows, kept

    def __len__(self) -> int:
        return len(self._kept)

    def __getitem__(self, index: Any) -> Any:
        return RowPicture(self._rows, int(self._kept[index]), "image")
