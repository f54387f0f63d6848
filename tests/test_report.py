"""What a summary says of steps made by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mimose.plan import Plan
from mimose.records import Situation, StepRecord
from mimose.report import Tally

MB = 1 << 20


def step(allocated: int, reserved: int, phase: str = "responsive", **facts: object) -> StepRecord:
    record = StepRecord(
        size=(2, 8),
        plan=Plan.keep_all(2),
        phase=phase,  # type: ignore[arg-type]
        situation=Situation(0),
        peak_allocated_bytes=allocated * MB,
        peak_reserved_bytes=reserved * MB,
    )
    return replace(record, **facts)  # type: ignore[arg-type]


def told(records: list[StepRecord], budget: int | None = 40 * MB) -> tuple[dict[str, float], str]:
    tally = Tally(budget)
    for record in records:
        tally.add(record)
    return tally.statistics(), "\n".join(tally.lines(2))


def test_steps_beyond_the_budget_count_by_what_was_reserved() -> None:
    figures, text = told([step(30, 38), step(35, 44), step(20, 40), step(50, 60)])
    assert figures["num_violations"] == figures["num_over_budget"] == 2
    assert figures["over_budget_bytes"] == 20 * MB
    assert figures["peak_reserved_bytes"] == 60 * MB
    assert figures["highest_budget_use"] == 1.5
    assert "peak: 50.00 MiB allocated, 60.00 MiB reserved" in text
    assert "budget use: at most 125.0% allocated, 150.0% reserved" in text
    assert "violations: 2 (in 2 more was reserved than the budget, by 20.00 MiB at most)" in text


def test_steps_within_the_budget_are_no_violations() -> None:
    recomputing = step(30, 40, plan=Plan.recompute_each(2))
    figures, text = told([recomputing, step(20, 40)])
    assert figures["num_violations"] == figures["num_over_budget"] == 0
    assert "budget use: 75.0% allocated, the median of the 1 steps that recomputed; at most" in text
    assert text.endswith("violations: 0")


def test_the_median_use_is_not_of_sheltered_steps() -> None:
    again = Plan.recompute_each(2)
    sheltered, bound = step(10, 40, "sheltered", plan=again), step(30, 40, plan=again)
    figures, text = told([sheltered, sheltered, bound])
    assert figures["budget_use"] == 0.75
    assert "use: 75.0% allocated, the median of the 1 steps that recomputed, sheltered" in text
    figures, text = told([sheltered, step(20, 40)])
    assert "budget_use" not in figures
    assert "budget use: at most 50.0% allocated" in text


def test_a_step_that_failed_and_went_over_is_one_violation() -> None:
    figures, text = told([step(50, 60, outcome="retried"), step(1, 2, num_alloc_retries=1)])
    assert figures["num_violations"] == 2
    assert "violations: 2 (in 1 more was reserved than the budget, by 20.00 MiB at most; 2" in text


def test_without_a_budget_nothing_is_beyond_it() -> None:
    figures, text = told([step(50, 60)], budget=None)
    assert figures["num_violations"] == 0
    assert "num_over_budget" not in figures
    assert "budget use" not in text


PLANNED = "off by 10.00% in the median, 10.00% at most"
SHELTERED = (
    "in sheltered steps, which learn it, off by a factor of 3.0 in the median, a factor of 3.0 at "
    "most"
)


@pytest.mark.parametrize(
    ("predicted", "said"),
    [
        ({"sheltered": 30, "responsive": 11}, f"{PLANNED}; {SHELTERED}"),
        ({"sheltered": 30}, SHELTERED),
        ({"responsive": 11}, PLANNED),
    ],
)
def test_predictions_of_sheltered_steps_are_told_apart(
    predicted: dict[str, int], said: str
) -> None:
    steps = [step(10, 20, phase, predicted_peak_bytes=p * MB) for phase, p in predicted.items()]
    assert f"predicted peak: {said}" in told(steps)[1].splitlines()
