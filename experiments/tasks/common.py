"""What tasks have in common; see :class:`~mimose_bench.experiments.tasks.base.Task`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from mimose.records import Size
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.prefetch import prefetch
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.names import unknown_name
from mimose_bench.experiments.paper import Histogram, length_histogram
from mimose_bench.experiments.tasks.base import Scale, SizeBin, TaskOptions, Unit
from mimose_bench.experiments.tasks.optimizers import OPTIMIZERS

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn, optim

E = TypeVar("E")
log = logging.getLogger(__name__)


class TaskBase(ABC, Generic[E]):
    """A task over examples of type ``E``.

    A subclass says what its model, its data and its sizes are. Its attributes:

    Attributes:
        name: Its name on the command line.
        title: Its name in the paper.
        unit: What ``size[1]`` counts: tokens or pixels.
        dataset: The data set as the paper's Fig 3 calls it; empty where that shows none.
        settings_by_scale: Shape of model and batches by scale: a frozen dataclass with at least
            ``batch_size``.
        rows_per_sample: Sequences in a sample; more than one for multiple choice.
        optimizer_name: The optimizer used unless another is asked for; a key of ``OPTIMIZERS``.
        choices: Options of this task alone, each with the values it may have, the default first.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    unit: ClassVar[Unit] = "tokens"
    dataset: ClassVar[str] = ""
    rows_per_sample: ClassVar[int] = 1
    settings_by_scale: ClassVar[Mapping[Scale, Any]]
    optimizer_name: ClassVar[str] = "adamw"
    choices: ClassVar[Mapping[str, tuple[str, ...]]] = {}

    def __init__(self, options: TaskOptions) -> None:
        """Open the task's data.

        Raises:
            ValueError: If an option does not fit the task or its data cannot be had.
        """
        self.options = options
        self.scale: Scale = options.scale
        self.setting = self.settings_by_scale[options.scale]
        self.chosen = self._choose(options.extra)
        self.batch_size: int = options.batch_size or self.setting.batch_size
        optimizer = options.optimizer or self.optimizer_name
        if optimizer not in OPTIMIZERS:
            raise unknown_name("optimizer", optimizer, OPTIMIZERS)
        self.optimizer_name = optimizer  # type: ignore[misc]
        self.lr: float = options.lr or self._default_lr(optimizer)
        self.data_source: DataSource = self._open()
        for note in self.data_source.notes:
            log.warning("%s: %s", self.name, note)

    # -- what a task must say

    @abstractmethod
    def _open(self) -> DataSource:
        """Open the data that the options name and return what to say of it."""

    @property
    @abstractmethod
    def num_examples(self) -> int:
        """Number of examples in an epoch."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return the model in training mode, fp32, on the CPU; see ``Task``."""

    @abstractmethod
    def _examples(self, steps: int) -> Iterator[Sequence[E]]:
        """Yield the examples of ``steps`` batches; their content may be made in ``_collate``."""

    @abstractmethod
    def _size(self, examples: Sequence[E]) -> Size:
        """Return the size of a batch of ``examples``, without making it."""

    @abstractmethod
    def _collate(self, examples: Sequence[E]) -> Batch:
        """Return the batch of ``examples``, in host memory and outside PyTorch's allocator.

        It runs in the prefetching thread; tensors borrow numpy's memory (``torch.from_numpy``).
        """

    @abstractmethod
    def _examples_of(self, size: Size) -> Sequence[E]:
        """Return generated examples whose batch has exactly this size.

        Raises:
            ValueError: If the task has no batch of such a size.
        """

    @abstractmethod
    def longest(self) -> Size:
        """Return the size of the largest batch that ``batches`` can yield."""

    @abstractmethod
    def size_bins(self) -> tuple[SizeBin, ...]:
        """Return the distribution of an epoch's batch sizes, the smallest first; see ``Task``."""

    @abstractmethod
    def parse_size(self, text: str) -> Size:
        """Return the size of a full batch that a user means by ``text``; see ``Task``."""

    def example_lengths(self) -> np.ndarray | None:
        """Return the length of each single example, where they are stored; see ``Task``."""
        return None

    def describe_size(self, size: Size) -> str:
        """Return how to write the extents of ``size``, the rows left out; see ``Task``."""
        return "x".join(map(str, size[1:]))

    def extents(self, size: Size) -> dict[str, int]:
        """Return the extents of ``size`` by the names of their columns; see ``Task``."""
        if self.unit == "pixels":
            return {"image_pixels": size[1]}
        return dict(zip(("sequence_length", "decoder_length"), size[1:]))

    def _default_lr(self, optimizer: str) -> float:
        """Return the learning rate for an optimizer, where none is asked for."""
        found = OPTIMIZERS[optimizer].lr
        return self.setting.lr if optimizer == type(self).optimizer_name else found

    # -- what follows from it

    @property
    def epoch_steps(self) -> int:
        """Number of batches in an epoch; see ``Task``."""
        return -(-self.num_examples // self.batch_size)

    def batches(
        self, steps: int, *, context: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> Iterator[Batch]:
        """Yield ``steps`` batches, built ahead in a thread; see ``Task``."""
        batches = (self._collate(examples) for examples in self._examples(steps))
        return prefetch(batches, context=context)

    def sizes(self, steps: int) -> Iterator[Size]:
        """Yield the sizes of the batches that :meth:`batches` would yield."""
        for examples in self._examples(steps):
            yield self._size(examples)

    def example_batch(self, size: Size) -> Batch:
        """Return a generated batch of exactly this size; see ``Task``."""
        return self._collate(self._examples_of(size))

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the model's own scalar loss on a batch's tensors."""
        return model(**tensors).loss

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> optim.Optimizer:
        """Return the optimizer over what is trained of ``model``; ``foreach`` as in ``Task``."""
        trainable = [p for p in model.parameters() if p.requires_grad]
        return OPTIMIZERS[self.optimizer_name].make(trainable, lr=self.lr, foreach=foreach)

    def paper_lengths(self) -> Histogram | None:
        """Return the paper's histogram of padded batch lengths (Fig 3), where it shows one."""
        return length_histogram(self.dataset) if self.dataset else None

    def settings(self) -> dict[str, Any]:
        """Return the resolved settings (model, data, optimizer) as plain data."""
        return {
            "task": self.name,
            "scale": self.scale,
            "weights": self.options.weights,
            "attention": self.options.attention,
            **asdict(self.setting),
            "batch_size": self.batch_size,
            "optimizer": OPTIMIZERS[self.optimizer_name].title,
            "lr": self.lr,
            **({"options": dict(self.chosen)} if self.chosen else {}),
            "data": self.data_source.to_json(),
        }

    def _choose(self, extra: Mapping[str, str]) -> dict[str, str]:
        for name, value in extra.items():
            if not self.choices:
                raise ValueError(f"task {self.name} has no options of its own: drop {name}={value}")
            if name not in self.choices:
                raise unknown_name(f"option of task {self.name}", name, self.choices)
            if value not in self.choices[name]:
                allowed = " or ".join(self.choices[name])
                raise ValueError(f"option {name} of task {self.name} is {allowed}, not {value!r}")
        return {name: extra.get(name, values[0]) for name, values in self.choices.items()}
