"""How a planner that learns is shown enough to say what it would do at given sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from mimose.records import Size
from mimose_bench.experiments.loop import Step, Trainer
from mimose_bench.experiments.summary import LEARNING_PHASES
from mimose_bench.experiments.tasks.base import Task

MOST_STEPS = 12
"""Most steps that are run so that a planner has something to decide by."""


def teach(trainer: Trainer, asked: Sequence[Size]) -> Step | None:
    """Take steps until the planner has learned what batches of the sizes asked for take.

    No batch is larger than those: whether the task's longest one fits is another question. The
    gradients train a throw-away model.

    Args:
        trainer: The model, its optimizer and its handle; no step has been taken.
        asked: The sizes.

    Returns:
        None, or the step that fitted neither the budget nor the device.
    """
    sizes = list(_shown(trainer.task, asked))
    for step in trainer.steps(trainer.task.example_batch(size) for size in sizes):
        if step.error is not None:
            return step
        # Of a planner that learns nothing, too, it is asked whether the largest fits: the second.
        learning = step.record is None or step.record.phase in LEARNING_PHASES
        if not learning and step.number > 0:
            return None
    return None


def _shown(task: Task, asked: Sequence[Size]) -> Iterator[Size]:
    """Yield the sizes of a dozen steps, spread over those asked for and the task's below them."""
    below = {b.size for b in task.size_bins() if any(_within(b.size, size) for size in asked)}
    seen = sorted({*below, *asked})
    steps = MOST_STEPS - 2
    # The largest and the smallest early: a planner may stop measuring after a few.
    for share in (0.5, 1.0, 0.0, *(i / steps for i in range(1, steps))):
        yield seen[round(share * (len(seen) - 1))]


def _within(size: Size, other: Size) -> bool:
    """Return whether a size is in no extent larger than the other."""
    return len(size) == len(other) and all(x <= y for x, y in zip(size, other))


def refused(trainer: Trainer, asked: Sequence[Size], failed: Step) -> Mapping[Size, int | None]:
    """Return which of the sizes asked for do not fit the budget, and what each needs by itself.

    That is measured without a limit and with every block recomputed, or under the planner itself
    if it is one that is never rescued; the trainer cannot be used any more. Sizes within one that
    fits are not measured.

    Args:
        trainer: The trainer whose step failed.
        asked: The sizes.
        failed: That step.

    Returns:
        Bytes by size, None where even the bare device has too little. They are less than the
        budget where a batch fits by itself, and not beside what others leave cached in pieces.
    """
    budget, failed_size = trainer.handle.budget_bytes, failed.batch.size
    found: dict[Size, int | None] = {}
    fitting: list[Size] = []
    in_optimizer = failed.in_optimizer
    as_planned = not trainer.handle.planner.rescued
    for size in sorted(set(asked), reverse=True):
        if any(_within(size, other) for other in fitting):
            continue
        batch = trainer.task.example_batch(size)
        least = trainer.least_budget(batch, in_optimizer=in_optimizer, as_planned=as_planned)
        in_optimizer = False
        fits = least is not None and budget is not None and least <= budget
        if fits and not _within(failed_size, size):
            fitting.append(size)
        else:
            found[size] = least
    return found
