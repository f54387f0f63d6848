"""Simulated steps that are replayed are the steps that would have been taken."""

from __future__ import annotations

import dataclasses

import pytest

from mimose.devices.sim.device import SimDevice
from mimose.handle import attach
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.remembered import StepMemory
from mimose_bench.experiments.run import task_of

MIB = 1 << 20


def train(memory, planner="mimose", budget=None, **options):
    """Return the steps' records (None where refused) and errors, and the device's figures."""
    settings = {"scale": "tiny", "data": "synthetic", "steps": 40, "device": "sim:v100"}
    config = RunConfig(**settings | {"planner": planner, "budget": budget} | options)
    device = SimDevice("v100")
    try:
        task = task_of(config)
        model = device.build(task.build_model)
        device.adopt(model)
        with attach(model, budget, planner, device=device, enforce=True) as handle:
            trainer = Trainer(task, model, handle, config, memory)
            steps = list(trainer.steps(task.batches(config.steps)))
        figures = device.stats()
        return (
            [None if s.record is None else dataclasses.replace(s.record) for s in steps],
            [(s.error, s.in_optimizer) for s in steps],
            {name: getattr(figures, name) for name, _ in figures._fields_},
            device.now(),
        )
    finally:
        device.close()


@pytest.mark.parametrize(
    ("planner", "budget", "zero_grad"),
    [
        ("baseline", None, "keep"),
        ("full", None, "free"),
        ("mimose", 36 * MIB, "free"),
        pytest.param("baseline", None, "free", marks=pytest.mark.slow),
        pytest.param("full", None, "keep", marks=pytest.mark.slow),
        pytest.param("mimose", 36 * MIB, "keep", marks=pytest.mark.slow),
        pytest.param("mimose", 44 * MIB, "keep", marks=pytest.mark.slow),
        pytest.param("mimose", 44 * MIB, "free", marks=pytest.mark.slow),
    ],
)
def test_remembered_runs_are_identical_to_cold_ones(planner, budget, zero_grad):
    cold = train(None, planner, budget, zero_grad=zero_grad)
    memory = StepMemory()
    learning = train(memory, planner, budget, zero_grad=zero_grad)
    taken = memory.num_taken
    remembered = train(memory, planner, budget, zero_grad=zero_grad)
    assert learning == cold
    assert remembered == cold
    # Only steps that measure blocks, and the first, which makes optimizer state, are taken again.
    assert memory.num_taken - taken <= 1
    steps = [record for record in cold[0] if record.phase != "sheltered"]
    assert memory.num_replayed >= len(steps) - 1


def test_a_replay_runs_out_of_memory_as_the_step_would():
    memory = StepMemory()
    train(memory, "baseline", None)
    budget = 34 * MIB
    cold = train(None, "baseline", budget, on_oom="skip")
    remembered = train(memory, "baseline", budget, on_oom="skip")
    failed = [error for error, _ in cold[1] if error]
    assert 0 < len(failed) < 40
    assert [bool(error) for error, _ in remembered[1]] == [bool(error) for error, _ in cold[1]]
    assert [in_optimizer for _, in_optimizer in remembered[1]] == [False] * 40
    assert remembered[0] == cold[0]
    # The message's wording differs, the figures do not.
    assert remembered[2] == cold[2]


def test_runs_share_a_memory_whatever_their_planner_but_not_another_models():
    memory = StepMemory()
    train(memory, "baseline", None, steps=20)
    known, replayed = len(memory), memory.num_replayed
    # With budget in plenty it keeps every block once it has measured.
    records, _, _, _ = train(memory, "mimose", 1 << 30, steps=20)
    responsive = [r for r in records if r.phase == "responsive"]
    assert len(responsive) >= 9
    assert memory.num_replayed - replayed == len(responsive)
    assert len(memory) == known
    train(memory, "baseline", None, steps=20, attention="sdpa")
    assert len(memory) > known
