"""How images are cropped, resized and mirrored at random, drawn before anything is decoded."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from mimose_bench.experiments.data.images import View


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiScale:
    """The detectors' augmentation, MMDetection's ``AutoAugment`` policy of the paper's runs.

    Half of the images are mirrored. Half are resized, shorter side to one of ``shorts`` and longer
    to ``longest`` at most; the others first to one of ``crop_shorts``, then cut to a part whose
    sides lie in ``crop``, then resized likewise. (Source: mimose-mmdet,
    ``configs/_base_/datasets``; here both steps are done at once, on the raw image.)
    """

    shorts: tuple[int, ...] = tuple(range(480, 801, 32))
    longest: int = 1333
    crop_shorts: tuple[int, ...] = (400, 500, 600)
    crop: tuple[int, int] = (384, 600)

    def draw(self, rng: np.random.Generator, height: int, width: int) -> View:
        """Return a view of an image of this height and width."""
        flipped = bool(rng.random() < 0.5)
        left = top = 0.0
        right, bottom = float(width), float(height)
        if rng.random() < 0.5:
            first_height, first_width = self._resized(rng, self.crop_shorts, height, width)
            top, bottom = self._cut(rng, first_height)
            left, right = self._cut(rng, first_width)
            new_height, new_width = self._resized(
                rng, self.shorts, round(bottom - top), round(right - left)
            )
            down, across = height / first_height, width / first_width
            left, right = left * across, min(right * across, width)
            top, bottom = top * down, min(bottom * down, height)
        else:
            new_height, new_width = self._resized(rng, self.shorts, height, width)
        return View((left, top, right, bottom), new_height, new_width, flipped)

    def greatest(self, divisor: int) -> tuple[int, int]:
        """Return bounds of a batch's height and width, padded to multiples of ``divisor``.

        Of a group of wide images a cut may be tall, and so the sides are bounded one by one: the
        longer by ``longest``, the other by that of the tallest cut.
        """
        low, high = self.crop
        cut = min(self.longest, math.ceil(max(self.shorts) * high / low))
        return up(max(cut, max(self.shorts)), divisor), up(self.longest, divisor)

    def _resized(
        self, rng: np.random.Generator, shorts: tuple[int, ...], height: int, width: int
    ) -> tuple[int, int]:
        short = shorts[int(rng.integers(len(shorts)))]
        scale = min(short / min(height, width), self.longest / max(height, width))
        return max(int(height * scale + 0.5), 1), max(int(width * scale + 0.5), 1)

    def _cut(self, rng: np.random.Generator, extent: int) -> tuple[float, float]:
        low, high = (min(extent, each) for each in self.crop)
        kept = int(rng.integers(low, high + 1))
        first = int(rng.integers(extent - kept + 1))
        return float(first), float(first + kept)


def up(extent: int, divisor: int) -> int:
    """Return the least multiple of ``divisor`` that is not less than ``extent``."""
    return -(-extent // divisor) * divisor


def resized_crop(rng: np.random.Generator, height: int, width: int, side: int) -> View:
    """Return a random part of an image, seen as a square of ``side`` pixels, half of them mirrored.

    The usual augmentation on ImageNet (Szegedy et al., CVPR 2015): 8 to 100 % of the area, with
    sides in a ratio from 3:4 to 4:3; where ten draws do not fit, the middle of the image.
    """
    flipped = bool(rng.random() < 0.5)
    for _ in range(10):
        area = height * width * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < across <= width and 0 < down <= height:
            left, top = int(rng.integers(width - across + 1)), int(rng.integers(height - down + 1))
            return View((left, top, left + across, top + down), side, side, flipped)
    across = min(width, round(height * 4 / 3))
    down = min(height, round(width * 4 / 3))
    left, top = (width - across) // 2, (height - down) // 2
    return View((left, top, left + across, top + down), side, side, flipped)
