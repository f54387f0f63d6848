"""A planner changes memory and time, and not one bit of what is learned. Dropout is on."""

from dataclasses import dataclass

import pytest
import torch

STEPS = 50
FIXED = "recompute 1-3 | recompute 6-9 (keep 6 | recompute 7-8 | keep 9) | recompute 11"


@dataclass
class Trained:
    """What one run of 50 steps leaves behind; gradients are those of the last step."""

    losses: list
    gradients: dict
    parameters: dict
    records: list


def train(lab, planner, budget=None, **options):
    trainer = lab.trainer(planner, budget, enforce=budget is not None, **options)
    gradients = {}

    def keep_gradients(*_):
        with lab.device.host_memory():
            gradients.update({n: p.grad.clone() for n, p in trainer.model.named_parameters()})

    trainer.optimizer.register_step_pre_hook(keep_gradients)
    steps = list(trainer.steps(lab.task.batches(STEPS)))
    assert [s.error for s in steps] == [None] * STEPS
    parameters = {n: p.detach().clone() for n, p in trainer.model.named_parameters()}
    return Trained([s.loss for s in steps], gradients, parameters, [s.record for s in steps])


@pytest.fixture(scope="module")
def trained_once():
    return {}


@pytest.fixture
def baseline(lab, trained_once):
    if not trained_once:
        trained_once["baseline"] = train(lab, "baseline")
        # The model of this run stays out of the next one's memory.
        lab.close()
    return trained_once["baseline"]


def assert_equal(trained, baseline):
    assert trained.losses == baseline.losses
    for name, expected in baseline.gradients.items():
        assert torch.equal(trained.gradients[name], expected), name
    for name, expected in baseline.parameters.items():
        assert torch.equal(trained.parameters[name], expected), name


def test_full_recomputation_trains_as_the_baseline_does(lab, baseline):
    full = train(lab, "full")
    assert {r.plan.num_recomputed for r in full.records} == {12}
    assert_equal(full, baseline)


def test_mimose_trains_as_the_baseline_does(lab, bounds, baseline):
    mimose = train(lab, "mimose", bounds.budget_at(0.5))
    assert {r.phase for r in mimose.records} == {"sheltered", "responsive"}
    plans = {str(r.plan) for r in mimose.records if r.phase == "responsive" and r.plan.regions}
    assert len(plans) > 1
    assert_equal(mimose, baseline)


def test_regions_of_several_blocks_train_as_the_baseline_does(lab, baseline):
    fixed = train(lab, "fixed", plan=FIXED)
    # The first step cannot know yet where a region may span.
    assert all(r.plan.spans_blocks for r in fixed.records[2:])
    assert_equal(fixed, baseline)


@pytest.mark.slow  # As test_evicting does on two models, for more steps.
def test_evicting_tensors_trains_as_the_baseline_does(lab, bounds, baseline):
    # Less its reserve of a quarter it has little beyond parameters and gradients, which take most
    # of this model's memory: at half the way between the bounds it runs out in the second step.
    dtr = train(lab, "dtr", bounds.budget_at(0.75))
    assert sum(r.extra["num_evictions"] for r in dtr.records) > 0
    assert {r.outcome for r in dtr.records} == {"ok"}
    assert_equal(dtr, baseline)


def test_the_losses_compared_here_fall_and_differ_without_the_seed(lab, baseline):
    assert len(set(baseline.losses)) == STEPS
    trainer = lab.trainer("baseline")
    torch.manual_seed(lab.config.seed + 1)
    other = [s.loss for s in trainer.steps(lab.task.batches(2))]
    assert other != baseline.losses[:2]
