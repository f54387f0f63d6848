"""Architectures of ``transformers`` under a budget: the same training, less memory, no trace."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from zoo_cases import CASES
from zoo_conformance import EXACT, PLANNERS, quietly, trace_of

TABLE = Path(__file__).resolve().parents[2] / "docs" / "zoo.md"


def cases():
    for case in CASES:
        for planner in PLANNERS:
            marks = [] if case.quick and planner == PLANNERS[0] else [pytest.mark.slow]
            yield pytest.param(case, planner, id=f"{case.name}-{planner}", marks=marks)


@pytest.mark.parametrize(("case", "planner"), [*cases()])
def test_it_trains_the_same_in_less_memory(case, planner):
    outcome = quietly(case, planner)
    plain, attached = outcome.plain, outcome.attached
    assert attached.losses == plain.losses
    assert attached.gradients == plain.gradients
    assert attached.state == plain.state
    assert attached.trace == plain.trace
    assert attached.trace["classes"]
    assert outcome.violations == 0
    assert attached.peak_reserved <= outcome.budget_bytes
    assert 2 * outcome.saving >= len(attached.responsive) > 0
    assert outcome.peak_ratio < 1
    errors = outcome.prediction_errors
    assert min(errors) > -EXACT
    if case.exact:
        assert max(errors) < EXACT


def test_the_table_has_a_row_for_each():
    rows = re.findall(r"^\| ([^|]+?) \| `", TABLE.read_text(encoding="utf-8"), re.M)
    assert rows == [case.name for case in CASES for _ in PLANNERS]


def test_what_is_left_behind_is_seen():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout())
    before = trace_of(model)
    assert trace_of(model) == before
    handle = model[0].register_forward_hook(lambda *_: None)
    assert trace_of(model) != before
    handle.remove()
    assert trace_of(model) == before
    model[1].forward = model[1].forward
    assert trace_of(model) != before
