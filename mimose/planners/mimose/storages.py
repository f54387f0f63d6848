"""The sizes of the tensors that blocks keep, predicted like everything else from the batch's size.

Memory is reserved in segments, so how much is lost between tensors depends on their sizes, not on
their sum. The collector lists every storage that a block keeps; equal blocks keep equal ones, so
that a handful of distinct polynomials describes a whole model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mimose.planners.mimose.collector import Sample
from mimose.solvers.packing import ROUND, Segments, allocated_bytes, round_up, segments


@dataclass(frozen=True, slots=True)
class Packed:
    """How a step's tensors lie in segments.

    Attributes:
        segments: The segments; None where the tensors' sizes are unknown.
        waste_bytes: What they hold beyond the tensors.
    """

    segments: Segments | None = None
    waste_bytes: int = 0


class Packing:
    """Predicts what is lost to packing in a step of one size.

    Args:
        sizes: Distinct sizes of storages in bytes.
        kept: For each block, how many of each it keeps if its activations are kept.
        outputs: For each block, how many of each are its outputs, which stay in any case.
    """

    def __init__(
        self, sizes: Sequence[int], kept: NDArray[np.int64], outputs: NDArray[np.int64]
    ) -> None:
        self._sizes = sizes
        self._outputs = outputs
        self._kept = kept
        self._all = kept.sum(axis=0)
        self._places: dict[tuple[int, ...], list[int]] = {}

    def pack(
        self, recomputed: Sequence[int], let_go: Mapping[int, Sequence[int]] | None = None
    ) -> Packed:
        """Return how the blocks' tensors lie in segments at the peak of the step.

        Args:
            recomputed: The blocks that are recomputed. The last block's activations are there at
                the peak in any case: its backward comes first.
            let_go: For each kept block that lets values go, the bytes of each. One of a size that
                the block is not known to keep is taken to be there still.
        """
        counts = self._all
        if recomputed:
            dropped = list(recomputed)
            counts = counts - (self._kept[dropped] - self._outputs[dropped]).sum(axis=0)
            last = len(self._kept) - 1
            if last in dropped:
                counts = counts + (self._kept[last] - self._outputs[last])
        numbers = counts.tolist()
        for block, values in (let_go or {}).items():
            if block < len(self._kept) - 1:
                self._take_out(numbers, block, values)
        found = segments(self._sizes, numbers)
        return Packed(found, found.bytes - allocated_bytes(self._sizes, numbers))

    def _take_out(self, numbers: list[int], block: int, values: Sequence[int]) -> None:
        """Take a block's values out of ``numbers``, how many there are of each size."""
        key = (block, *values)
        found = self._places.get(key)
        if found is None:
            left = (self._kept[block] - self._outputs[block]).tolist()
            found = []
            for value in values:
                # Predicted apart from the storage that it is, so that both may be rounded.
                near = [
                    (abs(size - value), i)
                    for i, size in enumerate(self._sizes)
                    if left[i] > 0 and abs(size - value) <= 2 * ROUND
                ]
                if near:
                    place = min(near)[1]
                    left[place] -= 1
                    found.append(place)
            self._places[key] = found
        for place in found:
            numbers[place] -= 1


class Storages:
    """Fits the sizes of all storages that blocks keep.

    Args:
        samples: The samples; those whose blocks kept another number of storages than the last
            sample's are left out.
        design: A row of features a sample.
    """

    def __init__(self, samples: Sequence[Sample], design: NDArray[np.float64]) -> None:
        self._coefficients: NDArray[np.float64] | None = None
        shape = _shape(samples[-1])
        alike = [i for i, s in enumerate(samples) if _shape(s) == shape]
        if not any(map(any, shape)) or len(alike) < min(len(samples), design.shape[1]):
            return
        table = np.array([[n for b in samples[i].storages for n in (*b[0], *b[1])] for i in alike])
        distinct, where = np.unique(table, axis=1, return_inverse=True)
        where = where.ravel()
        count = distinct.shape[1]
        self._outputs = np.zeros((len(shape), count), np.int64)
        self._kept = np.zeros_like(self._outputs)
        position = 0
        for block, (saved, outputs) in enumerate(shape):
            end = position + saved + outputs
            np.add.at(self._kept[block], where[position:end], 1)
            np.add.at(self._outputs[block], where[position + saved : end], 1)
            position = end
        self._coefficients = np.linalg.lstsq(design[alike], distinct, rcond=None)[0]

    def predict(self, row: NDArray[np.float64]) -> Packing | None:
        """Return the packing for one row of features; None if no storages are known."""
        if self._coefficients is None:
            return None
        sizes = np.rint(row @ self._coefficients).astype(np.int64).tolist()
        return Packing([round_up(max(s, 0), ROUND) for s in sizes], self._kept, self._outputs)


def _shape(sample: Sample) -> tuple[tuple[int, int], ...]:
    return tuple((len(saved), len(outputs)) for saved, outputs in sample.storages)
