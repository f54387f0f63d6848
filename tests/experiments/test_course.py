from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.course import MOST_LEARNING, Expected, course_of
from mimose_bench.experiments.loop import Step
from mimose_bench.experiments.tasks.base import SizeBin

BINS = tuple(
    SizeBin((12, n, 7), share) for n, share in ((100, 0.1), (200, 0.4), (300, 0.3), (400, 0.2))
)


class Task:
    """A task whose batches are their own sizes."""

    def size_bins(self):
        return BINS

    def example_batch(self, size):
        return SimpleNamespace(size=size)

    def batches(self, steps, *, context):
        return iter(range(steps))


def walk(phase):
    """Return (length, weight) of each step; ``phase`` says a step's, by number and length."""
    course, taken = Expected(Task()), []
    for number, batch in enumerate(course.batches(nullcontext)):
        assert number < 200
        record = SimpleNamespace(phase=phase(number, batch.size[1]))
        step = Step(number, batch, record, None, 0.0)
        taken.append((batch.size[1], course.weigh(step)))
        assert batch.size[0] == 12
        assert batch.size[2:] == (7,)
    return taken, course


COUNTED = [(b.size[1], b.share) for b in (BINS[3], BINS[0], BINS[2], BINS[1])]


def test_a_planner_that_does_not_learn_takes_one_step_first():
    taken, course = walk(lambda number, length: "static")
    assert taken == [(100, 0.0), *COUNTED]
    assert course.total == len(taken)


def test_a_planner_that_learns_is_shown_the_distribution_until_it_has():
    taken, course = walk(lambda number, length: "sheltered" if number < 6 else "responsive")
    # The shortest, the longest, the median, the quartiles, two of the eighths.
    assert [length for length, _ in taken[:7]] == [100, 400, 200, 200, 300, 200, 200]
    assert [weight for _, weight in taken[:7]] == [0.0] * 7
    assert taken[7:] == COUNTED
    assert course.total == len(taken)


def test_a_length_at_which_the_planner_measures_is_taken_again():
    taken, course = walk(lambda number, length: "sheltered" if number == 2 else "responsive")
    assert taken == [(100, 0.0), (400, 0.2), (100, 0.0), (100, 0.1), *COUNTED[2:]]
    assert course.total == len(taken)


def test_one_that_never_stops_measuring_is_taken_as_it_is():
    taken, _ = walk(lambda number, length: "profile")
    assert taken[:MOST_LEARNING] == [(length, 0.0) for length, _ in taken[:MOST_LEARNING]]
    assert taken[MOST_LEARNING:] == COUNTED


def test_a_refused_batch_keeps_its_weight():
    course, weights = Expected(Task()), []
    for number, batch in enumerate(course.batches(nullcontext)):
        weights.append(course.weigh(Step(number, batch, None, None, 0.0, 1 << 30, "too large")))
    assert weights == [0.0, *(share for _, share in COUNTED)]


def test_sampled_runs_count_every_step_alike():
    course = course_of(RunConfig(steps=7), Task())
    assert list(course.batches(nullcontext)) == list(range(7))
    assert course.weigh(Step(0, None, None, None, 0.0)) is None
    assert course.total == 7


def test_steps_have_a_default_and_do_not_go_with_expected_lengths():
    assert RunConfig().steps == 200
    assert RunConfig(lengths="expected").steps is None
    with pytest.raises(ValueError, match="leave --steps out"):
        RunConfig(lengths="expected", steps=3)
    with pytest.raises(ValueError, match=r"--lengths must be sampled or expected"):
        RunConfig(lengths="mean")
    with pytest.raises(ValueError, match=r"--foreach must be auto, on or off"):
        RunConfig(foreach="yes")
