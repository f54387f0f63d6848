"""How the paper's Fig 5 is judged: two readings, the budget calibrated on left out."""

from types import SimpleNamespace

import pytest

from mimose_bench.experiments.figures import fig5


def course(bar, factor=1.0):
    """Return a run whose parts are the bar's times a factor, forward and backward as they are."""
    whole, *others = bar.parts
    seconds = [whole, *(factor * other for other in others)]
    return SimpleNamespace(
        records=[None],
        failure="",
        parts=lambda: {name: ms / 1e3 for name, ms in zip(fig5.PARTS.values(), seconds)},
    )


def judge(factors, own):
    runs = [course(bar, factor) for bar, factor in zip(fig5.BARS, factors)]
    readings = {"one": runs, "other": [course(bar) for bar in fig5.BARS]}
    rows = [SimpleNamespace(unit="GB", error=0.0)]
    criteria = {c.name: c for c in fig5._criteria(readings, rows, own)}
    return criteria, fig5._claims(readings, own, "simulated x")


def test_the_budget_calibrated_on_judges_neither_maintaining_nor_planning():
    factors = (1.0, 3.0, 1.0, 1.0)  # 7 GB is far off.
    criteria, claims = judge(factors, own=("fig5-dtr-7gb",))
    for part in ("cost maintaining", "planning"):
        judged = criteria[f"{part} over forward and backward, mean difference, one"]
        assert judged.value == pytest.approx(0, abs=1e-9)
    assert criteria["recomputation over forward and backward, mean difference, one"].value > 0
    whole = criteria["whole over forward and backward, mean error, one"].value
    assert whole == pytest.approx(0, abs=1e-9)
    assert {claim.verdict for claim in claims} == {"holds"}
    criteria, claims = judge(factors, own=())
    part = "cost maintaining over forward and backward, mean difference"
    assert criteria[f"{part}, one"].value == pytest.approx(2 * 136.3 / 422.7 / 4)
    assert criteria[f"{part}, other"].value == pytest.approx(0, abs=1e-9)
    assert "outside" in {claim.verdict for claim in claims}


def test_without_calibration_the_claims_are_the_papers_own_figures():
    _, claims = judge((1.0,) * 4, own=())
    expected = [claim.expected for claim in claims[:4]]
    printed = [value for each in fig5.PRINTED.values() for value in each.values()]
    assert expected == pytest.approx(printed, abs=6e-3)  # Read off the drawing


def test_the_published_overhead_has_two_ends():
    verdicts = {
        overhead: [claim.verdict for claim in fig5._overhead_claims(overhead, "simulated x")]
        for overhead in (0.05, 0.1, 0.3)
    }
    assert verdicts == {
        0.05: ["outside", "holds"],
        0.1: ["holds", "holds"],
        0.3: ["holds", "outside"],
    }
    assert {c.version for c in fig5._overhead_claims(0.1, "simulated x")} == {"other"}
