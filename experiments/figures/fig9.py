"""Fig 9: what recomputing the first or the last encoders saves.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: peak memory of BERT-base on SWAG (16 samples of 4
choices) by sequence length, with no, the first, the last, the first two or the last two encoders
recomputed. Recomputing the last saves nothing: its activations are back when backward begins.

The figure can be read in two ways. With its MB as 10**6 bytes it is near today's PyTorch, too high
at short lengths and too low at long ones. With MB as 2**20 bytes, as the paper's other units, its
constant and linear parts are those of Fig 3, and its quadratic part is one tensor of attention
scores a block higher: what PyTorch kept before 1.11 (:mod:`.softmax`). Both are checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mimose.devices.base import Device
from mimose_bench.experiments.figures.result import (
    FACTORS,
    Criterion,
    Reproduction,
    Row,
    Unit,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.softmax import keep_softmax_input
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """A way to read the figure.

    Attributes:
        name: What is assumed.
        unit: What its MB are.
        workload: What was trained.
        tolerance: Largest relative error on any curve.
    """

    name: str
    unit: Unit
    workload: Workload
    tolerance: float


OLD_SOFTMAX = Reading(
    name="before PyTorch 1.11, MB of 2^20",
    unit="MiB",
    workload=replace(MC_BERT, new_model=lambda: keep_softmax_input(MC_BERT.new_model())),
    tolerance=0.02,
)
NEW_SOFTMAX = Reading(
    name="PyTorch 1.11 on, MB of 10^6", unit="MB", workload=MC_BERT, tolerance=0.045
)
READINGS = (OLD_SOFTMAX, NEW_SOFTMAX)

ORDER = ("first two", "first", "last two", "none", "last")
"""The curves from least to most memory, as the paper has them at every length."""

ORDER_LENGTHS = (40, 60, 83, 100, 123, 141)
"""Lengths at which the order is looked at, whatever the stride."""

READ_OFF_BYTES = 0.02 * FACTORS["GB"]
"""How exactly the figure was read: curves are in another order if they are by more than that."""

QUICK_STRIDE = 100

_NOTES = (
    f"Order: {' <= '.join(ORDER)}, ties within 0.02 GB allowed, and first two < first < none, "
    f"at lengths {', '.join(map(str, ORDER_LENGTHS))}.",
    "The paper's last and last two lie higher than here by two hidden states (53 MiB at length "
    "141): reentrant checkpointing holds a recomputed block's output and its gradient during the "
    "block's backward; the one used here does not. So here last ties with none, last two with "
    "first.",
)


def lengths_of(stride: int = 1) -> list[int]:
    """Return each ``stride``-th of the figure's lengths, and those of :data:`ORDER_LENGTHS`."""
    lengths = sorted({length for points in layer_selection().values() for length, _ in points})
    return sorted({*lengths[::stride], *ORDER_LENGTHS})


def measure(
    device: Device, workload: Workload, plan: str, lengths: Iterable[int]
) -> dict[int, int]:
    """Return the peak allocated bytes of a step under ``plan`` at each of ``lengths``."""
    lengths = list(lengths)
    peaks: dict[int, int] = {}
    with training(device, workload, "fixed", plan=plan) as session:
        session.settle(min(lengths))
        for length in lengths:
            peak = session.step(length).peak_allocated_bytes
            assert peak is not None
            peaks[length] = peak
    return peaks


def judge(
    measured: Mapping[str, Mapping[str, Mapping[int, int]]], device_label: str
) -> Reproduction:
    """Compare peaks with the paper's.

    Args:
        measured: For each reading's name the curves, each with its peaks in bytes by length.
        device_label: Where they come from.
    """
    rows: list[Row] = []
    criteria: list[Criterion] = []
    for reading in READINGS:
        if reading.name not in measured:
            continue
        curves = {
            curve: _rows(reading, curve, peaks) for curve, peaks in measured[reading.name].items()
        }
        criteria += (
            Criterion(
                name=f"{reading.name}: {curve}, maximum error",
                value=max_error(found),
                tolerance=reading.tolerance,
            )
            for curve, found in curves.items()
        )
        every = [row for found in curves.values() for row in found]
        criteria.append(Criterion(name=f"{reading.name}: mean error", value=mean_error(every)))
        wrong = [n for n in ORDER_LENGTHS if not in_order(measured[reading.name], n)]
        criteria.append(
            Criterion(
                name=f"{reading.name}: lengths at which the order is another",
                value=len(wrong),
                tolerance=0,
                is_count=True,
            )
        )
        rows += every
    return Reproduction(
        name="fig9",
        title="peak memory by which encoders are recomputed",
        source="Fig 9",
        device_label=device_label,
        rows=tuple(rows),
        criteria=tuple(criteria),
        notes=_NOTES,
    )


def in_order(
    peaks: Mapping[str, Mapping[int, int]],
    length: int,
    order: Sequence[str] = ORDER,
    slack_bytes: float = READ_OFF_BYTES,
) -> bool:
    """Return whether no two of the curves are in another order than the paper's at ``length``.

    Args:
        peaks: Bytes by length, for each curve.
        length: Where to look.
        order: The curves from least to most memory.
        slack_bytes: By how much a curve may lie on the wrong side of the next one.
    """
    values = [peaks[curve][length] for curve in order]
    if any(a > b + slack_bytes for a, b in pairwise(values)):
        return False
    # The claim itself has no slack to hide in: the first saves, the first two save more.
    by_curve = dict(zip(order, values, strict=True))
    return by_curve["first two"] < by_curve["first"] < by_curve["none"]


def check(open_device: OpenDevice, *, stride: int = 1, say: Say = silent) -> Reproduction:
    """Measure every ``stride``-th length of the figure under each plan and compare.

    Each curve has an allocator of its own, as each was a run of its own.
    """
    lengths = lengths_of(stride)
    measured: dict[str, dict[str, dict[int, int]]] = {}
    label = ""
    for reading in READINGS:
        say(f"fig9: {reading.name}: {len(PLANS)} plans, {len(lengths)} lengths")
        measured[reading.name] = {}
        for curve, plan in PLANS.items():
            with open_device() as device:
                label = device.label
                peaks = measure(device, reading.workload, plan, lengths)
            measured[reading.name][curve] = peaks
    return judge(measured, label)


def _rows(reading: Reading, curve: str, peaks: Mapping[int, int]) -> list[Row]:
    factor = FACTORS[reading.unit]
    return [
        Row(
            series=curve,
            what=f"length {length}",
            unit=reading.unit,
            expected=megabytes * factor,
            obtained=peaks[length],
            length=length,
            note=reading.name,
        )
        for length, megabytes in layer_selection()[curve]
        if length in peaks
    ]
