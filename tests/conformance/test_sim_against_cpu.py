"""The same model and batches, simulated and for real: the same memory, and the same plans."""

from __future__ import annotations

import pytest
import torch

from mimose.devices.cpu import CpuDevice
from mimose.devices.sim.device import SimDevice
from mimose.handle import attach
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.loop import Trainer
from mimose_bench.experiments.run import task_of

MIB = 1 << 20


def train(device, planner, budget, **options):
    """Return the records of a short training run on ``device``."""
    config = RunConfig(data="synthetic", foreach="off", planner=planner, budget=budget, **options)
    try:
        task = task_of(config)
        torch.manual_seed(0)
        model = device.build(task.build_model)
        device.adopt(model)
        with attach(model, budget, planner, device=device, enforce=True) as handle:
            trainer = Trainer(task, model, handle, config)
            steps = list(trainer.steps(task.batches(config.steps)))
    finally:
        device.close()
    assert not [s.error for s in steps if s.error]
    return [s.record for s in steps]


def simulated():
    # With the CPU's float masks of dropout and without cuBLAS's workspace.
    return SimDevice("v100", cuda_kernels=False)


@pytest.mark.parametrize("planner", ["baseline", "full"])
def test_peaks_are_those_of_the_cpu(planner):
    options = {"scale": "tiny", "steps": 6}
    real = train(CpuDevice(), planner, None, **options)
    seen = train(simulated(), planner, None, **options)
    for measured, claimed in zip(real, seen, strict=True):
        assert claimed.size == measured.size
        assert claimed.peak_allocated_bytes == pytest.approx(
            measured.peak_allocated_bytes, rel=0.01
        )


@pytest.mark.parametrize(
    ("scale", "budget", "steps"),
    [("tiny", 12 * MIB, 25), pytest.param("small", 393 * MIB, 30, marks=pytest.mark.slow)],
)
def test_mimose_chooses_the_same_plans(scale, budget, steps):
    options = {"scale": scale, "steps": steps}
    real = train(CpuDevice(), "mimose", budget, **options)
    seen = train(simulated(), "mimose", budget, **options)
    for measured, claimed in zip(real, seen, strict=True):
        assert claimed.phase == measured.phase
        assert claimed.plan == measured.plan
        assert claimed.peak_allocated_bytes == pytest.approx(
            measured.peak_allocated_bytes, rel=0.01
        )
    assert any(0 < r.plan.num_recomputed < r.plan.num_blocks for r in seen)
