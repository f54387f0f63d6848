"""The stars of Fig 10: reserved memory with every block recomputed, and with none.

IPDPS 2023, doi 10.1109/IPDPS54959.2023.00025: the two ends of each panel's memory axis. Measured
here over steps at the longest batch, where both have their peak, each in an allocator of its own:
what one plan leaves cached must not count for the other.
"""

from __future__ import annotations

from collections.abc import Mapping

from mimose.devices.base import Device
from mimose_bench.experiments.figures.result import (
    Criterion,
    Reproduction,
    Row,
    max_error,
    mean_error,
)
from mimose_bench.experiments.figures.session import OpenDevice, Say, silent, training
from mimose_bench.experiments.figures.workloads import MC_ROBERTA, QA_BERT, TC_BERT, Workload
from mimose_bench.experiments.paper import memory_bounds

WORKLOADS: tuple[Workload, ...] = (MC_ROBERTA, QA_BERT, TC_BERT)

TOLERANCE = 0.05
"""Relative error of each star."""

BOUNDS: Mapping[str, str] = {"every block recomputed": "full", "none recomputed": "baseline"}
"""The lower and the upper star, and the planner that makes each."""

STEPS = 3
"""The second finds the first's gradients and optimizer state, the third changes nothing more."""


def measure(device: Device, workload: Workload, planner: str) -> int:
    """Return the peak reserved bytes over steps at the longest batch, on a fresh ``device``."""
    with training(device, workload, planner) as session:
        for _ in range(STEPS):
            session.step(workload.longest)
    return device.peak_reserved_bytes()


def judge(measured: Mapping[tuple[str, str], int], device_label: str) -> Reproduction:
    """Compare peak reserved bytes by (task, planner) with the paper's stars."""
    rows: list[Row] = []
    for workload in WORKLOADS:
        for (what, planner), expected in zip(BOUNDS.items(), memory_bounds(workload.name)):
            if (workload.name, planner) not in measured:
                continue
            rows.append(
                Row(
                    series=workload.name,
                    what=what,
                    unit="GB",
                    expected=expected,
                    obtained=measured[workload.name, planner],
                    length=workload.longest,
                )
            )
    return Reproduction(
        name="stars",
        title="least and most reserved memory",
        source="Fig 10 a, c, d: the stars",
        device_label=device_label,
        rows=tuple(rows),
        criteria=(
            Criterion(name="maximum error", value=max_error(rows), tolerance=TOLERANCE),
            Criterion(name="mean error", value=mean_error(rows)),
        ),
    )


def check(open_device: OpenDevice, *, say: Say = silent) -> Reproduction:
    """Measure both stars of every task and compare."""
    measured: dict[tuple[str, str], int] = {}
    label = ""
    for workload in WORKLOADS:
        for what, planner in BOUNDS.items():
            say(f"stars: {workload.name}, {what}")
            with open_device() as device:
                label = device.label
                measured[workload.name, planner] = measure(device, workload, planner)
    return judge(measured, label)
