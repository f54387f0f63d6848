"""Losses and times of real training, judged on runs made by hand."""

from pathlib import Path

import numpy as np
import pytest

from mimose.units import MIB
from mimose_bench.experiments.figures import cpu_training, loss, paired
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.plots import paired_times

LABEL = "measured on cpu"
GRIDS = Path(__file__).parents[3] / "docs" / "grids"
LOSSES = [3.0 - step / 100 for step in range(78)]


@pytest.fixture
def trained(write_run):
    """A run of three epochs of QA-Bert."""

    def run(planner, losses=LOSSES, *, recomputed=1, outcome="done"):
        rows = [
            {
                "step": step,
                "phase": "responsive",
                "input_size": 100,
                "loss": value,
                "plan": "keep all",
                "num_recomputed": recomputed,
            }
            for step, value in enumerate(losses)
        ]
        budget = None if planner == "baseline" else 20 * MIB
        return write_run(planner, budget, rows, label=LABEL, outcome=outcome)

    return run


def test_equal_losses_hold_and_one_bit_is_outside(trained):
    other = [*LOSSES]
    other[40] = float(np.nextafter(other[40], 0))
    result = loss.judge(
        [trained("baseline", recomputed=0), trained("full"), trained("mimose", other)], LABEL
    )
    falls, full, mimose = result.claims
    assert falls.verdict == full.verdict == "holds"
    assert (mimose.obtained, mimose.verdict) == (1, "outside")


@pytest.mark.parametrize("losses", [LOSSES[:-3], [*LOSSES[:-1], float("nan")]])
def test_missing_steps_and_no_numbers_count_as_other_losses(trained, losses):
    result = loss.judge([trained("baseline", recomputed=0), trained("full", losses)], LABEL)
    assert result.claims[-1].verdict == "outside"


def test_a_run_that_ended_early_is_not_measured_and_idle_ones_are_named(trained):
    runs = [trained("baseline", recomputed=0), trained("dtr", LOSSES[:9], outcome="oom")]
    runs.append(trained("rotor", recomputed=0))
    result = loss.judge(runs, LABEL)
    assert [claim.verdict for claim in result.claims] == ["holds", "not measured", "holds"]
    assert [c.value for c in result.criteria] == [1]
    assert not result.passed


def test_a_rising_loss_is_outside(trained):
    (falls,) = loss.judge([trained("baseline", LOSSES[::-1], recomputed=0)], LABEL).claims
    assert falls.verdict == "outside"


@pytest.fixture
def timed(write_run):
    """Runs of three seeds, ``factor`` times as slow as plain training, with noise."""

    def runs(planner, factor, *, budget=300 * MIB, noise=0.02, outcome="done", seeds=(1, 2, 3)):
        found = []
        for seed in seeds:
            jitter = np.random.default_rng((seed, len(planner))).normal(1, noise, 30)
            rows = [
                {
                    "step": step,
                    "phase": "sheltered" if planner == "mimose" and step < 10 else "responsive",
                    "input_size": 100 + seed * step,
                    "step_seconds": (9.0 if planner == "mimose" and step < 10 else factor)
                    * float(jitter[step]),
                }
                for step in range(30)
            ]
            found.append(
                write_run(
                    planner,
                    None if planner == "baseline" else budget,
                    rows,
                    label=LABEL,
                    outcome=outcome,
                    seed=seed,
                )
            )
        return found

    return runs


def test_ratios_are_over_common_steps_without_the_sheltered_ones(timed):
    ratio = paired.pooled(timed("mimose", 1.1), timed("baseline", 1.0))
    assert ratio.value == pytest.approx(1.1, abs=0.02)
    assert ratio.low < ratio.value < ratio.high
    assert ratio.num_pairs == 3 * 20
    assert paired.pooled(timed("mimose", 1.1), timed("baseline", 1.0, seeds=(7,))) is None


def test_the_interval_covers_what_seeds_differ_by(timed):
    fast, slow = timed("full", 1.0, seeds=(1,)), timed("full", 1.3, seeds=(2,))
    ratio = paired.pooled(fast + slow, timed("baseline", 1.0))
    assert ratio.low < 1.05
    assert ratio.high > 1.25


def test_verdicts_of_orders(timed):
    runs = [*timed("baseline", 1.0), *timed("mimose", 1.1), *timed("dtr", 1.0)]
    runs += timed("sublinear-greedy", 1.3)
    result = cpu_training.judge(runs, LABEL)
    assert {c.text.partition(": ")[2]: c.verdict for c in result.claims} == {
        "Mimose is ahead of Sublinear": "holds",
        "Mimose is ahead of DTR": "outside",
    }
    assert result.claims[0].obtained == pytest.approx(1.3 / 1.1, abs=0.03)
    noisy = [*timed("baseline", 1.0), *timed("mimose", 1.0, noise=0.3)]
    noisy += timed("sublinear-greedy", 1.01, noise=0.3)
    assert cpu_training.judge(noisy, LABEL).claims[0].verdict == "undecided"


def test_a_run_that_did_not_finish_is_said(timed):
    runs = [*timed("baseline", 1.0), *timed("mimose", 1.1, outcome="oom"), *timed("dtr", 1.0)]
    result = cpu_training.judge(runs, LABEL)
    assert result.claims[0].verdict == "not measured"
    assert result.criteria[0].value == 3
    assert "oom" in result.tables[0].rows[0][-1]


def test_the_grids_are_the_file_and_can_be_read():
    assert read_grid(None, cpu_training.GRID) == read_grid(GRIDS / "cpu.toml", {})
    read_grid(None, cpu_training.QUICK)
    for tasks, planners in ((loss.TASKS, loss.PLANNERS), (loss.TASKS[:1], loss.QUICK_PLANNERS)):
        read_grid(None, loss.grid(tasks, planners))


def test_the_drawing_shows_each_planner_with_its_interval(timed):
    figure = paired_times.draw([*timed("baseline", 1.0), *timed("mimose", 1.1), *timed("dtr", 1.4)])
    (panel,) = figure.axes
    assert panel.get_title() == f"qa-bert, {LABEL}"
    assert len(panel.containers) == 2
    said = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert said == ["DTR", "Mimose"]
