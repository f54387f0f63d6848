"""Reading a folder with a folder of images for each class, and ImageNet as the hub has it."""

from __future__ import annotations

import os
import stat
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from mimose_bench.experiments.data.images import FilePicture, Picture
from mimose_bench.experiments.data.local import mode_of
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
        total: Number of files, used or not, and of what else was left out.
    """

    pictures: list[Picture]
    labels: list[int]
    classes: tuple[str, ...]
    omitted: Omissions
    total: int


def read_image_folder(path: Path) -> LabelledImages:
    """Return the images below ``path``: its folders are the classes, in alphabetical order.

    Links are followed, and each folder is read once: as what it is where it lies below ``path``,
    as part of what links to it where it does not. Names that begin with a dot are passed over.
    Where ``path`` holds a folder ``train`` with folders in it, that one is meant (ImageNet as it is
    usually unpacked).

    Raises:
        ValueError: If ``path`` is no folder, cannot be read, has no folders in it, or holds no
            usable image.
    """
    if not stat.S_ISDIR(mode_of(path, "data folder")):
        raise ValueError(f"{path} is a file: give the folder that holds a folder of images a class")
    try:
        classes = _folders(path)
        inner = _folders(path / "train") if "train" in classes else []
        if inner:
            path, classes = path / "train", inner
        broken = _broken_links(path)
    except OSError as error:
        where = error.filename or path
        raise ValueError(f"data folder {where} cannot be read: {error.strerror}") from error
    if not classes:
        raise ValueError(f"{path} has no folders: put the images of each class into one of its own")
    omitted = Omissions()
    for name in broken:  # a class each, most likely
        omitted.add("broken links", name)
    pictures: list[Picture] = []
    labels = []
    for label, (name, files) in enumerate(zip(classes, _files(path, classes, omitted))):
        before = len(pictures)
        for file in files:
            reason = _unusable(file)
            if reason:
                omitted.add(reason, _below(path, file))
            else:
                pictures.append(FilePicture(file))
                labels.append(label)
        if len(pictures) == before:
            omitted.add("classes without an image", name)
    if not pictures:
        raise ValueError(f"{path} holds no usable image: {omitted.describe()}")
    total = len(pictures) + len(omitted)
    return LabelledImages(pictures, labels, tuple(classes), omitted, total)


def _folders(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(e.name for e in entries if not e.name.startswith(".") and _is_folder(e))


def _broken_links(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        links = [e for e in entries if e.is_symlink() and not e.name.startswith(".")]
        return sorted(e.name for e in links if not Path(e.path).exists())


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, or into what may not be read
        return False


def _unusable(file: str) -> str:
    """Return why a file is no image, as the end of ``3 ...``; empty if it may be one."""
    path = Path(file)
    try:
        found = path.stat()
    except PermissionError:
        return "unreadable files"
    except OSError:  # listed, and yet there is no file
        return "broken links"
    if not stat.S_ISREG(found.st_mode):
        return "pipes and devices"
    if path.suffix.lower() not in EXTENSIONS:
        return "files that are no images"
    return "" if found.st_size else "empty files"


def _files(path: Path, classes: list[str], omitted: Omissions) -> list[list[str]]:
    """Return the files of each class in ``path``, in order; tell ``omitted`` of folders left out.

    What lies below ``path`` is read first, so that a link to it from elsewhere does not take it.
    """
    found: list[list[str]] = [[] for _ in classes]
    whole = path.resolve()
    read = {_identity(folder) for folder in (whole, *whole.parents)}
    now: deque[tuple[int, Path]] = deque()
    later: deque[tuple[int, Path]] = deque()
    for label, name in enumerate(classes):
        (later if (path / name).is_symlink() else now).append((label, path / name))
    while now or later:
        label, folder = (now or later).popleft()
        try:
            identity = _identity(folder)
            if identity in read:
                omitted.add("links to folders that are read anyway", _below(path, folder))
                continue
            read.add(identity)
            with os.scandir(folder) as entries:
                inner = [each for each in entries if not each.name.startswith(".")]
        except OSError:
            omitted.add("unreadable folders", _below(path, folder))
            continue
        for entry in sorted(inner, key=lambda each: each.name):
            if not _is_folder(entry):
                found[label].append(entry.path)
            else:
                (later if entry.is_symlink() else now).append((label, Path(entry.path)))
    return [sorted(files) for files in found]


def _below(path: Path, file: str | Path) -> str:
    """Return a name short enough to be shown whole."""
    return str(file).removeprefix(f"{path}{os.sep}")


def _identity(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_dev, found.st_ino
