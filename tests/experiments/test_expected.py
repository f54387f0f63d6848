"""Runs over expected lengths: what their rows say, and what is made of them."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from mimose_bench.experiments import comparing, summary, tables
from mimose_bench.experiments.config import RunConfig
from mimose_bench.experiments.reading import load_run, to_frame
from mimose_bench.experiments.run import run
from mimose_bench.experiments.schema import STEPS, to_table
from mimose_bench.plots import draw_figures

MIB = 1 << 20


def frame(seconds, weights, **columns):
    rows = []
    for i, (time, weight) in enumerate(zip(seconds, weights)):
        row = {
            "rank": 0,
            "step": i,
            "phase": "responsive",
            "outcome": "ok",
            "input_size": 400 * (i + 1),
            "batch_size": 4,
            "sequence_length": 100 * (i + 1),
            "step_seconds": time,
            "weight": weight,
            "num_alloc_retries": 0,
        }
        rows.append(row | {name: values[i] for name, values in columns.items()})
    return to_frame(to_table(rows, STEPS))


def test_means_medians_and_peaks_are_weighted():
    steps = frame(
        [9.0, 1.0, 2.0, 3.0],
        [0.0, 0.2, 0.5, 0.3],
        peak_allocated_bytes=[90, 10, 20, 30],
        num_recomputed=[4, 0, 1, 2],
        forward_seconds=[5.0, 0.5, 1.0, 1.5],
    )
    found = summary.summarize(steps, {"budget_bytes": 40})
    assert found["mean_step_seconds"] == pytest.approx(0.2 + 1.0 + 0.9)
    assert found["median_step_seconds"] == 2.0
    assert found["peak_allocated_bytes"] == 30
    assert found["mean_recomputed_blocks"] == pytest.approx(1.1)
    assert found["budget_use"] == pytest.approx(20 / 40)
    assert found["num_steps"] == 4
    assert (found["lengths"], found["peak_reserved_bytes"]) == ("expected", None)
    assert "sampled" in found["note"]
    parts = summary.breakdown(steps)
    assert parts["forward"] == pytest.approx(1.05)
    assert sum(parts.values()) == pytest.approx(2.1)


def test_pairs_are_found_by_length_and_weighed():
    reference = frame([9.0, 1.0, 2.0, 4.0], [0.0, 0.2, 0.5, 0.3])
    # Two more steps that only prepare: the numbers of the steps differ.
    other = frame([9.0, 9.0, 9.0, 1.5, 3.0, 4.0], [0.0, 0.0, 0.0, 0.2, 0.5, 0.3])
    other["sequence_length"] -= 200
    other["input_size"] -= 800
    paired = comparing.pair(reference, other)
    assert list(paired["sequence_length"]) == [200, 300, 400]
    ratio = comparing.time_ratio(paired)
    assert ratio.value == pytest.approx((0.3 + 1.5 + 1.2) / (0.2 + 1.0 + 1.2))
    assert (ratio.low, ratio.high, ratio.num_pairs) == (None, None, 3)


def test_a_run_that_ended_early_is_paired_as_far_as_it_came():
    reference = frame([9.0, 1.0, 2.0, 4.0], [0.0, 0.2, 0.5, 0.3])
    died = frame([9.0, 1.0, None], [0.0, 0.2, 0.5], outcome=["ok", "ok", "oom"])
    assert list(comparing.pair(reference, died)["sequence_length"]) == [200]


def test_other_distributions_and_sampled_runs_are_not_compared():
    reference = frame([9.0, 1.0, 2.0, 4.0], [0.0, 0.2, 0.5, 0.3])
    with pytest.raises(ValueError, match="other expected lengths"):
        comparing.pair(reference, frame([9.0, 1.0, 2.0, 4.0], [0.0, 0.3, 0.4, 0.3]))
    moved = frame([9.0, 1.0, 2.0, 4.0], [0.0, 0.2, 0.5, 0.3])
    moved["sequence_length"] += 50
    moved["input_size"] += 600
    with pytest.raises(ValueError, match="other expected lengths"):
        comparing.pair(reference, moved)
    with pytest.raises(ValueError, match="repeat one of them with the other's --lengths"):
        comparing.pair(reference, frame([9.0, 1.0, 2.0, 4.0], [None] * 4))


def test_time_without_planning_leaves_predicting_and_choosing_out():
    reference = frame([9.0, 2.0, 2.0], [None] * 3)
    other = frame(
        [9.0, 3.0, 3.5],
        [None] * 3,
        estimator_seconds=[0.0, 0.25, 0.5],
        scheduler_seconds=[0.0, 0.25, 1.0],
    )
    paired = comparing.pair(reference, other)
    assert comparing.time_ratio(paired).value == pytest.approx(6.5 / 4)
    assert comparing.time_ratio(paired, planning=False).value == pytest.approx(4.5 / 4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("expected")
    common = {"scale": "tiny", "data": "synthetic", "lengths": "expected", "out": out}
    found = []
    for options in (
        {"planner": "baseline"},
        {"planner": "mimose", "budget": 11 * MIB, "sheltered": 4},
    ):
        result = run(RunConfig(**common, **options), quiet=True)
        assert result.exit_code == 0
        found.append(load_run(result.info["summary"]["run_dir"]))
    return found


def test_a_run_takes_each_length_once(runs):
    for each in runs:
        counted = each.steps[each.steps["weight"] > 0]
        assert counted["weight"].sum() == pytest.approx(1.0)
        assert counted["sequence_length"].diff().abs().median() > 10  # in no order
        assert counted["sequence_length"].is_unique
        assert counted["sequence_length"].max() == 128
        assert each.steps["peak_reserved_bytes"].isna().all()
        assert each.steps["fragmentation_bytes"].isna().all()
        assert each.steps["weight"][0] == 0.0
        assert each.summary["mean_step_seconds"] == pytest.approx(
            np.average(counted["step_seconds"], weights=counted["weight"])
        )
    baseline, mimose = (each.steps for each in runs)
    assert len(baseline) == 1 + int((baseline["weight"] > 0).sum())
    assert (mimose["weight"][mimose["phase"] == "sheltered"] == 0).all()
    assert (mimose["phase"] == "sheltered").sum() >= 4
    assert runs[1].summary["peak_allocated_bytes"] <= 11 * MIB


def test_runs_are_compared_and_drawn(runs, tmp_path):
    rows = comparing.compare(runs)
    assert rows[0]["time_ratio"] == pytest.approx(1.0)
    assert rows[1]["time_ratio"] > 0
    assert rows[1]["paired_share"] == pytest.approx(1.0)
    assert rows[1]["max_loss_difference"] is None
    assert "baseline" in tables.comparison(rows)
    shown = tables.show(runs[1], num_steps=3)
    assert "expected over an epoch's lengths" in shown
    assert summary.RESERVED_NOTE in shown
    assert draw_figures(runs, tmp_path)


def test_columns_without_a_figure_are_left_out(runs):
    rows = comparing.compare(runs)
    header = tables.comparison(rows).splitlines()[0]
    for absent in ("95 % interval", "peak reserved", "loss difference"):
        assert absent not in header
    assert "budget use" in header
    sampled = [{**row, "lengths": "sampled"} for row in rows]
    assert "95 % interval" in tables.comparison(sampled).splitlines()[0]


def test_show_says_how_many_steps_count_and_what_they_weigh(runs):
    run = runs[1]
    counting = int((run.steps["weight"] > 0).sum())
    shown = tables.show(run, num_steps=2)
    total = len(run.steps)
    assert f"{total}: {total} ok, {counting} of them count, 0 retried" in shown
    header, _, *last = tables.steps(run, 1).splitlines()
    assert "weight" in header.split()
    assert f"{run.steps['weight'].iloc[-1]:.4f}" in last[0].split()


class Died:
    """A run over expected lengths that ended out of memory."""

    directory, planner, planner_label = "runs/died", "p", "p"
    time_label, budget_bytes = "measured on cpu", 1
    info: ClassVar = {"outcome": "oom"}

    def __init__(self, steps):
        self.steps, self.summary = steps, summary.summarize(steps, {})


def test_an_early_end_has_no_step_time_or_says_of_how_much_it_is():
    outcome = ["ok", "oom"]
    first = Died(frame([9.0, None], [0.0, 0.2], outcome=outcome))
    shown = tables.show(first, 0).splitlines()
    assert "step time       -" in shown
    assert "recomputed      -" in shown
    later = Died(frame([9.0, 1.0, None], [0.0, 0.2, 0.5], outcome=["ok", *outcome]))
    assert (
        "1.00 s expected over the lengths that finished (20.0 % of an epoch), 1.00 s median"
        in tables.show(later, 0)
    )
