"""What steps have taken, as evidence against a refusal."""

import pytest

from mimose.plan import Plan
from mimose.planners.mimose.fitted import Fitted
from mimose.records import Situation, StepRecord

BUDGET = 1000


def note(fitted, size, peak, resident=100, reserved=900, outcome="ok", **state):
    situation = Situation(resident, **state)
    record = StepRecord(size, Plan.recompute_each(2), "sheltered", situation)
    record.outcome = outcome
    record.peak_allocated_bytes, record.peak_reserved_bytes = peak, reserved
    fitted.note(record, BUDGET)


def test_a_step_bounds_smaller_ones_and_longer_ones_by_their_squares():
    fitted = Fitted()
    assert fitted.most_bytes((4, 100), Situation(0)) is None
    note(fitted, (4, 100), 500)
    for size, expected in (
        ((4, 100), 400),
        ((2, 50), 400),
        ((8, 100), 800),
        ((4, 150), 900),
        ((8, 150), 1800),
    ):
        assert fitted.most_bytes(size, Situation(0)) == pytest.approx(expected)
    assert fitted.most_bytes((4, 100, 100), Situation(0)) is None
    note(fitted, (4, 140), 550)
    assert fitted.most_bytes((4, 150), Situation(0)) == pytest.approx(450 * (150 / 140) ** 2)


@pytest.mark.parametrize(
    "changes", [{"outcome": "oom"}, {"outcome": "retried"}, {"reserved": 1001}, {"peak": None}]
)
def test_steps_that_did_not_keep_to_the_budget_are_no_evidence(changes):
    fitted = Fitted()
    note(fitted, (4, 100), **{"peak": 500, **changes})
    assert fitted.most_bytes((4, 100), Situation(0)) is None


def test_a_step_that_found_more_there_already_bounds_none_that_has_to_allocate_it():
    fitted = Fitted()
    note(fitted, (4, 100), 500)
    assert fitted.most_bytes((4, 100), Situation(0, grads_resident=False)) is None
    assert fitted.most_bytes((4, 100), Situation(0, optimizer_ready=False)) is None
    assert fitted.most_bytes((4, 100), Situation(0, signature="bf16")) is None
    note(fitted, (4, 100), 700, grads_resident=False, optimizer_ready=False)
    assert fitted.most_bytes((4, 100), Situation(0, grads_resident=False)) == 600
    assert fitted.most_bytes((4, 100), Situation(0)) == 400
    fitted.forget()
    assert fitted.most_bytes((4, 100), Situation(0)) is None


def test_a_step_shows_that_what_is_no_larger_fits():
    fitted = Fitted()
    note(fitted, (4, 100), 500, reserved=900, signature="fp32")

    def shown(size, peak=500, signature="fp32", budget=BUDGET):
        return fitted.has_shown(size, peak, signature, budget)

    assert shown((4, 100))
    assert shown((2, 60), 400)
    assert shown((4, 100), 505)
    # More is resident than there was then: an optimizer's state, say.
    assert not shown((4, 100), 520)
    assert not shown((4, 101))
    assert not shown((5, 100))
    assert not shown((4, 100, 100))
    assert not shown((4, 100), signature="bf16")
    # A lower budget than what it reserved.
    assert not shown((4, 100), budget=899)
    for length in range(90):
        note(fitted, (4, length + 1), 300, signature="fp32")
    assert shown((4, 100))


def test_a_step_beyond_the_budget_shows_nothing():
    fitted = Fitted()
    note(fitted, (4, 100), 500, reserved=BUDGET + 1)
    assert not fitted.has_shown((4, 100), 400, Situation(0).signature, BUDGET)
