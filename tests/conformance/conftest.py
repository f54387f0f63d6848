"""Real training on the device ``cpu``, small enough for a test."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import pytest
import torch
from transformers import BertForQuestionAnswering

from mimose.costs import Profile
from mimose.devices import open_device
from mimose.devices.base import Device
from mimose.handle import attach
from mimose.planners.base import Planner
from mimose.planners.bound import recompute_all
from mimose.planners.constant import Constant
from mimose.planners.mimose.estimator import Estimator
from mimose.records import Decision, Situation, Size, StepRecord
from mimose_bench.experiments.bounds import Bounds, measure_bounds
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Step, Trainer
from mimose_bench.experiments.tasks import TaskOptions
from mimose_bench.experiments.tasks.base import Batch, Task
from mimose_bench.experiments.tasks.qa_bert import QaBert


class DeepQaBert(QaBert):
    """The task at its smallest scale, with as many blocks as the paper's model."""

    num_layers = 12

    def build_model(self) -> torch.nn.Module:
        config = super().build_model().config
        config.num_hidden_layers = self.num_layers
        return BertForQuestionAnswering(config).float().train()


class Collecting(Constant):
    """Every step recomputes all blocks and runs the collector."""

    name: ClassVar[str] = "collecting"
    rescued: ClassVar[bool] = True

    def plan(self, size: Size, situation: Situation) -> Decision:
        return Decision(recompute_all(self.info), "sheltered", collect=True)


class Lab:
    """One open device, one task, and the models that are trained with them.

    Attributes:
        device: The device; a test has it for itself.
        task: What is trained.
        config: How.
    """

    def __init__(self, device: Device, task: Task, config: RunConfig) -> None:
        self.device = device
        self.task = task
        self.config = config
        self._cleanup = contextlib.ExitStack()

    def close(self) -> None:
        """Detach whatever is attached and lift the budget."""
        self._cleanup.close()
        self.device.enforce(None)

    def trainer(
        self,
        planner: str | Planner,
        budget: int | None = None,
        *,
        enforce: bool = False,
        model: torch.nn.Module | None = None,
        **options: Any,
    ) -> Trainer:
        """Attach a model, the task's own by default, made from the same seed each time."""
        torch.manual_seed(self.config.seed)
        if model is None:
            model = self.task.build_model()
        self.device.adopt(model)
        # Dropout draws from here on, whatever building the model drew.
        torch.manual_seed(self.config.seed)
        handle = attach(model, budget, planner, device=self.device, enforce=enforce, **options)
        self._cleanup.callback(handle.detach)
        return Trainer(self.task, model, handle, self.config)

    def batch(self, length: int, batch_size: int | None = None) -> Batch:
        """Return a generated batch of this padded length."""
        return self.task.example_batch((batch_size or self.task.batch_size, length))

    def take(self, trainer: Trainer, planner: Planner, length: int) -> StepRecord:
        """Take one step under another planner, from the same state of gradients as usual."""
        handle = trainer.handle
        handle.planner = planner
        handle.rebind()
        batch = self.batch(length)
        tensors = self.device.put(batch.tensors)
        record, _ = trainer.train(batch, tensors)
        assert record is not None
        return record

    def collect(self, trainer: Trainer, length: int) -> StepRecord:
        """Take one step in which every block is recomputed and measured."""
        return self.take(trainer, Collecting(), length)

    @staticmethod
    def violations(steps: Iterable[Step]) -> list[Step]:
        """Return the steps that ran out of memory, were retried or flushed the cache midway."""
        return [
            s
            for s in steps
            if s.record is None or s.record.outcome != "ok" or s.record.num_alloc_retries
        ]

    @staticmethod
    def recomputing(steps: Iterable[Step]) -> list[StepRecord]:
        """Return the responsive steps that had to recompute."""
        records = [s.record for s in steps if s.record is not None]
        return [r for r in records if r.phase == "responsive" and r.plan.regions]

    def lengths(self, count: int, seed: int = 7) -> list[int]:
        """Return padded lengths as the task draws them."""
        task = type(self.task)(dataclasses.replace(self.task.options, seed=seed))
        return [size[1] for size in task.sizes(count)]


def make_deep(config: RunConfig) -> DeepQaBert:
    return DeepQaBert(TaskOptions(scale=config.scale, data=config.data, seed=config.seed))


@pytest.fixture(scope="session")
def config() -> RunConfig:
    return RunConfig(scale="tiny", data="synthetic", device="cpu", threads=1)


@pytest.fixture(scope="session")
def bounds(config: RunConfig) -> Bounds:
    """What the longest batch reserves with every block recomputed and with none."""
    device = open_device("cpu", reset_peaks=True)
    try:
        return measure_bounds(config, make_deep(config), device)
    finally:
        device.close()


@pytest.fixture
def lab(config: RunConfig, bounds: Bounds) -> Iterator[Lab]:
    # The bounds are asked for so that they are measured before the device is taken.
    device = open_device("cpu", reset_peaks=True)
    opened = Lab(device, make_deep(config), config)
    try:
        yield opened
    finally:
        opened.close()
        device.close()


@pytest.fixture
def make_lab() -> type[Lab]:
    """Return the class, for tests of other tasks than the one above."""
    return Lab


@pytest.fixture
def report(
    record_property: Callable[[str, object], None],
) -> Callable[..., None]:
    """Return a function that writes figures to the test report and, under ``-s``, prints them."""

    def write(**figures: object) -> None:
        for name, value in figures.items():
            record_property(name, value)
        text = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in figures.items()
        )
        print(f"\n    {text}")

    return write


@pytest.fixture
def predict_less(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that makes every estimator predict a share of the bytes too few."""
    predict = Estimator.predict
    factor = 1.0

    def too_little(self: Estimator, size: Size) -> Profile:
        profile = predict(self, size)
        less = {
            field.name: _scaled(getattr(profile, field.name), factor)
            for field in dataclasses.fields(profile)
            if field.name != "forward_seconds"
        }
        return dataclasses.replace(profile, **less)

    def install(share: float) -> None:
        nonlocal factor
        factor = 1.0 - share
        monkeypatch.setattr(Estimator, "predict", too_little)

    return install


def _scaled(value: int | tuple[int, ...], factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(int(x * factor) for x in value)
    return int(value * factor)
