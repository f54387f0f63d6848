"""Images as training takes them: where they lie, which part of them is seen, and their pixels."""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

T = TypeVar("T")
R = TypeVar("R")
_MOST_THREADS = 8
_MOST_GREY = 65535


class View(NamedTuple):
    """A part of an image, and the size at which it is seen.

    Attributes:
        box: The part, in pixels of the image: left, top, right, bottom.
        height: Height in pixels at which it is seen.
        width: Width, likewise.
        flipped: Whether left and right are exchanged.
    """

    box: tuple[float, float, float, float]
    height: int
    width: int
    flipped: bool

    def move(self, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return where boxes of the image lie in the view, and which of them it shows.

        Args:
            boxes: Corners x1, y1, x2, y2, ``(N, 4)``.

        Returns:
            The corners of the boxes that are to be seen, cut at the edges, and a mask ``(N,)``.
        """
        left, top, right, bottom = self.box
        scale = np.array([self.width / (right - left), self.height / (bottom - top)] * 2)
        moved = (boxes - np.array([left, top] * 2)) * scale
        if self.flipped:
            moved = moved[:, [2, 1, 0, 3]]
            moved[:, 0::2] = self.width - moved[:, 0::2]
        moved[:, 0::2] = moved[:, 0::2].clip(0, self.width)
        moved[:, 1::2] = moved[:, 1::2].clip(0, self.height)
        shown = (moved[:, 2] > moved[:, 0]) & (moved[:, 3] > moved[:, 1])
        return moved[shown].astype(np.float32), shown

    def take(self, image: Image) -> np.ndarray:
        """Return the pixels of ``image`` in this view, ``uint8`` of shape (height, width, 3)."""
        from PIL import Image as Images

        resized = image.resize(
            (self.width, self.height), Images.Resampling.BILINEAR, self.box, reducing_gap=3.0
        )
        pixels = np.asarray(resized)
        return pixels[:, ::-1] if self.flipped else pixels


class Picture(Protocol):
    """An image that has not been decoded yet."""

    @property
    def name(self) -> str:
        """What to call it in messages."""

    def load(self) -> Image:
        """Return the decoded image, as RGB.

        Raises:
            ValueError: If it cannot be decoded; the sentence names it.
        """


@dataclass(frozen=True, slots=True)
class FilePicture:
    """An image file.

    Attributes:
        path: The file.
        size: Width and height that its record gives, to be checked; None where there is none.
    """

    path: str
    size: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def load(self) -> Image:
        """Return the decoded image; see :class:`Picture`."""
        return decode(self.path, self.path, self.size)


@dataclass(frozen=True, slots=True)
class RowPicture:
    """An image that a data set of the hub holds.

    Attributes:
        rows: The data set, its images not decoded.
        index: Number of the row.
        column: Name of the images' column.
        size: As in :class:`FilePicture`.
    """

    rows: Any
    index: int
    column: str
    size: tuple[int, int] | None = None

    @property
    def name(self) -> str:
        """The row's number."""
        return f"image of row {self.index}"

    def load(self) -> Image:
        """Return the decoded image; see :class:`Picture`."""
        stored = self.rows[self.index][self.column]
        content = stored.get("bytes")
        where = stored["path"] if content is None else io.BytesIO(content)
        return decode(where, self.name, self.size)


def decode(where: str | Path | io.BytesIO, name: str, size: tuple[int, int] | None = None) -> Image:
    """Return an image as RGB, turned in no way (its boxes belong to the pixels as stored).

    Args:
        where: A file or its content.
        name: What to call it.
        size: Width and height that it must have.

    Raises:
        ValueError: If it cannot be decoded, is not all there, has another size, or more pixels
            or finer ones than an image is expected to have.
    """
    from PIL import Image as Images

    _settle_warnings()
    try:
        with Images.open(where) as image:
            image.load()
            found = _as_rgb(image)
    except (Images.DecompressionBombWarning, Images.DecompressionBombError) as error:
        raise ValueError(
            f"{name} has more than {Images.MAX_IMAGE_PIXELS:,} pixels: make it smaller or remove it"
        ) from error
    except _UnfitError as error:
        raise ValueError(f"{name} {error}: save it with 8 bits a colour") from None
    except (OSError, ValueError, SyntaxError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(
            f"{name} is damaged or not an image ({reason}): replace or remove it"
        ) from error
    if size is not None and found.size != size:
        raise ValueError(
            f"{name} is {found.width} x {found.height} pixels and its record says "
            f"{size[0]} x {size[1]}: use the images that the annotations were made for"
        )
    return found


class _UnfitError(Exception):
    """Why an image is not one to be seen, as the end of ``this file ...``."""


def _as_rgb(image: Image) -> Image:
    from PIL import Image as Images

    # What is transparent shows its colour, as in an image with an alpha channel.
    image.info.pop("transparency", None)
    if image.mode == "F":
        raise _UnfitError("holds numbers that are not whole")
    if image.mode == "I" or image.mode.startswith("I;16"):
        # Pillow's own conversion cuts these at 255 instead of scaling them.
        grey = np.asarray(image).astype(np.int64)
        if grey.min() < 0 or grey.max() > _MOST_GREY:
            raise _UnfitError("is grey in more than 16 bits")
        image = Images.fromarray(((grey * 255 + _MOST_GREY // 2) // _MOST_GREY).astype(np.uint8))
    return image.convert("RGB")


def _settle_warnings() -> None:
    """Make Pillow refuse images of too many pixels, and keep it from remarks on their metadata.

    These filters stay: images are decoded in threads, where ``catch_warnings`` is not safe.
    """
    from PIL import Image as Images

    if not any(kind is Images.DecompressionBombWarning for _, _, kind, _, _ in warnings.filters):
        warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
        warnings.simplefilter("error", Images.DecompressionBombWarning)


@dataclass(frozen=True, slots=True)
class Normalisation:
    """How pixels become a model's inputs: ``(value / 255 - mean) / std`` for each colour."""

    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)

    def write(self, pixels: np.ndarray, out: np.ndarray) -> None:
        """Write ``(H, W, 3)`` pixels into ``out``, ``float32`` of shape (3, H, W)."""
        for colour, (mean, std) in enumerate(zip(self.mean, self.std, strict=True)):
            np.multiply(pixels[..., colour], np.float32(1 / (255 * std)), out=out[colour])
            out[colour] -= np.float32(mean / std)


IMAGENET = Normalisation()
"""What the models were pretrained with: ImageNet's mean and deviation."""


@dataclass(frozen=True, slots=True, eq=False)
class ImageExample:
    """An image and its class.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        label: Number of the class.
        pixels: Makes the pixels, ``uint8`` of shape (height, width, 3).
    """

    height: int
    width: int
    label: int
    pixels: Callable[[], np.ndarray]


@dataclass(frozen=True, slots=True, eq=False)
class DetectionExample:
    """An image and the boxes in it.

    Attributes:
        height: Height in pixels.
        width: Width in pixels.
        boxes: Corners x1, y1, x2, y2 in pixels, ``float32`` of shape (N, 4); N may be 0.
        labels: Number of each box's class, ``(N,)``.
        pixels: Makes the pixels, ``uint8`` of shape (height, width, 3).
    """

    height: int
    width: int
    boxes: np.ndarray
    labels: np.ndarray
    pixels: Callable[[], np.ndarray]


@dataclass(eq=False)
class Painters:
    """Threads in which the images of a batch are decoded; decoding leaves Python's lock."""

    threads: int = field(default_factory=lambda: min(_MOST_THREADS, os.cpu_count() or 1))

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.threads, thread_name_prefix="images")

    def run(self, function: Callable[[T], R], items: Iterable[T]) -> list[R]:
        """Return ``function`` of each item, in order; the first exception in order is raised."""
        return list(self._pool.map(function, items))

    def stack(
        self,
        examples: Sequence[ImageExample] | Sequence[DetectionExample],
        normalisation: Normalisation,
        height: int,
        width: int,
    ) -> np.ndarray:
        """Return the images of ``examples`` as (N, 3, height, width), zero beyond their edges."""
        images = np.zeros((len(examples), 3, height, width), np.float32)

        def paint(number: int) -> None:
            example = examples[number]
            part = images[number, :, : example.height, : example.width]
            normalisation.write(example.pixels(), part)

        self.run(paint, range(len(examples)))
        return images
