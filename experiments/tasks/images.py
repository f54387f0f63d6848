"""Tasks over images: their data, sizes as people write them, weights from the hub or a folder."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np

from mimose.records import Size
from mimose_bench.experiments.data.hub import from_hub_or_cache
from mimose_bench.experiments.data.images import Painters
from mimose_bench.experiments.data.sources import DataSource, open_source
from mimose_bench.experiments.tasks.base import SizeBin, TaskOptions
from mimose_bench.experiments.tasks.common import TaskBase

if TYPE_CHECKING:
    from torch import nn

E = TypeVar("E")
MOST_BATCHES = 2000
"""Batches that a distribution of sizes is made from, where an epoch has more."""
_BINS = 20


class ImageTask(TaskBase[E], Generic[E]):
    """A task whose batches are images of one height and width.

    Attributes:
        pretrained: The hub's name of the weights and of the image processor.
        attends: Whether the model has attention.
    """

    unit = "pixels"
    pretrained: ClassVar[str]
    attends: ClassVar[bool] = False
    data: Any

    def __init__(self, options: TaskOptions) -> None:
        """Open the task's data.

        Raises:
            ValueError: If an option does not fit the task or its data cannot be had.
        """
        if options.vocab is not None:
            raise ValueError(f"task {self.name} reads no text: drop --vocab")
        if options.attention != "eager" and not self.attends:
            raise ValueError(f"task {self.name} has no attention: drop --attention")
        if options.weights == "pretrained" and options.scale != "full":
            raise ValueError(
                f"--weights pretrained needs --scale full: {self.pretrained} has no "
                f"{options.scale} size"
            )
        self._painters = Painters()
        super().__init__(options)

    # -- what an image task must say

    @abstractmethod
    def _open_hub(self, reason: str, *, download: bool) -> Any:
        """Open the hub's data set; raises ``HubUnavailableError`` where that is not to be had."""

    @abstractmethod
    def _open_path(self, path: Path, reason: str) -> Any:
        """Open what lies at a local path."""

    @abstractmethod
    def _synthetic(self, reason: str, num_classes: int | None = None) -> Any:
        """Return generated data, by default with the scale's number of classes."""

    # -- what follows from it

    def _open(self) -> DataSource:
        self.data = open_source(
            self.options.data,
            # 19 GB and more are not fetched unasked.
            hub=lambda reason: self._open_hub(reason, download=self.options.data == "hub"),
            path=lambda path, reason: self._open_path(Path(path), reason),
            synthetic=self._synthetic,
        )
        source: DataSource = self.data.source
        return source

    @property
    def num_examples(self) -> int:
        """Number of images in an epoch."""
        return int(self.data.num_examples)

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings as plain data."""
        found = super().settings()
        return {**found, "num_classes": self.data.num_classes, "num_examples": self.num_examples}

    # -- weights

    def _load(self, loader: Any, **options: Any) -> Any:
        """Return ``loader``'s model with the weights that the options name."""
        weights = self.options.weights
        if weights == "pretrained":
            try:
                return from_hub_or_cache(loader, self.pretrained, "the model", **options)
            except ValueError as error:
                raise ValueError(f"{error}: use --weights random or --weights PATH") from None
        if not (Path(weights) / "config.json").is_file():
            raise ValueError(
                f"--weights is random, pretrained or a folder with a saved model, and {weights} "
                "holds no config.json"
            )
        try:
            model: nn.Module = loader.from_pretrained(weights, local_files_only=True, **options)
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            raise ValueError(f"no model could be loaded from {weights}: {first}") from error
        return model

    def _check_shape(self, config: Any, wanted: Any, names: Iterable[str]) -> None:
        """Raise ValueError if a loaded model is not shaped as the scale's."""
        for name in names:
            found, expected = (_plain(getattr(each, name, None)) for each in (config, wanted))
            if found != expected:
                raise ValueError(
                    f"the model in {self.options.weights} has {name} {found} and --scale "
                    f"{self.scale} of {self.name} has {expected}: choose the scale it was saved at"
                )


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, (list, tuple)) else value


def parse_sides(text: str, name: str, example: str, *, square: bool) -> tuple[int, int]:
    """Return height and width of ``480x640``.

    Args:
        text: What a user wrote.
        name: The task's name.
        example: A size of the task's as it should be written.
        square: Whether one number stands for the side of a square.

    Raises:
        ValueError: If ``text`` is no such size.
    """
    found = re.fullmatch(r"(\d+)(?:\s*[xX*]\s*(\d+))?", text.strip())
    if found is None or not int(found[1]) or not int(found[2] or square):
        side = ", or the side of a square" if square else ""
        raise ValueError(
            f"a size of {name} is a height and a width in pixels{side}, for example {example}, "
            f"not {text!r}"
        )
    return int(found[1]), int(found[2] or found[1])


def sides_of(area: int, divisor: int, bounds: tuple[int, int]) -> tuple[int, int] | None:
    """Return height and width, multiples of ``divisor``, whose product is ``area``.

    Args:
        area: Pixels.
        divisor: What both sides are multiples of.
        bounds: Greatest shorter and greatest longer side.

    Returns:
        Of several such pairs the one closest to 3:4, no taller than wide; None if there is none.
    """
    cells, rest = divmod(area, divisor**2)
    if rest or cells < 1:
        return None
    pairs = [
        (short * divisor, cells // short * divisor)
        for short in range(1, math.isqrt(cells) + 1)
        if cells % short == 0
    ]
    fitting = [pair for pair in pairs if pair[0] <= bounds[0] and pair[1] <= bounds[1]]
    return min(fitting, key=lambda pair: abs(math.log(pair[1] / pair[0] * 3 / 4)), default=None)


def bins_of_sizes(sizes: Iterator[Size], rows: int) -> tuple[SizeBin, ...]:
    """Return sizes in some twenty bins of equal width by area, the smallest first.

    Each bin's size is one that a batch has, that nearest to the bin's mean; batches of fewer rows
    count as full ones.
    """
    found = sorted((rows, *size[1:]) for size in sizes)
    areas = np.array([size[1] for size in found], np.int64)
    width = max((int(areas.max()) - int(areas.min())) // _BINS, 1)
    number = (areas - areas.min()) // width
    bins = []
    for each in np.unique(number):
        members = np.flatnonzero(number == each)
        nearest = members[np.argmin(np.abs(areas[members] - areas[members].mean()))]
        bins.append(SizeBin(found[nearest], len(members) / len(found)))
    return tuple(bins)
