"""The order in which images of one orientation come together in a batch."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def grouped_batches(
    wide: np.ndarray, batch_size: int, steps: int, seed: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the epoch and the example numbers of each of ``steps`` batches.

    As MMDetection's ``GroupSampler``: wide images and tall ones are shuffled apart, a group's last
    batch is filled up with others of the group, and the batches of both come in random order.

    Args:
        wide: Whether each image is at least as wide as tall, ``bool`` of shape (N,).
        batch_size: Examples in a batch; all are full.
        steps: Number of batches.
        seed: Fixes the order; no global generator is touched.
    """
    groups = [np.flatnonzero(wide == kind) for kind in (False, True)]
    epoch = done = 0
    while done < steps:
        rng = np.random.default_rng((seed, epoch))
        batches: list[np.ndarray] = []
        for group in groups:
            missing = -len(group) % batch_size
            if len(group):
                order = np.concatenate([rng.permutation(group), rng.choice(group, missing)])
                batches.extend(order.reshape(-1, batch_size))
        for number in rng.permutation(len(batches)):
            if done == steps:
                return
            yield epoch, batches[number]
            done += 1
        epoch += 1


def grouped_steps(wide: np.ndarray, batch_size: int) -> int:
    """Return the number of batches that :func:`grouped_batches` makes of an epoch."""
    counts = int(wide.sum()), int((~wide).sum())
    return sum(-(-count // batch_size) for count in counts)
