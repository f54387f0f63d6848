"""Fig 3: memory of unchecked training by padded length.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: peak allocated memory of a training step under plain
PyTorch, by the batch's padded length, for SWAG (RoBERTa: its points are those of MC-Roberta in
Fig 11), SQuAD and GLUE-QQP (BERT) and UN_PC (T5, by the encoder's length; labels are 512 long).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mimose.devices.base import Device
from mimose_bench.experiments.figures.result import (
    FACTORS,
    Criterion,
    LeftOut,
    Reproduction,
    Row,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.workloads import (
    MC_ROBERTA,
    QA_BERT,
    TC_BERT,
    TR_T5,
    Workload,
)
from mimose_bench.experiments.paper import MemoryPoint, unchecked_memory

GB = FACTORS["GB"]

WORKLOADS: tuple[Workload, ...] = (MC_ROBERTA, QA_BERT, TC_BERT, TR_T5)

MEAN_TOLERANCE = 0.02
"""Mean relative error a curve. Reading the figure costs up to 0.02 GB, 0.2 to 1 % of a point."""

QUADRATICS: Mapping[str, tuple[float, float, float]] = {
    "SWAG": (7.862e-5, 0.03704, 1.921),
    "SQuAD": (1.458e-5, 0.00692, 1.674),
    "GLUE-QQP": (3.890e-5, 0.01875, 1.660),
    "UN_PC": (1.047e-5, 0.01067, 10.995),
}
"""Least squares through each curve, GB = a x^2 + b x + c, 0.043 GB off its points at most."""

OUTLIER_GB = 0.1
"""A point farther from its curve's quadratic than this was measured while blocks were recomputed:
it is one of the paper's sheltered iterations, not of unchecked training."""

QUICK_STRIDE = 24


def split(dataset: str) -> tuple[tuple[MemoryPoint, ...], tuple[MemoryPoint, ...]]:
    """Return a curve's points of unchecked training, and those of sheltered iterations."""
    a, b, c = QUADRATICS[dataset]
    inside: list[MemoryPoint] = []
    outside: list[MemoryPoint] = []
    for point in unchecked_memory(dataset):
        x = point.input_size
        distance = abs(point.peak_bytes / GB - (a * x * x + b * x + c))
        (outside if distance > OUTLIER_GB else inside).append(point)
    return tuple(inside), tuple(outside)


def lengths_of(dataset: str, stride: int = 1) -> list[int]:
    """Return each ``stride``-th of the lengths that a curve has points at, in order."""
    return sorted({point.input_size for point in split(dataset)[0]})[::stride]


def measure(device: Device, workload: Workload, lengths: Iterable[int]) -> dict[int, int]:
    """Return the peak allocated bytes of a training step at each of ``lengths``."""
    lengths = list(lengths)
    peaks: dict[int, int] = {}
    with training(device, workload, "baseline") as session:
        session.settle(min(lengths))
        for length in lengths:
            peak = session.step(length).peak_allocated_bytes
            assert peak is not None
            peaks[length] = peak
    return peaks


def judge(measured: Mapping[str, Mapping[int, int]], device_label: str) -> Reproduction:
    """Compare peaks with the paper's points.

    Args:
        measured: For each data set, the peak in bytes at each padded length.
        device_label: Where they come from.
    """
    rows: list[Row] = []
    criteria: list[Criterion] = []
    left_out: list[LeftOut] = []
    for dataset, peaks in measured.items():
        inside, outside = split(dataset)
        curve = [
            Row(
                series=dataset,
                what=f"length {point.input_size}",
                unit="GB",
                expected=point.peak_bytes,
                obtained=peaks[point.input_size],
                length=point.input_size,
            )
            for point in inside
            if point.input_size in peaks
        ]
        rows += curve
        criteria += _criteria(dataset, curve)
        left_out += (
            LeftOut(
                series=dataset,
                length=point.input_size,
                expected=point.peak_bytes,
                reason="a sheltered iteration, over 0.1 GB off the curve's quadratic",
            )
            for point in outside
        )
    return Reproduction(
        name="fig3",
        title="memory of unchecked training by padded length",
        source="Fig 3",
        device_label=device_label,
        rows=tuple(rows),
        criteria=tuple(criteria),
        left_out=tuple(left_out),
    )


def check(open_device: OpenDevice, *, stride: int = 1, say: Say = silent) -> Reproduction:
    """Measure every ``stride``-th length of the figure and compare."""
    measured: dict[str, dict[int, int]] = {}
    label = ""
    for workload in WORKLOADS:
        lengths = lengths_of(workload.dataset, stride)
        say(f"fig3: {workload.name}, {len(lengths)} lengths")
        with open_device() as device:
            label = device.label
            measured[workload.dataset] = measure(device, workload, lengths)
    return judge(measured, label)


def _criteria(dataset: str, curve: Sequence[Row]) -> tuple[Criterion, ...]:
    return (
        Criterion(
            name=f"{dataset}: mean relative error of peak memory",
            value=mean_error(curve),
            tolerance=MEAN_TOLERANCE,
        ),
        Criterion(name=f"{dataset}: maximum relative error of peak memory", value=max_error(curve)),
    )
