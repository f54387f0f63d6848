"""The paper's tasks with all dropped that their blocks can make again: the same training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dropper import Dropper

import mimose
from mimose_bench.experiments.tasks import TASKS, TaskOptions, make_task

STEPS = 4
QUICK = ("qa-bert", "ic-resnet50")


def train(name: str, scale: Any, planner: Dropper | None, autocast: bool) -> tuple[Any, Any]:
    task = make_task(name, TaskOptions(scale=scale, data="synthetic", batch_size=2))
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = task.optimizer(model)
    handle = None if planner is None else mimose.attach(model, "8GB", planner=planner)
    torch.manual_seed(1)
    left: list[Any] = []
    for batch in task.batches(STEPS):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = task.loss(model, batch.tensors)
        loss.backward()
        left += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    left += [t.clone() for t in model.state_dict().values()]
    if handle is not None:
        handle.detach()
    return left, handle


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "scale", "autocast"),
    [
        pytest.param(
            name,
            scale,
            autocast,
            marks=()
            if (scale, autocast) == ("tiny", False) and name in QUICK
            else pytest.mark.slow,
        )
        for name in TASKS
        for scale in ("tiny", "small")
        for autocast in (False, True)
    ],
)
def test_a_task(name, scale, autocast):
    plain, _ = train(name, scale, None, autocast)
    planner = Dropper()
    dropped, handle = train(name, scale, planner, autocast)
    remaker = handle._executor.remaker
    assert len(plain) == len(dropped)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(plain, dropped))
    assert remaker.strays == 0
    assert not remaker._proofs._bad
    assert planner.share > 0.3
    assert all(record.plan.remade for record in planner.records[1:])
