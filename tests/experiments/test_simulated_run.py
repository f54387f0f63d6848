"""What the harness makes of a simulated device: no loss, a clock with an error, no wall clock."""

from __future__ import annotations

from types import SimpleNamespace

import pandas as pd
import pytest

from mimose.devices.cpu import CpuDevice
from mimose.devices.sim.gpus import ClockError
from mimose_bench.experiments import clock, comparing, tables
from mimose_bench.experiments import run as running
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.reading import load_run
from mimose_bench.plots import breakdown, loss, step_time, style

MIB = 1 << 20
ERROR = ClockError(0.081, 0.149, 7, "published times")
LABEL = "simulated v100-32gb (clock: mean 8 %, max 15 % off 7 published times)"


class Simulated(CpuDevice):
    """The CPU's memory under a clock of its own: a millisecond a reading, a second a lookup."""

    kind = "sim"
    label = "simulated v100-32gb"

    def __init__(self, error=ERROR):
        super().__init__()
        self.gpu = SimpleNamespace(name="v100-32gb", calibration="two times", clock_error=error)
        self.clock = 0.0
        self.waited = 0

    def build(self, function):
        return function()

    def now(self):
        self.clock += 1e-3
        return self.clock

    def synchronize(self):
        self.waited += 1

    def charge(self, work, measured_seconds):
        seconds = work.lookups + 1e-2 * work.estimates + 1e-3 * work.candidates
        self.clock += seconds
        return seconds


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Return a function that makes a tiny run on the simulated device."""

    def make(error=ERROR, **options):
        monkeypatch.setattr(running, "open_device", lambda *a, **k: Simulated(error))
        settings = {"scale": "tiny", "data": "synthetic", "steps": 6, "planner": "baseline"}
        result = running.run(RunConfig(**settings | {"out": tmp_path} | options), quiet=True)
        return load_run(result.info["summary"]["run_dir"])

    return make


def test_the_run_says_what_it_is(train):
    run = train()
    assert run.name.startswith("qa-bert-baseline-none-sim-v100-32gb-")
    assert run.info["device"] == "sim-v100-32gb"
    assert run.device_label == "simulated v100-32gb"
    assert run.time_label == LABEL
    assert run.info["clock"]["calibration"] == "two times"
    assert run.info["optimizer_foreach"] is True
    total = run.steps["step_seconds"].sum()
    assert run.info["samples_per_second"] == pytest.approx(6 * 4 / total)


def test_the_optimizers_form_can_be_chosen(train):
    assert train(foreach="off").info["optimizer_foreach"] is False


def test_there_is_no_loss_and_no_wall_clock_in_the_records(train):
    options = {"planner": "mimose", "budget": 11 * MIB, "sheltered": 3, "steps": 12}
    first, second = train(**options), train(**options)
    assert first.steps["loss"].isna().all()
    assert first.steps["wait_seconds"].isna().all()
    pd.testing.assert_frame_equal(first.steps, second.steps)
    pd.testing.assert_frame_equal(first.blocks, second.blocks)
    assert (first.steps["scheduler_seconds"][first.steps["cache_hit"].notna()] >= 1.0).all()


def test_the_loss_is_waited_for_all_the_same(monkeypatch, train):
    devices = []
    real = Simulated.__init__

    def remember(self, *arguments):
        real(self, *arguments)
        devices.append(self)

    monkeypatch.setattr(Simulated, "__init__", remember)
    train()
    assert devices[0].waited >= 6


def test_tables_carry_the_clocks_error(train):
    runs = [train(), train(planner="mimose", budget=11 * MIB, sheltered=2)]
    shown = tables.show(runs[0], num_steps=2)
    assert LABEL in shown
    assert "none: the run is simulated" in shown
    rows = comparing.compare(runs)
    text = tables.comparison(rows)
    assert f"times: {LABEL}" in text
    assert "without planning" in text
    assert rows[1]["time_ratio_without_planning"] < rows[1]["time_ratio"]
    assert rows[1]["max_loss_difference"] is None


def test_figures_of_times_carry_it_and_the_loss_is_said_to_be_none(train):
    runs = [train(), train(error=None)]
    for draw in (step_time.draw, breakdown.draw):
        titles = " ".join(panel.get_title() for panel in draw(runs).axes)
        assert LABEL in " ".join(titles.split())
        assert "clock error unknown" in titles
    with pytest.raises(style.NothingToDrawError, match=r"no run has a loss: .*simulated"):
        loss.draw(runs)


def test_other_clocks_are_not_compared(train):
    rows = comparing.compare([train(), train(error=None)])
    assert rows[0]["time_ratio"] == pytest.approx(1.0)
    assert rows[1]["time_ratio"] is None


def test_labels():
    assert clock.time_label("measured on cpu", None) == "measured on cpu"
    unknown = {"calibration": "", "error": None}
    assert clock.time_label("simulated t4", unknown) == "simulated t4 (clock error unknown)"


def test_expected_lengths_are_simulated_too(train):
    run = train(lengths="expected", steps=None)
    counted = run.steps[run.steps["weight"] > 0]
    assert counted["weight"].sum() == pytest.approx(1.0)
    assert run.summary["peak_reserved_bytes"] is None


@pytest.mark.parametrize(
    "options",
    [
        {"planner": "full"},
        {"planner": "mimose", "budget": 60 * MIB, "sheltered": 3, "steps": 9},
        {"lengths": "expected", "steps": None},
    ],
)
def test_two_real_simulations_are_identical(tmp_path, options):
    settings = {"scale": "tiny", "data": "synthetic", "device": "sim:v100", "planner": "baseline"}
    settings |= {"steps": 5, "out": tmp_path} | options
    runs = []
    for _ in range(2):
        result = running.run(RunConfig(**settings), quiet=True)
        runs.append(load_run(result.info["summary"]["run_dir"]))
    assert (runs[0].steps["step_seconds"] > 0).all()
    assert runs[0].info["clock"]["calibration"]
    pd.testing.assert_frame_equal(runs[0].steps, runs[1].steps)
    assert comparing.compare(runs)[1]["time_ratio"] == pytest.approx(1.0)
