"""How far a planner gets: the least budget and the largest batch that it still trains with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from mimose.devices.sim.device import SimDevice
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.classifiers import Classifier
from mimose_bench.experiments.figures.evicting import Course, train
from mimose_bench.experiments.figures.session import OpenDevice
from mimose_bench.experiments.figures.workloads import Workload

Network = Classifier | Workload

STEPS, SETTLE = 4, 2
"""Steps of each measurement; in the first ones gradients come to be and DELTA learns."""
SHARE_STEP = 0.02
LENGTH = 384
"""Padded length of text, the usual one of SQuAD."""


def batch_of(network: Network, samples: int | None = None) -> Batch:
    """Return a batch of so many samples, by default as many as the network's own."""
    if isinstance(network, Classifier):
        return network.batch(samples)
    if samples is None:
        return network.example_batch(LENGTH)
    return replace(network, batch_size=samples).example_batch(LENGTH)


def at(
    open_device: OpenDevice,
    network: Network,
    planner: str,
    budget_bytes: int | None,
    *,
    samples: int | None = None,
    enforce: bool = False,
    **options: Any,
) -> Course:
    """Measure a few steps on the same batch."""
    return train(
        open_device,
        network,
        planner,
        budget_bytes,
        [batch_of(network, samples)] * STEPS,
        settle=SETTLE,
        enforce=enforce,
        **options,
    )


def least(low: int, high: int, does: Callable[[int], bool]) -> int | None:
    """Return the least whole number from ``low`` to ``high`` that does; None if ``high`` does not.

    Above one that does, all are taken to do.
    """
    if not does(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if does(middle):
            high = middle
        else:
            low = middle + 1
    return high


def least_share(
    open_device: OpenDevice, network: Network, planner: str, plain: Course, slower: float
) -> tuple[float, Course] | None:
    """Return the least own budget, as a share of plain training's peak, and its steps.

    Args:
        open_device: Opens the simulated GPU.
        network: What is trained.
        planner: The planner.
        plain: Plain training.
        slower: How many times plain training's time a step may take.
    """
    found: dict[int, Course] = {}

    def does(number: int) -> bool:
        budget = round(number * SHARE_STEP * plain.peak_allocated)
        course = found[number] = at(open_device, network, planner, budget, reserve=0)
        return not course.failure and course.seconds < slower * plain.seconds

    number = least(2, round(0.98 / SHARE_STEP), does)
    return None if number is None else (number * SHARE_STEP, found[number])


def largest_batch(
    open_device: OpenDevice,
    network: Network,
    planner: str,
    grain: int,
    *,
    from_samples: int,
    most_seconds: float | None = None,
    **options: Any,
) -> tuple[int, Course | None]:
    """Return the largest batch, in steps of ``grain``, that the whole GPU is enough for.

    Args:
        open_device: Opens the simulated GPU.
        network: What is trained.
        planner: The planner.
        grain: Batches are multiples of it.
        from_samples: A batch to start from.
        most_seconds: Most time of a step for each sample.
        **options: The planner's.

    Returns:
        Its samples and steps; what it started from and None if not even that does.
    """
    with open_device() as device:
        assert isinstance(device, SimDevice)
        budget = None if planner == "baseline" else device.capacity_bytes
    best: tuple[int, Course | None] = (from_samples, None)

    def does(number: int) -> bool:
        nonlocal best
        samples = number * grain
        course = at(open_device, network, planner, budget, samples=samples, enforce=True, **options)
        fits = not course.failure and (
            most_seconds is None or course.seconds < most_seconds * samples
        )
        if fits and (best[1] is None or samples > best[0]):
            best = samples, course
        return fits

    low = max(1, from_samples // grain)
    if not does(low):
        return best
    high = 2 * low
    while does(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if does(middle):
            low = middle
        else:
            high = middle
    return best
