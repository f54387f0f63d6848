"""Lengths that stand for a data set's batches."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist

from mimose_bench.experiments.data.lengths import BatchLengths, LengthBin
from mimose_bench.experiments.figures.workloads import Workload
from mimose_bench.experiments.paper import length_histogram


def bins_of(workload: Workload, stride: int = 1) -> tuple[LengthBin, ...]:
    """Return the padded lengths of the data set's batches by their shares (Fig 3).

    Args:
        workload: Whose batches.
        stride: How many neighbouring bins to merge, for quick runs.
    """
    lengths = BatchLengths(
        histogram=length_histogram(workload.dataset),
        body=NormalDist(),  # of the batch's other examples, which padded lengths do not depend on
        longest=workload.longest,
        cut=workload.is_cut,
    )
    return merge(lengths.bins(), stride)


def merge(bins: Sequence[LengthBin], stride: int) -> tuple[LengthBin, ...]:
    """Return ``bins``, each ``stride`` neighbours as one at their mean length."""
    merged = []
    for first in range(0, len(bins), stride):
        group = bins[first : first + stride]
        share = sum(b.share for b in group)
        merged.append(LengthBin(round(sum(b.length * b.share for b in group) / share), share))
    return tuple(merged)
