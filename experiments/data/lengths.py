"""Lengths of synthetic text batches, drawn to follow the paper's Fig 3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from mimose_bench.experiments.paper import Histogram


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
