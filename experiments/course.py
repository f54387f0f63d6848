"""Which batches a run takes, and how much each step counts.

A *sampled* run takes batches as the data brings them. One over *expected* lengths takes each length
of the data's distribution once and weighs the step by its share: the mean is then the expectation
over an epoch, without sampling noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Protocol

from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Step
from mimose_bench.experiments.summary import LEARNING_PHASES
from mimose_bench.experiments.tasks.base import Batch, Size, SizeBin, Task

MOST_LEARNING = 30
"""Steps in which a planner may still measure before its steps count whatever their phase."""

Context = Callable[[], AbstractContextManager[object]]


class Course(Protocol):
    """The batches of one run.

    Attributes:
        total: How many steps there will be, as far as one knows.
    """

    total: int

    def batches(self, context: Context) -> Iterator[Batch]:
        """Yield the batches; built within ``context``."""

    def weigh(self, step: Step) -> float | None:
        """Return how much a finished step counts; None where all count alike."""


def course_of(config: RunConfig, task: Task) -> Course:
    """Return the course that ``config`` asks for."""
    return Expected(task) if config.lengths == "expected" else Sampled(task, config.steps or 0)


class Sampled:
    """So many of the task's own batches."""

    def __init__(self, task: Task, steps: int) -> None:
        self.total = steps
        self._task = task

    def batches(self, context: Context) -> Iterator[Batch]:
        """Yield the task's batches."""
        return self._task.batches(self.total, context=context)

    def weigh(self, step: Step) -> None:
        """Return None."""


class Expected:
    """Each length of the task's distribution once.

    They come in no order of size, as data does, the longest first. Upwards each step would need a
    little more than what is cached, until the allocator's cache itself fills the device.

    The first step counts nothing: it makes optimizer state and gradients. A planner that measures
    first is shown more lengths that count nothing, the longest and then ever finer quantiles of
    the distribution, until a step is no longer one of measuring.

    Every batch must have been weighed before the next one is taken.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self._bins = task.size_bins()
        self.total = 1 + len(self._bins)
        self._share = 0.0
        self._learning = False
        self._num_learning = 0

    def batches(self, context: Context) -> Iterator[Batch]:
        """Yield preparing batches, then one a length."""
        yield self._batch(self._bins[0].size, context)
        for size in _spread(self._bins):
            if not self._goes_on():
                break
            yield self._batch(size, context)
        for size, share in _mixed(self._bins):
            self._share = share
            yield self._batch(size, context)
            while self._goes_on():  # What is to be expected is a step that does not measure.
                yield self._batch(size, context)

    def weigh(self, step: Step) -> float:
        """Return the share of an epoch's batches that the step stands for."""
        self._learning = step.record is not None and step.record.phase in LEARNING_PHASES
        self._num_learning += self._learning
        if self._share == 0.0:
            self.total += step.number > 0
            return 0.0
        if self._goes_on():
            self.total += 1
            return 0.0
        return self._share

    def _goes_on(self) -> bool:
        return self._learning and self._num_learning < MOST_LEARNING

    def _batch(self, size: Size, context: Context) -> Batch:
        with context():
            return self._task.example_batch(size)


def _mixed(bins: Sequence[SizeBin]) -> list[SizeBin]:
    """Return the largest and then the others, neighbours far apart."""
    golden = (5**0.5 - 1) / 2  # The multiples of no number are spread more evenly over a circle.
    *others, largest = bins
    return [largest, *(b for _, b in sorted((i * golden % 1.0, b) for i, b in enumerate(others)))]


def _spread(bins: Sequence[SizeBin]) -> Iterator[Size]:
    """Yield the largest size, then the median, the quartiles, the eighths and so on."""
    yield bins[-1].size
    reached = list(accumulate(share for _, share in bins))
    parts = 2
    while True:
        for odd in range(1, parts, 2):
            within = (b.size for b, upto in zip(bins, reached) if upto >= odd / parts)
            yield next(within, bins[-1].size)
        parts *= 2
