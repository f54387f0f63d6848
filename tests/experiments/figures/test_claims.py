"""Verdicts on single claims."""

from __future__ import annotations

from typing import Any

import pytest

from mimose_bench.experiments.figures import text
from mimose_bench.experiments.figures.claims import Claim
from mimose_bench.experiments.figures.result import Reproduction


def claim(**given: Any) -> Claim:
    facts: dict[str, Any] = {
        "text": "Sublinear takes longer",
        "source": "section VI",
        "version": "ipdps",
        "unit": "x",
        "expected": 1.18,
        "obtained": 1.2,
        "device_label": "simulated v100-32gb",
        "tolerance": 0.05,
    }
    return Claim(**(facts | given))


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ({}, "holds"),
        ({"obtained": 1.24}, "outside"),
        ({"obtained": 1.12}, "outside"),
        ({"obtained": 1.12, "bound": "at most"}, "holds"),
        ({"obtained": 1.30, "bound": "at least"}, "holds"),
        ({"obtained": 1.24, "tolerance": 0.1, "relative": True}, "holds"),
        ({"obtained": None}, "not measured"),
        ({"tolerance": None, "obtained": 9.0}, "reported"),
        ({"interval": (1.19, 1.21)}, "holds"),
        ({"interval": (1.19, 1.25)}, "undecided"),
        ({"obtained": 1.24, "interval": (1.22, 1.26)}, "undecided"),
        ({"obtained": 1.26, "interval": (1.24, 1.28)}, "outside"),
    ],
)
def test_a_verdict_needs_the_whole_interval_on_one_side(given, verdict):
    assert claim(**given).verdict == verdict


def test_what_is_outside_fails_the_figure_and_what_is_undecided_is_named():
    def figure(*claims: Claim) -> Reproduction:
        return Reproduction(
            name="fig10", title="t", source="s", device_label="d", rows=(), claims=claims
        )

    assert figure(claim()).passed
    assert not figure(claim(), claim(obtained=2.0)).passed
    unsure = figure(claim(interval=(1.1, 1.3)))
    assert unsure.passed
    assert text.verdict(unsure) == "fig10: undecided: Sublinear takes longer"
    shown = text.describe(figure(claim(interval=(1.19, 1.21), note="of three tasks")))
    assert all(part in shown for part in ("1.200 (1.190 to 1.210)", "± 0.050", "of three tasks"))
