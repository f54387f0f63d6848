"""The order in which examples are visited."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def epoch_batches(
    num_examples: int, batch_size: int, steps: int, seed: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the epoch and the example numbers of each of ``steps`` batches.

    Every epoch visits each example once, in an order of its own, and ends with whatever is left
    over as a smaller batch, as the Hugging Face example scripts do.

    Args:
        num_examples: Number of examples, at least one.
        batch_size: Examples in a full batch.
        steps: Number of batches.
        seed: Fixes the order; no global generator is touched.
    """
    epoch = done = 0
    while done < steps:
        order = np.random.default_rng((seed, epoch)).permutation(num_examples)
        for first in range(0, num_examples, batch_size):
            if done == steps:
                return
            yield epoch, order[first : first + batch_size]
            done += 1
        epoch += 1
