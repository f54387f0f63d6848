"""A mini-batch as the training loop sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mimose.records import Size

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """One mini-batch, in host memory.

    Attributes:
        tensors: What the task's loss takes, by name.
        size: What the planner is told of it, e.g. ``(batch, padded length)``.
        input_size: Padded tokens (or pixels) of the whole batch.
        num_samples: Number of samples.
        num_tokens: Tokens that are not padding (or pixels that are not).
    """

    tensors: dict[str, Tensor]
    size: Size
    input_size: int
    num_samples: int
    num_tokens: int
