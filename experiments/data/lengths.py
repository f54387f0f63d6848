"""Lengths of synthetic text batches, drawn to follow the paper's Fig 3."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from mimose_bench.experiments.paper import Histogram, length_histogram


class LengthBin(NamedTuple):
    """One of the lengths that stand for an epoch's batches.

    Attributes:
        length: Padded length in tokens: the mean of those it stands for, rounded.
        share: Share of the batches; all bins' shares sum to one.
    """

    length: int
    share: float


def bins_of(lengths: Iterable[int], width: float) -> tuple[LengthBin, ...]:
    """Return padded batch lengths in bins of ``width`` tokens, the shortest first.

    Args:
        lengths: Padded length of each batch; at least one.
        width: Width of a bin in tokens.
    """
    found = np.fromiter(lengths, np.int64)
    number = ((found - found.min()) // width).astype(np.int64)
    members = [found[number == each] for each in np.unique(number)]
    return _merged((round(float(m.mean())), m.size / found.size) for m in members)


def _merged(bins: Iterable[tuple[int, float]]) -> tuple[LengthBin, ...]:
    shares: dict[int, float] = {}
    for length, share in bins:
        shares[length] = shares.get(length, 0.0) + share
    return tuple(LengthBin(length, share) for length, share in sorted(shares.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLengths:
    """How long the examples of a batch are.

    The longest follows a histogram of padded batch lengths, whatever the batch size, so that
    every scale of a task sees the paper's range; the others follow the body of the distribution.

    Attributes:
        histogram: Share of batches by padded length.
        body: Normal distribution of the logarithm of an example's length.
        longest: Greatest length of an example, before ``stretch``.
        cut: Whether longer examples are cut to ``longest``: the last bin is that length alone.
        stretch: Factor on all lengths, below one for small models.
        floor: Least length of an example, whatever ``stretch``.
    """

    histogram: Histogram
    body: NormalDist
    longest: int
    cut: bool
    stretch: float = 1.0
    floor: int = 1

    def draw(self, rng: np.random.Generator, batch_size: int) -> np.ndarray:
        """Return one batch's lengths, the longest at a random place."""
        edges = self.histogram.edges
        index = int(rng.choice(len(self.histogram.shares), p=self.histogram.shares))
        longest = float(rng.uniform(edges[index], edges[index + 1]))
        if self.cut and index == len(self.histogram.shares) - 1:
            longest = self.longest
        return self.draw_below(rng, batch_size, self._stretched(longest))

    def bins(self) -> tuple[LengthBin, ...]:
        """Return what :meth:`draw` draws the longest from, the mean length of each bin."""
        edges, last = self.histogram.edges, len(self.histogram.shares) - 1
        means = [(low + min(high, self.longest)) / 2 for low, high in pairwise(edges)]
        if self.cut:
            means[last] = self.longest
        return _merged(
            (self._stretched(mean), share)
            for mean, share in zip(means, self.histogram.shares, strict=True)
            if share > 0
        )

    @property
    def greatest(self) -> int:
        """Greatest length that :meth:`draw` can return."""
        shares, edges = self.histogram.shares, self.histogram.edges
        return self._stretched(max(high for high, share in zip(edges[1:], shares) if share > 0))

    def draw_below(self, rng: np.random.Generator, batch_size: int, longest: int) -> np.ndarray:
        """Return lengths of which one is ``longest`` and none is longer."""
        shift = math.log(self.stretch)
        least = min(self.floor, longest)
        low, high = (self.body.cdf(math.log(x) - shift) for x in (least, longest + 0.5))
        ranks = rng.uniform(max(low, 1e-9), min(max(high, 2e-9), 1 - 1e-9), batch_size)
        others = (math.exp(self.body.inv_cdf(rank) + shift) for rank in ranks)
        lengths = np.array([min(max(round(x), least), longest) for x in others], dtype=np.int64)
        lengths[rng.integers(batch_size)] = longest
        return lengths

    def _stretched(self, length: float) -> int:
        return max(round(min(length, self.longest) * self.stretch), self.floor)


class _Shown(NamedTuple):
    """What Fig 3 shows of a data set besides its histogram, and the body fitted to that."""

    longest: int
    cut: bool
    body: NormalDist
    batches: int  # in an epoch


# Each body is a lognormal fitted so that the longest of the paper's number of examples (SWAG 16,
# each the longest of four choices; SQuAD 12; GLUE-QQP 32; UN_PC 8) has the histogram's mean and
# quantiles: so it is sure where it makes the longest, and less so below.
_SHOWN = {
    "SWAG": _Shown(145, False, NormalDist(3.412, 0.339), 4597),
    "SQuAD": _Shown(512, True, NormalDist(5.032, 0.397), 7375),
    "GLUE-QQP": _Shown(332, False, NormalDist(3.279, 0.455), 11371),
    "UN_PC": _Shown(460, False, NormalDist(3.391, 0.578), 500),
}


def paper_batches(dataset: str, max_length: int, floor: int) -> BatchLengths:
    """Return the lengths of a data set's batches as the paper's Fig 3 shows them.

    Args:
        dataset: The data set as Fig 3 calls it.
        max_length: Tokens that the model takes; where these are fewer than the figure's longest,
            all lengths are shortened in proportion.
        floor: Least length of an example.
    """
    shown = _SHOWN[dataset]
    return BatchLengths(
        histogram=_to_its_end(length_histogram(dataset), shown.batches),
        body=shown.body,
        longest=shown.longest,
        cut=shown.cut,
        stretch=min(1.0, max_length / shown.longest),
        floor=floor,
    )


def _to_its_end(histogram: Histogram, batches: int) -> Histogram:
    """Return a histogram whose last bin holds a batch at least.

    A histogram's bins end at the longest, so that the last is not empty; in the figure its bar is
    too low to be seen where thousands of batches share the axis.
    """
    *shares, last = histogram.shares
    if last > 0:
        return histogram
    kept = 1 - 1 / batches
    return replace(histogram, shares=(*(share * kept for share in shares), 1 / batches))
