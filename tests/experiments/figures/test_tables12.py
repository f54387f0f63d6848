"""Tables I and II: features by class, parameters and batches."""

from dataclasses import replace

import torch
from torch import nn

from mimose.planners import PLANNERS
from mimose_bench.experiments.figures import tables12
from mimose_bench.experiments.tasks import TASKS, TaskOptions, make_task

LABEL = "simulated v100-32gb"


def counted():
    return {
        task: tables12.Counted(round(paper.parameters or 4e7), paper.batch_size)
        for task, paper in tables12.TRAINED.items()
    }


def test_planners_have_the_papers_features():
    result = tables12.judge(counted(), LABEL)
    assert result.passed
    for planner in PLANNERS:
        assert tables12.features(planner).granularity in ("block", "tensor")
    assert tables12.features("mimose").dynamic_input
    assert not tables12.features("rotor").dynamic_input
    assert not tables12.features("baseline").dynamic_input
    assert tables12.features("delta").dynamic_graph


def test_a_model_of_another_size_and_another_batch_fail_by_name():
    found = counted()
    found["qa-bert"] = replace(found["qa-bert"], parameters=round(110e6 * 1.06))
    found["od-r50"] = replace(found["od-r50"], batch_size=4)
    outside = [c.text for c in tables12.judge(found, LABEL).claims if c.verdict == "outside"]
    assert outside == ["QA-Bert: parameters of BERT-base", "OD-R50: samples in a batch"]


def test_ties_count_once_and_batches_are_the_tasks_own():
    model = nn.ModuleList([nn.Linear(3, 5, bias=False), nn.Linear(3, 5, bias=False)])
    model[1].weight = model[0].weight
    assert tables12.count_parameters(model) == 15
    for name, paper in tables12.TRAINED.items():
        task = make_task(name, TaskOptions(scale="full", data="synthetic"))
        assert task.batch_size == paper.batch_size, name
    assert set(tables12.TRAINED) <= set(TASKS)
    with torch.device("meta"):
        model = make_task("qa-bert", TaskOptions(scale="tiny", data="synthetic")).build_model()
    assert tables12.count_parameters(model) > 0
