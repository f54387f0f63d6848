"""What a task is: a model, its data and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from mimose.records import Size
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.lengths import LengthBin
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.paper import Histogram

if TYPE_CHECKING:
    from torch import Tensor, nn, optim

Scale = Literal["full", "small", "tiny"]
Attention = Literal["eager", "sdpa"]
SCALES: tuple[Scale, ...] = ("full", "small", "tiny")
ATTENTIONS: tuple[Attention, ...] = ("eager", "sdpa")

__all__ = [
    "ATTENTIONS",
    "SCALES",
    "Attention",
    "Batch",
    "DataSource",
    "LengthBin",
    "Scale",
    "Size",
    "Task",
    "TaskOptions",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a user may choose about a task."""

    scale: Scale = "full"
    """``full`` is the paper's model, ``small`` as deep but narrow, ``tiny`` for tests."""
    data: str = "auto"
    """``auto``, ``hub``, ``synthetic`` or the path of a file in the data set's own format."""
    vocab: str | Path | None = None
    """Vocabulary for a local file; by default the one next to it."""
    weights: str = "random"
    """``random``, ``pretrained`` or the path of a saved model."""
    attention: Attention = "eager"
    """Which attention kernel; the paper's PyTorch had no other than ``eager``."""
    seed: int = 0
    """Fixes the data's order and, where it is generated, its content."""
    batch_size: int | None = None
    """Samples in a batch; None for the scale's own number."""
    lr: float | None = None
    """Learning rate; None for the scale's own."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"--scale is one of {', '.join(SCALES)}, not {self.scale!r}")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"--attention is {' or '.join(ATTENTIONS)}, not {self.attention!r}")
        if self.seed < 0:
            raise ValueError(f"--seed is zero or more, not {self.seed}")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"--batch-size is at least 1, not {self.batch_size}")
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise ValueError(f"--lr is a positive number, not {self.lr}")
        if self.vocab is not None and self.data in ("auto", "hub", "synthetic"):
            raise ValueError(f"--vocab belongs to --data PATH, not to --data {self.data}")


class Task(Protocol):
    """One workload. Making a task opens its data, so that what is wrong with it shows at once.

    Attributes:
        name: Its name on the command line.
        title: Its name in the paper.
        scale: The size of its model.
        batch_size: Samples in a full batch.
        data_source: Where its data comes from.
    """

    name: str
    title: str
    scale: Scale
    batch_size: int
    data_source: DataSource

    def __init__(self, options: TaskOptions) -> None: ...

    def build_model(self) -> nn.Module:
        """Return the model in training mode, on the CPU.

        Random weights are drawn from PyTorch's global generator, which the caller seeds.

        Raises:
            ValueError: If the weights asked for cannot be had or do not fit.
        """

    def batches(
        self, steps: int, *, context: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Iterator[Batch]:
        """Yield exactly ``steps`` batches, built ahead in a thread.

        The order and the content depend on the seed alone, not on the thread's timing. Epochs
        follow one another, each in an order of its own and with a smaller last batch if need be.

        Args:
            steps: How many.
            context: Entered in the thread around the building of each batch.
        """

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the scalar loss of ``model`` on a batch's tensors."""

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> optim.Optimizer:
        """Return the task's optimizer over the model's parameters.

        Args:
            model: The model.
            foreach: Whether one kernel updates many parameters, which takes temporaries of all
                gradients' size together; None is PyTorch's choice, which is to do so on cuda.
        """

    def example_batch(self, size: Size) -> Batch:
        """Return a batch of exactly this size, with content like the task's.

        Raises:
            ValueError: If the task has no batch of such a size.
        """

    def sizes(self, steps: int) -> Iterator[Size]:
        """Yield the sizes of the batches that :meth:`batches` would yield."""

    def longest(self) -> Size:
        """Return the size of the largest batch that :meth:`batches` can yield."""

    def paper_lengths(self) -> Histogram | None:
        """Return the paper's histogram of padded batch lengths, where it shows one."""

    def length_bins(self) -> tuple[LengthBin, ...]:
        """Return the distribution of an epoch's padded batch lengths, the shortest first.

        Generated data is drawn from the paper's histogram, whose bins these are; other data is
        binned likewise over one epoch of the task's own batches. All batches count as full ones.
        """

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings (model, data, optimizer) as plain data."""
