"""Under mimose no step needs more than the budget; steps that would are counted."""

import statistics

import pytest

from mimose.planners.mimose.drift import Drift

THREE_BUDGETS = (0.25, 0.5, 0.75)
MIB = 1 << 20


def run(lab, budget, batches, *, enforce=True, **options):
    trainer = lab.trainer("mimose", budget, enforce=enforce, **options)
    return list(trainer.steps(batches))


def check(lab, steps, budget, report):
    violations = lab.violations(steps)
    responsive = lab.recomputing(steps)
    assert responsive
    use = statistics.median(r.peak_allocated_bytes / budget for r in responsive)
    report(
        violations=len(violations),
        recomputing=len(responsive),
        sheltered=sum(s.record.phase == "sheltered" for s in steps if s.record),
        budget_use=use,
    )
    assert [(s.number, s.record and s.record.outcome) for s in violations] == []
    assert max(s.record.peak_reserved_bytes for s in steps) <= budget
    assert use >= 0.65


@pytest.mark.parametrize(
    "enforce",
    [
        pytest.param(True, id="enforced"),
        pytest.param(False, id="free", marks=pytest.mark.slow),
    ],
)
def test_random_lengths_at_one_budget(lab, bounds, report, enforce):
    budget = bounds.budget_at(0.5)
    check(lab, run(lab, budget, lab.task.batches(100), enforce=enforce), budget, report)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("enforce", [True, False], ids=["enforced", "free"])
@pytest.mark.parametrize("share", THREE_BUDGETS)
def test_a_thousand_random_lengths(lab, bounds, report, share, enforce):
    budget = bounds.budget_at(share)
    check(lab, run(lab, budget, lab.task.batches(1000), enforce=enforce), budget, report)


def test_an_estimator_that_predicts_too_little_is_caught(
    lab, bounds, report, predict_less, monkeypatch
):
    # Without what is there against it: the drift correction and the margin.
    monkeypatch.setattr(Drift, "observe", lambda *_, **__: None)
    counts = []
    for share in (0.0, 0.2):
        predict_less(share)
        steps = run(lab, bounds.budget_at(0.5), lab.task.batches(50), margin=0)
        violations = lab.violations(steps)
        counts.append(len(violations))
        assert all(s.record.outcome == "retried" for s in violations)
        assert all(s.record.num_alloc_retries > 0 for s in violations)
        lab.close()
    report(violations_of_a_true_estimator=counts[0], violations_when_a_fifth_less=counts[1])
    assert counts[0] == 0
    assert counts[1] > 0


def test_data_of_one_length_leaves_sheltered_execution(lab, bounds, report):
    steps = run(lab, bounds.budget_at(0.5), (lab.batch(128) for _ in range(40)))
    phases = [s.record.phase for s in steps]
    report(first_responsive_step=phases.index("responsive"))
    assert phases.index("responsive") <= 30
    assert set(phases[30:]) == {"responsive"}
    assert lab.recomputing(steps)
    assert lab.violations(steps) == []


def doubling(lab, steps_before, steps_after):
    for length in lab.lengths(steps_before):
        yield lab.batch(max(8, length // 2))
    for length in lab.lengths(steps_after, seed=8):
        yield lab.batch(length)


@pytest.mark.parametrize(
    ("before", "after"), [(40, 30), pytest.param(300, 300, marks=pytest.mark.slow)]
)
def test_lengths_that_double_break_nothing(lab, bounds, report, before, after):
    steps = run(lab, bounds.budget_at(0.4), doubling(lab, before, after))
    sheltered = [s.number for s in steps if s.record and s.record.phase == "sheltered"]
    report(sheltered_after_doubling=sum(n >= before for n in sheltered))
    assert [s.number for s in lab.violations(steps)] == []
    assert any(n >= before for n in sheltered)
    assert lab.recomputing(steps)


def test_the_least_budget_that_a_refusal_names_does_work(lab, report):
    # Batches in which activations outweigh parameters: the longest needs far more than the rest.
    samples, longest = 12, 128
    batches = [lab.batch(length, samples) for length in (*range(50, 74, 2), longest)]
    trainer = lab.trainer("mimose", int(24.5 * MIB), enforce=True)
    refused = [s for s in trainer.steps(batches) if s.error is not None]
    assert [s.batch.size for s in refused] == [(samples, longest)]
    # Refused before anything was run.
    assert refused[0].record is None
    least = refused[0].least_budget_bytes
    assert least > 24.5 * MIB
    lab.close()
    del trainer
    steps = run(lab, least, batches)
    report(least_budget_mib=least / MIB, violations=len(lab.violations(steps)))
    assert [s.error for s in steps] == [None] * len(batches)
