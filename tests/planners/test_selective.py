"""The planners that recompute the same at every size: attention cores alone, and every block."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import transformers

import mimose
from mimose.costs import Infeasible
from mimose.devices import open_device
from mimose.devices.base import Device
from mimose.plan import Plan
from mimose.planners.full import Full
from mimose.planners.selective import Selective
from mimose.records import ModelInfo, Situation


@pytest.fixture(params=["cpu", "sim:v100"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    opened = open_device(request.param)
    yield opened
    opened.close()


def bert() -> torch.nn.Module:
    config = transformers.BertConfig(
        vocab_size=100,
        hidden_size=64,
        num_attention_heads=2,
        intermediate_size=256,
        num_hidden_layers=4,
        attn_implementation="eager",
    )
    return transformers.BertForSequenceClassification(config).train()


def info(count: int, **facts: Any) -> ModelInfo:
    return ModelInfo(tuple(f"layer.{i}" for i in range(count)), exact=True, **facts)


def steps(device: Device, planner: Any, profiled: bool, budget: int | None = None) -> Any:
    model = device.build(bert)
    device.adopt(model)
    batch = device.put(
        {"input_ids": torch.randint(0, 100, (8, 128)), "labels": torch.zeros(8, dtype=torch.long)}
    )
    with mimose.attach(model, budget, planner, device=device) as handle:
        solution = None
        if profiled:
            solution = handle.profile(lambda: model(**batch).loss.backward(), (8, 128))
        for _ in range(2):
            handle.begin((8, 128))
            model(**batch).loss.backward()
            model.zero_grad()
            record = handle.end()
        return solution, record


@pytest.mark.parametrize("profiled", [True, False])
def test_selective_keeps_all_but_the_cores(profiled: bool, device: Device) -> None:
    solution, record = steps(device, "selective", profiled)
    assert record.plan == Plan.parse("selective 0-3")
    _, plain = steps(device, "baseline", profiled=False)
    scores = 4 * 8 * 2 * 128 * 128 * 4
    assert plain.peak_allocated_bytes - record.peak_allocated_bytes > scores
    if not profiled:
        assert record.predicted_peak_bytes is None
        return
    assert solution.plan == record.plan
    assert record.predicted_peak_bytes == pytest.approx(record.peak_allocated_bytes, rel=0.025)
    assert solution.baseline_seconds < solution.predicted_seconds < 1.5 * solution.baseline_seconds
    assert Selective().state_dict() == {"solution": None}


def test_what_does_not_fit_is_refused_beforehand() -> None:
    device = open_device("sim:v100")
    try:
        solution, _ = steps(device, "selective", profiled=True)
        assert solution is not None
        with pytest.raises(Infeasible, match="needs"):
            steps(device, "selective", True, solution.predicted_peak_bytes - (1 << 20))
    finally:
        device.close()


def test_full_says_what_it_needs(device: Device) -> None:
    solution, record = steps(device, "full", profiled=True)
    assert solution.plan == record.plan == Plan.recompute_each(4)
    assert record.predicted_peak_bytes == pytest.approx(record.peak_allocated_bytes, rel=0.005)
    assert solution.predicted_seconds > solution.baseline_seconds


def test_full_every_so_many_blocks(device: Device) -> None:
    _, record = steps(device, Full(every="3"), profiled=True)
    assert record.plan == Plan.parse("recompute 0-2 | recompute 3")


@pytest.mark.parametrize(
    ("every", "facts", "text"),
    [
        (1, {}, "recompute each 0-6"),
        (3, {}, "recompute 0-2 | recompute 3-5 | recompute 6"),
        (9, {}, "recompute 0-6"),
        (
            3,
            {"cuts": (1, 5)},
            "recompute 0 | recompute 1-2 | recompute 3-4 | recompute 5 | recompute 6",
        ),
        (
            2,
            {"free": frozenset({0, 3})},
            "keep 0 | recompute 1-2 | keep 3 | recompute 4-5 | recompute 6",
        ),
        (
            2,
            {"keep_only": frozenset({4})},
            "recompute 0-1 | recompute 2-3 | keep 4 | recompute 5-6",
        ),
    ],
)
def test_fulls_plans(every: int, facts: dict[str, Any], text: str) -> None:
    planner = Full(every=every)
    planner.bind(info(7, **facts))
    assert planner.plan((1,), Situation(0)).plan == Plan.parse(text, 7)


def test_every_is_a_number() -> None:
    with pytest.raises(ValueError, match="every must be a whole number"):
        Full(every="often")


def test_selective_leaves_out_what_has_no_core_or_saves_nothing() -> None:
    planner = Selective()
    planner.bind(info(4, free=frozenset({0}), cores=frozenset({0, 1, 3})))
    plan = planner.plan((1,), Situation(0)).plan
    assert plan == Plan.parse("keep 0 | selective 1 | keep 2 | selective 3")
