"""Fig 9: what recomputing the first or the last encoders saves.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: peak memory of BERT-base on SWAG (16 samples of 4
choices) by sequence length, with no, the first, the last, the first two or the last two encoders
recomputed. Recomputing the last saves nothing: its activations are back when backward begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from mimose.devices.base import Device
from mimose_bench.experiments.figures.result import (
    Criterion,
    Reproduction,
    Row,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.workloads import MC_BERT, Workload
from mimose_bench.experiments.paper import layer_selection

PLANS: Mapping[str, str] = {
    "none": "keep 0-11",
    "first": "recompute 0 | keep 1-11",
    "last": "keep 0-10 | recompute 11",
    "first two": "recompute each 0-1 | keep 2-11",
    "last two": "keep 0-9 | recompute each 10-11",
}
"""A plan a curve, over BERT-base's twelve encoders."""

TOLERANCE = 0.045
"""Largest relative error on any curve. The figure's MB read as 10^6 bytes."""

ORDER = ("first two", "first", "last two", "none", "last")
"""The curves from least to most memory, as the paper has them at every length."""

ORDER_LENGTHS = (40, 60, 83, 100, 123, 141)
"""Lengths at which the order is looked at, whatever the stride."""

QUICK_STRIDE = 100


def lengths_of(stride: int = 1) -> list[int]:
    """Return each ``stride``-th of the figure's lengths, and those of :data:`ORDER_LENGTHS`."""
    lengths = sorted({p.input_size for points in layer_selection().values() for p in points})
    return sorted({*lengths[::stride], *ORDER_LENGTHS})


def measure(
    device: Device,
    lengths: Iterable[int],
    *,
    workload: Workload = MC_BERT,
    plans: Mapping[str, str] = PLANS,
) -> dict[str, dict[int, int]]:
    """Return for each of ``plans`` the peak allocated bytes of a step at each of ``lengths``."""
    lengths = list(lengths)
    measured: dict[str, dict[int, int]] = {}
    with training(device, workload, "baseline") as session:
        session.settle(min(lengths))
        for curve, plan in plans.items():
            session.use("fixed", plan=plan)
            measured[curve] = {}
            for length in lengths:
                peak = session.step(length).peak_allocated_bytes
                assert peak is not None
                measured[curve][length] = peak
    return measured


def judge(measured: Mapping[str, Mapping[int, int]], device_label: str) -> Reproduction:
    """Compare the peaks of each curve, in bytes by length, with the paper's."""
    paper = layer_selection()
    curves = {
        curve: tuple(
            Row(
                series=curve,
                what=f"length {point.input_size}",
                unit="MB",
                expected=point.peak_bytes,
                obtained=peaks[point.input_size],
                length=point.input_size,
            )
            for point in paper[curve]
            if point.input_size in peaks
        )
        for curve, peaks in measured.items()
    }
    criteria = [
        Criterion(name=f"{curve}: maximum error", value=max_error(rows), tolerance=TOLERANCE)
        for curve, rows in curves.items()
    ]
    rows = tuple(row for each in curves.values() for row in each)
    criteria.append(Criterion(name="all curves: mean error", value=mean_error(rows)))
    wrong = [length for length in ORDER_LENGTHS if not in_order(measured, length)]
    criteria.append(
        Criterion(
            name="lengths at which the curves are in another order",
            value=len(wrong),
            tolerance=0,
            is_count=True,
        )
    )
    return Reproduction(
        name="fig9",
        title="peak memory by which encoders are recomputed",
        source="Fig 9",
        device_label=device_label,
        rows=rows,
        criteria=tuple(criteria),
        notes=(
            "Order looked at: " + " < ".join(ORDER[:-1]) + f" <= {ORDER[-1]}, "
            f"at lengths {', '.join(map(str, ORDER_LENGTHS))}.",
        ),
    )


def in_order(
    measured: Mapping[str, Mapping[int, int]], length: int, order: Sequence[str] = ORDER
) -> bool:
    """Return whether the curves are in the paper's order at ``length``.

    The last encoder's saving is nothing: its curve may lie on that of none, not below.
    """
    *lower, last = (measured[curve][length] for curve in order)
    return last >= lower[-1] and all(a < b for a, b in pairwise(lower))


def check(open_device: OpenDevice, *, stride: int = 1, say: Say = silent) -> Reproduction:
    """Measure every ``stride``-th length of the figure under each plan and compare."""
    lengths = lengths_of(stride)
    say(f"fig9: {len(PLANS)} plans, {len(lengths)} lengths")
    with open_device() as device:
        return judge(measure(device, lengths), device.label)
