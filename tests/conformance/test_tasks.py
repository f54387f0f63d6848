"""Every task of the paper, at its smallest scale: no planner may change a bit of it."""

import statistics
from dataclasses import dataclass

import pytest
import torch

from mimose.devices import open_device
from mimose_bench.experiments.bounds import measure_bounds
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.run import task_of
from mimose_bench.experiments.tasks import TASKS

STEPS = 30
MEASURING = 10
SEGMENT = 2 << 20
LEARNING_STEPS = 200
KINDS = ("allocated", "reserved")
BATCH_SIZES = {"od": (8, 12, 16), "ic": (None, 10, 14, 18, 24)}


@dataclass
class Trained:
    """What a run leaves behind."""

    losses: list
    records: list
    state: dict
    allocated: int
    reserved: int


SAME_KIND = {"tc-bert": "qa-bert", "mc-roberta": "qa-bert", "od-r101": "od-r50"}
"""Tasks whose model is another one's in all that matters here: they wait for ``make test-all``."""


@pytest.fixture(
    params=[
        pytest.param(task, marks=pytest.mark.slow if task in SAME_KIND else ()) for task in TASKS
    ]
)
def task(request):
    return request.param


def config_of(task, batch_size):
    """Return a run whose largest batch comes once Mimose no longer measures."""
    for seed in range(100):
        config = RunConfig(
            task=task,
            scale="tiny",
            data="synthetic",
            device="cpu",
            threads=1,
            seed=seed,
            batch_size=batch_size,
        )
        sizes = list(task_of(config).sizes(STEPS))
        if max(sizes) in sizes[MEASURING:] and max(sizes) not in sizes[:MEASURING]:
            return config
    raise AssertionError(f"no seed puts the largest batch of {task} late")


@pytest.fixture
def opener(make_lab):
    """Return what makes a function that opens a lab for a run."""

    def opener(config):
        def opened():
            device = open_device("cpu", reset_peaks=True)
            return make_lab(device, task_of(config), config)

        return opened

    return opener


def tight_budget(task, opener):
    """Return a run and a budget that it cannot keep without recomputing."""
    # A few small images are all one segment's, whatever is recomputed. How many are not depends on
    # what convolutions take beside their outputs, which differs between CPUs: so it is measured.
    for batch_size in BATCH_SIZES.get(task[:2], (None,)):
        config = config_of(task, batch_size)
        lab = opener(config)()
        bounds = measure_bounds(config, lab.task, lab.device, max(lab.task.sizes(STEPS)))
        lab.device.close()
        # Batches of several sizes reserve a segment more than the largest by itself.
        budget = max(bounds.budget_at(0.25), bounds.lower_bytes + SEGMENT)
        if budget < bounds.upper_bytes:
            return config, budget
    raise AssertionError(f"no batch of {task} makes recomputing worth a segment")


def train(open_lab, planner, budget=None, steps=STEPS):
    lab = open_lab()
    try:
        trainer = lab.trainer(planner, budget, enforce=budget is not None)
        taken = list(trainer.steps(lab.task.batches(steps)))
        assert [s.error for s in taken] == [None] * steps
        assert not lab.violations(taken)
        with lab.device.host_memory():
            state = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    finally:
        lab.close()
        lab.device.close()
    records = [s.record for s in taken]
    peaks = [max(getattr(r, f"peak_{kind}_bytes") for r in records) for kind in KINDS]
    return Trained([s.loss for s in taken], records, state, *peaks)


def test_no_planner_changes_a_loss_or_a_weight(task, opener, report):
    config, budget = tight_budget(task, opener)
    open_lab = opener(config)
    baseline = train(open_lab, "baseline")
    full = train(open_lab, "full")
    mimose = train(open_lab, "mimose", budget)
    for trained in (full, mimose):
        assert trained.losses == baseline.losses
        for name, expected in baseline.state.items():  # Batch norm's statistics among them.
            assert torch.equal(trained.state[name], expected), name
    assert full.allocated < baseline.allocated
    assert mimose.reserved <= budget
    responsive = [r for r in mimose.records if r.phase == "responsive"]
    assert any(r.plan.num_recomputed for r in responsive)
    report(
        task=config.task,
        blocks=full.records[0].plan.num_blocks,
        baseline_MiB=baseline.allocated / 2**20,
        full_MiB=full.allocated / 2**20,
        mimose_MiB=mimose.allocated / 2**20,
        reserved_MiB=mimose.reserved / 2**20,
        budget_MiB=budget / 2**20,
        recomputed=sum(r.plan.num_recomputed for r in responsive) / len(responsive),
    )


@pytest.mark.slow
def test_what_is_generated_can_be_learnt(task, opener, report):
    config = config_of(task, BATCH_SIZES.get(task[:2], (None,))[0])
    trained = train(opener(config), "baseline", steps=LEARNING_STEPS)
    first, last = map(statistics.median, (trained.losses[:40], trained.losses[-40:]))
    report(task=config.task, first=first, last=last)
    assert last < 0.9 * first
