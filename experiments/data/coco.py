"""Reading images and boxes in COCO's published format (``instances_*.json``) and from the hub."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mimose_bench.experiments.data.images import FilePicture, Picture, RowPicture
from mimose_bench.experiments.data.local import read_data
from mimose_bench.experiments.data.omissions import Omissions, printable

SMALLEST = 32
"""Images with a shorter side are left out, as MMDetection does."""
_LOOKED_AT = 50
_MOST_FLAT = 0.25
"""Share of boxes without extent beyond which they cannot be what they are taken for."""
_FAR = 1_000_000  # no image has as many pixels in a row; what is not a number is not below it
_WITHOUT = "images without boxes"


@dataclass(frozen=True, slots=True)
class BoxedImage:
    """One image of a data set with its boxes.

    Attributes:
        picture: The image.
        height: Height in pixels.
        width: Width in pixels.
        boxes: Corners x1, y1, x2, y2 in pixels, ``float32`` of shape (N, 4), N at least 1.
        labels: Number of each box's class from 0, ``(N,)``.
    """

    picture: Picture
    height: int
    width: int
    boxes: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True, slots=True)
class BoxedImages:
    """What a data set holds that can be trained on.

    Attributes:
        images: The images, at least one.
        categories: Names of the classes.
        omitted: The records that could not be used.
        total: Number of records, images and annotations together.
        folder: Where the images lie; empty for the hub's.
    """

    images: list[BoxedImage]
    categories: tuple[str, ...]
    omitted: Omissions
    total: int
    folder: str = ""


class _MalformedError(Exception):
    """Why a record cannot be used."""


def read_coco(path: Path) -> BoxedImages:
    """Return the usable images of a COCO ``instances`` file.

    The images are looked for in a folder beside the file that is called as the file is
    (``train2017`` for ``instances_train2017.json``), in ``images``, in the file's own folder, and
    in a folder of that name one level up. Crowds (``iscrowd``) are no boxes; images without boxes
    are left out.

    Raises:
        ValueError: If the file is missing, unreadable, empty, cut off or not COCO, if its images
            are not found, or if none of them is usable.
    """
    content = _content(path)
    omitted = Omissions()
    categories = _categories(path, content["categories"])
    numbers = {category: number for number, category in enumerate(sorted(categories))}
    records = _images(content["images"], omitted)
    folder = _folder(path, [record["file_name"] for record in records.values()])
    boxes: dict[Any, list[tuple[float, ...]]] = {}
    for position, annotation in enumerate(content["annotations"]):
        try:
            record, box = _box(annotation, records, numbers)
        except _MalformedError as error:
            omitted.add(f"annotations {error}", _name("annotation", position, annotation))
            continue
        if box is not None:
            boxes.setdefault(record["id"], []).append(box)
    files = _Files(folder)
    images = []
    for record in records.values():
        try:
            images.append(_boxed(record, files, boxes.get(record["id"])))
        except _MalformedError as error:
            omitted.add(str(error), record["file_name"])
    if not images:
        why = omitted.describe() or "it has no images"
        raise ValueError(f"{path} holds no usable image: {why}")
    names = tuple(categories[category] for category in sorted(categories))
    total = len(content["images"]) + len(content["annotations"])
    return BoxedImages(images, names, omitted, total, str(folder))


def from_rows(rows: Any, categories: Sequence[str]) -> BoxedImages:
    """Return the usable images of a data set as the hub's ``detection-datasets/coco`` has it.

    Args:
        rows: A ``datasets.Dataset`` with ``image`` (not decoded), ``width``, ``height`` and
            ``objects``, of which ``bbox`` holds corners and ``category`` the class's number.
        categories: Names of the classes.

    Raises:
        ValueError: If no image is usable, or if the boxes are no corners.
    """
    omitted = Omissions()
    images: list[BoxedImage] = []
    flat = 0
    plain = rows.remove_columns([c for c in rows.column_names if c == "image"])
    total = 0
    for index, row in enumerate(plain):
        name = f"row {index}"
        size = row.get("width"), row.get("height")
        found = []
        pairs = _pairs(row.get("objects") or {})
        total += 1 + len(pairs)
        for number, (corners, category) in enumerate(pairs):
            try:
                if category not in range(len(categories)):
                    raise _MalformedError("of an unknown category")
                x1, y1, x2, y2 = _numbers(corners)
                flat += x2 <= x1 or y2 <= y1
                found.append((*_inside((x1, y1, x2, y2), *size), category))
            except _MalformedError as error:
                omitted.add(f"boxes {error}", f"{name} box {number}")
        try:
            picture = RowPicture(rows, index, "image", size)
            images.append(_with_boxes(picture, *size, found))
        except _MalformedError as error:
            omitted.add(str(error), name)
    if flat > _MOST_FLAT * total:
        # COCO has a handful; width and height taken for a corner make it about half.
        raise ValueError(
            f"{flat} boxes of the data set end before they begin: its boxes are not corners "
            "(x1, y1, x2, y2), give its COCO JSON file with --data PATH"
        )
    if not images:
        raise ValueError(f"the data set holds no usable image: {omitted.describe() or 'no rows'}")
    return BoxedImages(images, tuple(categories), omitted, total)


def _pairs(objects: Any) -> list[tuple[Any, Any]]:
    """Return box and category of each object: versions of ``datasets`` nest them either way."""
    if isinstance(objects, dict):
        return list(zip(objects.get("bbox") or (), objects.get("category") or ()))
    return [(each.get("bbox"), each.get("category")) for each in objects]


# -- the file


def _content(path: Path) -> dict[str, Any]:
    data = read_data(path, "COCO JSON file (instances_train2017.json or one like it)")
    try:
        content = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a COCO file: it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} breaks off or is damaged at line {error.lineno}: it is not complete JSON, "
            "download it again"
        ) from None
    except (ValueError, RecursionError):
        raise ValueError(
            f"{path} is damaged: it has numbers of thousands of digits or brackets as deep, "
            "download it again"
        ) from None
    lists = content if isinstance(content, dict) else {}
    parts = ("images", "annotations", "categories")
    missing = [part for part in parts if not isinstance(lists.get(part), list)]
    if missing:
        raise ValueError(
            f'{path} is not a COCO instances file: it has no list "{missing[0]}" '
            "(give instances_train2017.json or a file like it)"
        )
    return lists


def _name(kind: str, position: int, record: Any) -> str:
    has_id = isinstance(record, dict) and "id" in record
    return f"{kind} {record['id']}" if has_id else f"{kind} at place {position}"


def _categories(path: Path, records: list[Any]) -> dict[Any, str]:
    """Return names by id."""
    found = {}
    for position, record in enumerate(records):
        number = record.get("id") if isinstance(record, dict) else None
        if not _is_whole(number):
            raise ValueError(
                f"{path} has a category without a whole number id, at place {position}: correct it"
            )
        if number in found:
            raise ValueError(
                f"{path} has a category with an id that another has, at place {position}: "
                "give each its own"
            )
        found[number] = str(record.get("name", number))
    if not found:
        raise ValueError(f"{path} has no categories: give a file with instances, not captions")
    return found


def _images(records: list[Any], omitted: Omissions) -> dict[Any, dict[str, Any]]:
    """Return the usable image records by id."""
    found: dict[Any, dict[str, Any]] = {}
    for position, record in enumerate(records):
        try:
            if not isinstance(record, dict):
                raise _MalformedError("not an object")
            if not _is_id(record.get("id")):
                raise _MalformedError("without an id")
            if record["id"] in found:
                raise _MalformedError("with an id that another has")
            if not isinstance(record.get("file_name"), str) or not record["file_name"]:
                raise _MalformedError("without a file name")
            for side in ("width", "height"):
                value = record.get(side)
                if not _is_whole(value) or not 0 < value < _FAR:
                    raise _MalformedError(f"without a {side} in pixels")
        except _MalformedError as error:
            omitted.add(f"images {error}", _name("image", position, record))
            continue
        found[record["id"]] = record
    return found


def _is_whole(value: Any) -> bool:
    """Return whether JSON's ``value`` is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def _is_id(value: Any) -> bool:
    return _is_whole(value) or isinstance(value, str)


# -- images on disk


def _folder(path: Path, names: list[str]) -> Path:
    """Return the folder that holds the images called ``names``."""
    called = path.stem.removeprefix("instances_")
    here = path.parent
    folders = (here / called, here / "images", here, here.parent / called)
    for folder in folders:
        if any(_is_file(folder / name) for name in names[:_LOOKED_AT]):
            return folder
    if not names:  # said in full by the caller
        return here
    tried = ", ".join(dict.fromkeys(map(str, folders)))
    first = printable(names[0])
    raise ValueError(
        f"the images of {path}, such as {first}, are in none of {tried}: put them there"
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a record may hold what cannot be a name
        return False


class _Files:
    """Which files a folder holds, asked once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            with os.scandir(folder) as entries:
                self._sizes = {entry.name: _bytes_of(entry) for entry in entries}
        except OSError as error:
            raise ValueError(f"image folder {folder} cannot be read: {error.strerror}") from error

    def size(self, name: str) -> int | None:
        """Return a file's bytes; None where there is none."""
        found = self._sizes.get(name)
        return _bytes_of(self.folder / name) if found is None and os.sep in name else found


def _bytes_of(file: Path | os.DirEntry[str]) -> int | None:
    """Return a file's bytes; None for what is no file, such as a link that leads nowhere."""
    try:
        found = file.stat()
    except (OSError, ValueError):
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def _boxed(
    record: dict[str, Any], files: _Files, found: list[tuple[float, ...]] | None
) -> BoxedImage:
    size = record["width"], record["height"]
    bytes_ = files.size(record["file_name"])
    if bytes_ is None:
        raise _MalformedError("images without a file")
    if not bytes_:
        raise _MalformedError("images whose file is empty")
    picture = FilePicture(str(files.folder / record["file_name"]), size)
    return _with_boxes(picture, *size, found or [])


def _with_boxes(
    picture: Picture, width: Any, height: Any, found: list[tuple[float, ...]]
) -> BoxedImage:
    if not all(isinstance(side, int) and side > 0 for side in (width, height)):
        raise _MalformedError("images without a width and a height in pixels")
    if min(width, height) < SMALLEST:
        raise _MalformedError(f"images smaller than {SMALLEST} pixels")
    if not found:
        raise _MalformedError(_WITHOUT)
    table = np.array(found, np.float32)
    return BoxedImage(picture, height, width, table[:, :4], table[:, 4].astype(np.int64))


# -- boxes


def _box(
    annotation: Any, records: dict[Any, dict[str, Any]], numbers: dict[Any, int]
) -> tuple[dict[str, Any], tuple[float, ...] | None]:
    """Return the image's record and the box with its label; None for a crowd."""
    if not isinstance(annotation, dict):
        raise _MalformedError("that are no objects")
    image = annotation.get("image_id")
    record = records.get(image) if _is_id(image) else None
    if record is None:
        raise _MalformedError("of an unknown image")
    if annotation.get("iscrowd"):
        return record, None
    if annotation.get("bbox") is None:
        raise _MalformedError("without a box")
    left, top, width, height = _numbers(annotation["bbox"])
    category = annotation.get("category_id")
    if not _is_whole(category) or category not in numbers:
        raise _MalformedError("of an unknown category")
    corners = left, top, left + width, top + height
    inside = _inside(corners, record["width"], record["height"])
    return record, (*inside, numbers[category])


def _numbers(box: Any) -> tuple[float, float, float, float]:
    if (
        not isinstance(box, (list, tuple))
        or len(box) != 4
        or not all(_is_whole(x) or isinstance(x, float) for x in box)
        or not all(-_FAR < x < _FAR for x in box)
    ):
        raise _MalformedError("whose box is not four numbers")
    return box[0], box[1], box[2], box[3]


def _inside(corners: tuple[float, ...], width: Any, height: Any) -> tuple[float, ...]:
    """Return the box cut at the image's edges."""
    x1, y1, x2, y2 = corners
    if x2 <= x1 or y2 <= y1:
        raise _MalformedError("whose box has no extent")
    x1, y1, x2, y2 = max(x1, 0.0), max(y1, 0.0), min(x2, width or 0), min(y2, height or 0)
    if x2 <= x1 or y2 <= y1:
        raise _MalformedError("whose box lies outside its image")
    return x1, y1, x2, y2
