"""The table of all planners, on a workload small enough for a test."""

from functools import partial

import pytest
import torch
import transformers

from mimose_bench.experiments.figures import static
from mimose_bench.experiments.figures.session import opened
from mimose_bench.experiments.figures.workloads import Workload

GIB = 1 << 30


def narrow():
    config = transformers.BertConfig(
        attn_implementation="eager",
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=256,
        num_hidden_layers=6,
        vocab_size=1000,
    )
    return transformers.BertForSequenceClassification(config)


@pytest.fixture
def workload(monkeypatch):
    small = Workload(
        name="TC-Bert",
        dataset="GLUE-QQP",
        batch_size=64,
        longest=332,
        new_model=narrow,
        labels=lambda samples: {"labels": torch.zeros(samples, dtype=torch.long)},
    )
    monkeypatch.setattr(static, "WORKLOADS", (small,))
    # Half of what keeping everything takes, and more than that.
    monkeypatch.setattr(static, "budgets", lambda task: (2 * GIB, 5 * GIB))
    return small


def test_every_planner_is_measured_under_every_budget(workload):
    result = static.check(partial(opened, "sim:v100"), stride=12)
    *others, peak = result.criteria
    assert all(criterion.passed for criterion in others), others
    assert peak.value < 0.03  # Of so narrow a model, with selective recomputation.
    times, errors = result.tables
    by_planner = {row[0]: row[1:] for row in times.rows}
    assert set(by_planner) == {*static.PLANNERS, "mimose", "paper's Sublinear", "paper's Mimose"}
    assert len(errors.rows) == len(static.PLANNERS)
    for name in static.PLANNERS:
        few, many = by_planner[name]
        assert float(many) >= 0.999, name
        if not few.startswith("needs"):
            assert float(few) >= float(many) - 1e-3, name
    assert float(by_planner["rotor"][1]) == pytest.approx(1.0, abs=2e-3)
