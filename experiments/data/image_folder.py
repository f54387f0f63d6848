"""Reading a folder with a folder of images for each class, and ImageNet as the hub has it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from mimose_bench.experiments.data.images import FilePicture, Picture
from mimose_bench.experiments.data.omissions import Omissions

EXTENSIONS = frozenset(
    {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp", ".gif"}
)


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images with their classes.

    Attributes:
        pictures: The images, at least one.
        labels: Number of each one's class.
        classes: Names of the classes.
        omitted: What could not be used.
        total: Number of files, whether used or not.
    """

    pictures: list[Picture]
    labels: list[int]
    classes: tuple[str, ...]
    omitted: Omissions
    total: int


def read_image_folder(path: Path) -> LabelledImages:
    """Return the images below ``path``: its folders are the classes, in alphabetical order.

    Where ``path`` holds a folder ``train`` with folders in it, that one is meant (ImageNet as it is
    usually unpacked).

    Raises:
        ValueError: If ``path`` is no folder, has no folders in it, or holds no usable image.
    """
    if path.is_file():
        raise ValueError(f"{path} is a file: give the folder that holds a folder of images a class")
    if not path.is_dir():
        raise ValueError(f"there is no data folder {path}")
    if _folders(path / "train"):
        path = path / "train"
    classes = _folders(path)
    if not classes:
        raise ValueError(f"{path} has no folders: put the images of each class into one of its own")
    omitted = Omissions()
    pictures: list[Picture] = []
    labels = []
    total = 0
    for label, name in enumerate(classes):
        before = len(pictures)
        for file in _files(path / name):
            total += 1
            if file.suffix.lower() not in EXTENSIONS:
                omitted.add("files that are no images", str(file))
            elif not file.stat().st_size:
                omitted.add("empty files", str(file))
            else:
                pictures.append(FilePicture(str(file)))
                labels.append(label)
        if len(pictures) == before:
            omitted.add("classes without an image", name)
    if not pictures:
        raise ValueError(f"{path} holds no usable image: {omitted.describe()}")
    return LabelledImages(pictures, labels, tuple(classes), omitted, total)


def _folders(path: Path) -> list[str]:
    if not path.is_dir():
        return []
    with os.scandir(path) as entries:
        return sorted(e.name for e in entries if e.is_dir() and not e.name.startswith("."))


def _files(path: Path) -> list[Path]:
    found = []
    for folder, inner, names in os.walk(path, followlinks=True):
        inner.sort()
        found.extend(Path(folder, name) for name in sorted(names) if not name.startswith("."))
    return found
