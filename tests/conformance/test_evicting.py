"""Evicting tensors changes memory and time, and not one bit of what is learned.

DTR and DELTA on real tensors at budgets of 0.9 down to 0.4 of what plain training reserves: every
step that finishes is the plain one, batch norm's statistics included, and the budget is kept. A
budget that is too small ends in a failure that says so. A quarter of each is left for what lies
about in pieces. Small models; tiny ones at some of the budgets in ``make test``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch
from torch import nn
from transformers import BertForQuestionAnswering

from mimose.eviction import ACTIONS, FILTERS, HEURISTICS
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.figures.session import opened, training
from mimose_bench.experiments.tasks import TaskOptions
from mimose_bench.experiments.tasks.qa_bert import QaBert

STEPS = 3
SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
QUICK_SHARES = (0.9, 0.6, 0.4)
TIGHT = 0.6
"""The share at which each heuristic, action and filter is tried."""


class ConvNet(nn.Module):
    """Convolutions, batch norm, in-place ReLU, dropout and a join."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Dropout(0.1),
                nn.Conv2d(width, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
            )
            for _ in range(4)
        )
        self.last = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = self.first(images)
        for block in self.blocks:
            features = torch.relu(features + block(features))
        return self.last(features.mean((2, 3)))


@dataclass(frozen=True)
class Images:
    """What the training loop asks of a task, over noise."""

    width: int
    side: int
    batch_size: int
    name: str = "conv-net"

    def build_model(self) -> nn.Module:
        return ConvNet(self.width).train()

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=foreach)

    def loss(self, model: nn.Module, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(tensors["images"]), tensors["labels"])

    def settings(self) -> dict[str, object]:
        return {"width": self.width}

    def batches(self, steps: int) -> list[Batch]:
        generator = torch.Generator().manual_seed(3)
        side, count = self.side, self.batch_size
        return [
            Batch(
                {
                    "images": torch.randn(count, 3, side, side, generator=generator),
                    "labels": torch.randint(10, (count,), generator=generator),
                },
                size=(count, side * side),
                input_size=count * side * side,
                num_samples=count,
                num_tokens=count * side * side,
            )
            for _ in range(steps)
        ]


class DeepQaBert(QaBert):
    """The task at its smallest scale, deep enough for a budget's share to be some segments."""

    def build_model(self) -> nn.Module:
        config = super().build_model().config
        config.num_hidden_layers = 8
        return BertForQuestionAnswering(config).float().train()


def options_at(scale):
    return TaskOptions(scale=scale, data="synthetic", seed=5)


# No tensor of the tiny ones is above 1 MiB, and few of the small ones are below 10: sizes between
# come from segments of 20 MiB, of which too few would fit. Four of the tiny net's fill a segment.
TINY = {
    "qa-bert tiny": lambda: DeepQaBert(options_at("tiny")),
    "conv net tiny": lambda: Images(width=16, side=16, batch_size=32),
}
SMALL = {
    "qa-bert small": lambda: QaBert(options_at("small")),
    "conv net small": lambda: Images(width=32, side=48, batch_size=48),
}
TASKS = TINY | SMALL


@dataclass
class Trained:
    """What some steps leave behind; ``state`` is the parameters, gradients and buffers of each."""

    losses: list = field(default_factory=list)
    states: list = field(default_factory=list)
    figures: list = field(default_factory=list)
    records: list = field(default_factory=list)
    failure: str = ""
    peak_reserved: int = 0


def train(task, planner, budget=None, **options):
    trained = Trained()
    with opened("cpu") as device, training(device, task, planner, budget, **options) as session:
        model, optimizer = session.handle.model, session._trainer.optimizer
        gradients = {}

        def keep(*_):
            with device.host_memory():
                gradients.update({f"{n}.grad": p.grad.clone() for n, p in model.named_parameters()})

        optimizer.register_step_pre_hook(keep)
        for batch in task.batches(STEPS):
            step = session.attempt(batch)
            if step.error is not None:
                trained.failure = step.error
                break
            with device.host_memory():
                state = {name: value.clone() for name, value in model.state_dict().items()}
            trained.states.append(state | gradients)
            trained.losses.append(step.loss)
            trained.records.append(step.record)
            trained.figures.append(session.evicted)
        trained.peak_reserved = device.peak_reserved_bytes()
    return trained


@pytest.fixture(scope="module")
def known():
    return {}


@pytest.fixture
def plain(known, name):
    if name not in known:
        known[name] = train(TASKS[name](), "baseline")
        assert not known[name].failure
    return known[name]


def assert_conforms(found, plain, budget):
    """Every finished step is plain training's, and memory stays within the budget."""
    assert found.losses == plain.losses[: len(found.losses)]
    for ours, theirs in zip(found.states, plain.states):
        assert ours.keys() == theirs.keys()
        for key, value in theirs.items():
            assert torch.equal(ours[key], value), key
    assert found.peak_reserved <= budget
    if found.failure:
        assert "budget" in found.failure or "times" in found.failure
    else:
        assert len(found.losses) == STEPS
        assert {record.outcome for record in found.records} == {"ok"}


def counts(found):
    return {
        name: sum(getattr(figures, name) for figures in found.figures)
        for name in ("num_evictions", "num_rematerializations", "swapped_bytes")
    }


def cases(tiny, small):
    """Return what to try on each tiny task, and on each small one where there are minutes."""
    return [
        *((name, value) for name in TINY for value in tiny),
        *(pytest.param(name, v, marks=pytest.mark.slow) for name in SMALL for v in small),
    ]


@pytest.mark.parametrize(("name", "share"), cases(QUICK_SHARES, SHARES))
def test_dtr_trains_as_the_baseline_does(name, share, plain, report):
    budget = int(share * plain.peak_reserved)
    found = train(TASKS[name](), "dtr", budget)
    assert_conforms(found, plain, budget)
    done = counts(found)
    report(task=name, share=share, failure=found.failure or "none", **done)
    if not found.failure:
        assert done["num_evictions"] > 0
        assert done["num_rematerializations"] > 0
        assert done["swapped_bytes"] == 0
    # What goes is decided by measured times: on a busy machine a tight budget may not do.
    assert not found.failure or share <= TIGHT


@pytest.mark.parametrize(
    ("name", "heuristic"), [*(("conv net tiny", h) for h in HEURISTICS), *cases([], HEURISTICS)]
)
def test_every_heuristic_trains_as_the_baseline_does(name, heuristic, plain, report):
    budget = int(TIGHT * plain.peak_reserved)
    found = train(TASKS[name](), "dtr", budget, heuristic=heuristic, thrash_limit=None)
    assert_conforms(found, plain, budget)
    report(task=name, heuristic=heuristic, failure=found.failure or "none", **counts(found))
    assert found.failure or counts(found)["num_evictions"] > 0


@pytest.mark.parametrize(
    ("name", "case"),
    cases(
        [(actions, TIGHT) for actions in ACTIONS],
        [(actions, share) for actions in ACTIONS for share in SHARES],
    ),
)
def test_delta_trains_as_the_baseline_does(name, case, plain, report):
    actions, share = case
    budget = int(share * plain.peak_reserved)
    found = train(TASKS[name](), "delta", budget, actions=actions, reserve="25%")
    assert_conforms(found, plain, budget)
    done = counts(found)
    report(task=name, actions=actions, share=share, failure=found.failure or "none", **done)
    if not found.failure:
        assert done["num_evictions"] > 0
        assert done["num_rematerializations"] > 0 or actions != "recompute"
        assert done["swapped_bytes"] > 0 or actions != "swap"
        assert done["swapped_bytes"] == 0 or actions != "recompute"
        assert done["num_rematerializations"] == 0 or actions != "swap"


@pytest.mark.parametrize(
    ("name", "case"), cases([], [(f, prefetch) for f in FILTERS for prefetch in ("on", "off")])
)
def test_every_filter_trains_as_the_baseline_does(name, case, plain):
    budget = int(TIGHT * plain.peak_reserved)
    options = {"filter": case[0], "prefetch": case[1], "reserve": "25%", "thrash_limit": None}
    found = train(TASKS[name](), "delta", budget, **options)
    assert_conforms(found, plain, budget)


@pytest.mark.parametrize("planner", ["dtr", "delta"])
@pytest.mark.parametrize("name", ["conv net tiny"])
def test_without_a_budget_nothing_is_evicted(name, planner, plain):
    found = train(TASKS[name](), planner)
    assert_conforms(found, plain, plain.peak_reserved)
    assert set(counts(found).values()) == {0}
