"""Planning is charged once, by the device: as measured where time is real, by count elsewhere."""

import pytest
import torch
from torch import nn

import mimose
from mimose.devices.cpu import CpuDevice
from mimose.planners.mimose import Mimose
from mimose.records import Work

SECONDS = {"lookups": 1.0, "estimates": 1e-3, "candidates": 1e-6, "updates": 1e-9}


class CountingClock(CpuDevice):
    """A CPU whose clock moves only by what planning is charged."""

    def __init__(self):
        super().__init__()
        self.clock = 0.0

    def now(self):
        return self.clock

    def charge(self, work, measured_seconds):
        assert measured_seconds >= 0.0
        seconds = sum(getattr(work, unit) * each for unit, each in SECONDS.items())
        self.clock += seconds
        return seconds


class Deciding(Mimose):
    """Counts what it returns, whatever it decides."""

    def plan(self, size, situation):
        decision = super().plan(size, situation)
        self.decided = decision
        return decision

    def observe(self, record):
        self.observed = super().observe(record)
        return self.observed


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)))


def steps(device, count=6):
    """Yield each step's record, its decision's work and its observation's."""
    net = model()
    device.adopt(net)
    planner = Deciding(sheltered=3)
    with mimose.attach(net, "200MB", planner, device=device) as handle:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for number in range(count):
            size = (4, 16 + 2 * (number % 3))
            handle.begin(size)
            inputs = torch.ones(size[0] * size[1], 8)
            handle.run(lambda inputs=inputs: net(inputs).sum().backward())
            optimizer.step()
            record = handle.end()
            optimizer.zero_grad(set_to_none=False)
            yield record, planner.decided.work, planner.observed


def test_a_counting_device_leaves_no_trace_of_the_wall_clock():
    device = CountingClock()
    try:
        seen = 0
        for record, deciding, observing in steps(device):
            estimating = SECONDS["estimates"] * deciding.estimates
            choosing = deciding.lookups + SECONDS["candidates"] * deciding.candidates
            learning = SECONDS["updates"] * observing.updates
            assert record.estimator_seconds == pytest.approx(estimating + learning)
            assert record.scheduler_seconds == pytest.approx(choosing)
            assert record.step_seconds == pytest.approx(estimating + choosing + learning)
            seen += deciding.lookups
        assert seen > 0
    finally:
        device.close()


def test_a_real_device_reports_what_was_measured():
    device = CpuDevice()
    try:
        assert device.charge(Work(lookups=10**9), 1.5e-6) == 1.5e-6
        for record, _, _ in steps(device):
            planning = record.estimator_seconds + record.scheduler_seconds
            assert 0.0 < planning <= record.step_seconds
    finally:
        device.close()
