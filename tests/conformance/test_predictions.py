"""How close the estimator and the peak model come to what is measured."""

import random
import statistics

import pytest

from mimose.costs import predict_peak
from mimose.plan import Plan
from mimose.planners.fixed import Fixed
from mimose.planners.mimose.knowledge import Knowledge

SHELTERED = 10
SHARES = (0.0, 0.2, 0.5, 0.8, 1.0)


@pytest.fixture
def trainer(lab):
    """A model whose gradients and optimizer state are there, as from the third step on."""
    trainer = lab.trainer("baseline")
    for length in (32, 48):
        lab.collect(trainer, length)
    return trainer


def learn(lab, trainer, lengths):
    """Return what sheltered steps of these lengths teach, and the model's facts."""
    records = [lab.collect(trainer, length) for length in lengths]
    info = trainer.handle.planner.info
    knowledge = Knowledge(info.block_names)
    for record in records:
        knowledge.learn(record, info)
    return knowledge, info


def unseen(lengths, count, seed=3):
    """Return lengths within the range of ``lengths`` that are not among them."""
    others = [x for x in range(min(lengths), max(lengths) + 1) if x not in lengths]
    return random.Random(seed).sample(others, count)


def test_activations_of_unseen_sizes_are_predicted_within_half_a_percent(lab, trainer, report):
    lengths = lab.lengths(SHELTERED)
    knowledge, info = learn(lab, trainer, lengths)
    estimator = knowledge.estimator(True, info)
    errors = []
    for length in unseen(lengths, 12):
        record = lab.collect(trainer, length)
        measured = sum(b.activation_bytes for b in record.collected.blocks)
        predicted = sum(estimator.predict(record.size).activation)
        errors.append(abs(predicted / measured - 1))
    mean = statistics.mean(errors)
    report(estimator_mean_error=mean, estimator_max_error=max(errors), sizes=len(set(lengths)))
    assert mean <= 0.005


def test_peaks_of_mixed_plans_are_predicted(lab, trainer, report):
    lengths = lab.lengths(SHELTERED)
    knowledge, info = learn(lab, trainer, lengths)
    estimator = knowledge.estimator(True, info)
    rng = random.Random(1)
    errors = []
    for trial, length in enumerate(unseen(lengths, 25)):
        share = SHARES[trial % len(SHARES)]
        chosen = [b for b in range(info.num_blocks) if rng.random() < share]
        plan = Plan.recompute_each(info.num_blocks, chosen)
        record = lab.take(trainer, Fixed(plan), length)
        assert record.plan == plan
        predicted = predict_peak(estimator.predict(record.size), plan, info, record.situation)
        errors.append(abs(predicted.bytes / record.peak_allocated_bytes - 1))
    mean = statistics.mean(errors)
    report(peak_mean_error=mean, peak_max_error=max(errors), plans=len(errors))
    assert mean <= 0.01
    assert max(errors) <= 0.03
