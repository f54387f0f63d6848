"""What a task is: a model, its data and its loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from mimose.records import Size
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.paper import Histogram

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn, optim

Scale = Literal["full", "small", "tiny"]
Attention = Literal["eager", "sdpa"]
Unit = Literal["tokens", "pixels"]
SCALES: tuple[Scale, ...] = ("full", "small", "tiny")
ATTENTIONS: tuple[Attention, ...] = ("eager", "sdpa")

__all__ = [
    "ATTENTIONS",
    "SCALES",
    "Attention",
    "Batch",
    "DataSource",
    "Scale",
    "Size",
    "SizeBin",
    "Task",
    "TaskOptions",
    "Unit",
]


class SizeBin(NamedTuple):
    """One of the sizes that stand for an epoch's batches.

    Attributes:
        size: Size of a full batch.
        share: Share of the batches; all bins' shares sum to one.
    """

    size: Size
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """What a user may choose about a task."""

    scale: Scale = "full"
    """``full`` is the paper's model, ``small`` as deep but narrow, ``tiny`` for tests."""
    data: str = "auto"
    """``auto``, ``hub``, ``synthetic`` or the path of a file in the data set's own format."""
    vocab: str | Path | None = None
    """Tokenizer for a local file of text; by default the one next to it."""
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
    optimizer: str | None = None
    """Name of the optimizer; None for the task's own."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options that only this task has."""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise ValueError(f"--scale is one of {', '.join(SCALES)}, not {self.scale!r}")
        if self.attention not in ATTENTIONS:
            raise ValueError(f"--attention is {' or '.join(ATTENTIONS)}, not {self.attention!r}")
        for option in ("data", "vocab", "weights", "optimizer"):
            if getattr(self, option) == "":
                raise ValueError(f"--{option} is empty: name one or leave the option out")
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
        dataset: Its data set as the paper's Fig 3 calls it; empty where that shows none.
        rows_per_sample: How much a sample adds to ``size[0]``: its sequences.
        unit: What ``size[1]`` counts: a batch's padded length in tokens, or an image's pixels.
        choices: Options of this task alone, each with the values it may have.
        scale: The size of its model.
        batch_size: Samples in a full batch.
        data_source: Where its data comes from.
    """

    name: str
    title: str
    dataset: str
    rows_per_sample: int
    unit: Unit
    choices: Mapping[str, tuple[str, ...]]
    scale: Scale
    batch_size: int
    data_source: DataSource

    def __init__(self, options: TaskOptions) -> None: ...

    @property
    def epoch_steps(self) -> int:
        """Number of batches in an epoch, the last one possibly smaller."""

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

    def size_bins(self) -> tuple[SizeBin, ...]:
        """Return the distribution of an epoch's batch sizes, the smallest first.

        Where batches of text are generated from a histogram of the paper these are its bins; other
        data is binned likewise over batches of the task's own. All count as full batches.
        """

    def example_lengths(self) -> np.ndarray | None:
        """Return the length of each single example, where they are stored.

        1-D, of what ``size[1]`` counts; None where examples are generated or not padded.
        """

    def parse_size(self, text: str) -> Size:
        """Return the size of a full batch that a user means by ``text``.

        Text: ``384`` (tokens), or ``384x128`` for encoder and decoder. Images: ``480x640``
        (height and width in pixels), or ``224`` where all of a task's are squares.

        Raises:
            ValueError: If ``text`` is nothing of the kind.
        """

    def describe_size(self, size: Size) -> str:
        """Return a size, the rows left out, as a user would read it."""

    def extents(self, size: Size) -> dict[str, int]:
        """Return the columns of ``steps.parquet`` that say the extents of a size, by their names.

        ``sequence_length``, with ``decoder_length`` where there is a decoder, or ``image_pixels``.
        """

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings (model, data, optimizer) as plain data."""
