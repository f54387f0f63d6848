"""How the authors' released code decides, where it differs from the printed algorithm.

``buaa-hipo/mimose-transformers``, ``src/transformers/manager.py``. A quadratic of its own, fitted
to the whole model's memory without recomputation, gives the excess; the per-block quadratics only
credit savings; no peak model judges the plan.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mimose.plan import Plan
from mimose.records import StepRecord
from mimose.solvers import greedy


class WholeModel:
    """The whole model's memory by length, a polynomial of degree two at most.

    A sample is the allocated peak of a sheltered step, less what was allocated before its forward,
    plus the activations that recomputation removed. The first step's counts only while it is the
    only one. The batch is taken as fixed, as theirs is.
    """

    def __init__(self) -> None:
        self.samples: list[tuple[int, int]] = []
        self._coefficients: list[float] | None = None

    def add(self, record: StepRecord) -> None:
        """Take a sheltered step as a sample."""
        if record.collected is None or record.peak_allocated_bytes is None:
            return
        recomputed = record.plan.recomputed
        removed = sum(b.activation_bytes for b in record.collected.blocks if b.block in recomputed)
        above = record.peak_allocated_bytes - record.situation.resident_bytes
        self.samples.append((record.size[1], above + removed))
        self._coefficients = None

    def predict(self, length: int) -> int:
        """Return the bytes above the resident ones that a step takes without recomputation."""
        if self._coefficients is None:
            samples = self.samples[1:] or self.samples
            lengths = np.array([x for x, _ in samples], np.float64)
            degree = min(len(np.unique(lengths)) - 1, 2)
            values = np.array([y for _, y in samples], np.float64)
            self._coefficients = np.polyfit(lengths, values, degree).tolist()
        total = 0.0
        for coefficient in self._coefficients:
            total = total * length + coefficient
        return round(total)


def schedule(
    whole_model: int, activation: Sequence[int], allowed_bytes: int, candidates: Sequence[int]
) -> tuple[Plan, int]:
    """Return their plan and the peak above the resident bytes that their arithmetic predicts.

    Args:
        whole_model: Predicted bytes of the step without recomputation, above the resident ones.
        activation: Predicted activation bytes of each block.
        allowed_bytes: Budget less margin and resident bytes.
        candidates: Blocks that may be recomputed.
    """
    chosen = greedy.authors(activation, whole_model - allowed_bytes, candidates)
    plan = Plan.recompute_each(len(activation), chosen)
    return plan, whole_model - sum(activation[b] for b in chosen)
