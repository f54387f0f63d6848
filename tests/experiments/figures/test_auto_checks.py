"""The checks of planner auto, judged on runs and menus made by hand."""

import pytest

from mimose.menu import Traced
from mimose.units import GIB
from mimose_bench.experiments.figures import (
    auto,
    auto_learning,
    auto_memory,
    auto_menu,
    auto_optimum,
    auto_training,
)
from mimose_bench.experiments.figures.auto_learning import Learning
from mimose_bench.experiments.figures.auto_optimum import Distance
from mimose_bench.experiments.figures.evicting import Course
from mimose_bench.experiments.menus import BlockMenu, Entry
from mimose_bench.experiments.sweep.grid import read_grid
from mimose_bench.plots import saved_values

LABEL = "simulated v100-32gb"


@pytest.fixture
def ran(write_run):
    """A run of expected lengths that takes so much of plain training's time."""

    def run(planner, budget, ratio, *, task="qa-bert", outcome="done", weight=0.5, **more):
        rows = [
            {
                "step": step,
                "phase": "responsive",
                "input_size": 100 + step,
                "plan": "keep 0",
                "num_recomputed": 0,
                "weight": weight,
                "step_seconds": ratio * (1 + step),
                **more,
            }
            for step in range(3)
        ]
        budget = None if budget is None else budget * GIB
        return write_run(planner, budget, rows, task=task, outcome=outcome)

    return run


def verdicts(result):
    return {claim.text.partition(": ")[2] or claim.text: claim.verdict for claim in result.claims}


def test_aims_and_rivals_are_judged_by_the_times(ran):
    runs = [
        ran("baseline", None, 1.0),
        ran("auto", 4, 1.064),
        ran("mimose", 4, 1.17),
        ran("auto", 5, 1.04),
        ran("mimose", 5, 1.03),
    ]
    result = auto.judge(runs, LABEL)
    claims = {claim.text: claim for claim in result.claims}
    aims = [claims[f"QA-Bert in {gb} GB: auto's time relative to plain training"] for gb in (4, 5)]
    assert [claim.verdict for claim in aims] == ["holds", "outside"]
    behind = claims["QA-Bert: auto is never slower than Mimose"]
    assert behind.verdict == "outside"
    assert behind.obtained == pytest.approx(1.04 / 1.03)
    assert "5.00 GiB" in behind.note
    (table,) = result.tables
    assert [row[0] for row in table.rows] == ["auto", "mimose", "the paper's Mimose (V100)"]
    assert table.rows[0][1:] == ("1.064", "1.040")
    assert "QA-Bert: auto is never slower than Rotor" not in claims


def test_a_budget_that_auto_does_not_finish_is_not_passed_over(ran):
    runs = [
        ran("baseline", None, 1.0),
        ran("auto", 4, 1.0, outcome="oom"),
        ran("mimose", 4, 1.1),
        ran("auto", 5, 1.0),
        ran("mimose", 5, 1.1),
    ]
    claims = {claim.text: claim for claim in auto.judge(runs, LABEL).claims}
    behind = claims["QA-Bert: auto is never slower than Mimose"]
    assert behind.verdict == "not measured"
    assert "4.00 GiB" in behind.note
    assert claims["QA-Bert in 4 GB: auto's time relative to plain training"].note == "oom"


@pytest.mark.parametrize("grid", [auto.GRID, auto.QUICK, auto_training.GRID, auto_training.QUICK])
def test_grids_can_be_read(grid):
    read = read_grid(None, {"devices": ["sim:v100"], **grid})
    assert {"baseline", "auto", "mimose"} <= {planner.of for planner in read.planners}


def test_learning_counts_what_measuring_takes_longer(write_run):
    def row(step, phase, seconds, plan="keep 0", **more):
        return {
            "step": step,
            "phase": phase,
            "input_size": 100,
            "plan": plan,
            "num_recomputed": 0,
            "step_seconds": seconds,
            "predicted_peak_bytes": 99 * GIB // 20,
            "peak_allocated_bytes": 5 * GIB,
            "num_alloc_retries": 0,
            "cache_hit": step > 2,
            "estimator_seconds": 1e-4,
            "scheduler_seconds": 1e-4,
            **more,
        }

    steps = [
        row(0, "sheltered", 1.5),
        row(1, "sheltered", 1.6),
        row(2, "responsive", 1.1, "remake 0 [3]", peak_allocated_bytes=9 * GIB // 2),
        row(3, "responsive", 1.0),
        row(4, "responsive", 1.0, outcome="retried"),
    ]
    mine = write_run("auto", 5 * GIB, steps)
    plain = write_run("baseline", None, [row(n, "static", 1.0) for n in range(5)])
    found = auto_learning.measure(mine, plain)
    assert found.learning == 2
    assert found.iterations == pytest.approx(1.1)
    assert found.own is None
    assert found.error == pytest.approx((0.01 + 0.1) / 2)
    assert found.worst == pytest.approx(0.1)
    assert found.use == pytest.approx(0.9)
    assert found.violations == 1
    assert found.miss == found.hit == pytest.approx(2e-4)
    result = auto_learning.judge({("qa-bert", "auto"): found}, LABEL)
    assert {claim.verdict for claim in result.claims} == {"outside", "not measured"}
    good = Learning(
        steps=1000,
        learning=3,
        iterations=0.4,
        own=0.3,
        error=0.0005,
        worst=0.1,
        use=0.96,
        violations=0,
        miss=None,
        hit=None,
    )
    result = auto_learning.judge({("qa-bert", "auto"): good, ("qa-bert", "mimose"): found}, LABEL)
    assert {claim.verdict for claim in result.claims} == {"holds"}
    assert len(result.tables[0].rows) == 2
    expandable = {("qa-bert", auto_learning.EXPANDABLE): found, ("qa-bert", "auto"): good}
    claims = auto_learning.judge(expandable, LABEL).claims
    outside = [claim.text for claim in claims if claim.verdict == "outside"]
    assert len(outside) == 3
    assert all("with expandable segments" in text for text in outside)


def test_what_plans_take_in_a_budget_anyway_is_no_cost_of_learning(write_run):
    def row(step, length, phase, seconds, **more):
        size = {"input_size": 2 * length, "batch_size": 2, "sequence_length": length}
        return (
            {"step": step, "phase": phase, "plan": "keep 0", "step_seconds": seconds} | size | more
        )

    def pair(name, lengths, *rows, **more):
        mine = [row(n, *each, **more) for n, each in enumerate(rows)]
        plain = [row(n, length, "static", 1.0, **more) for n, length in enumerate(lengths)]
        return write_run(name, 5 * GIB, mine), write_run(f"{name}-plain", None, plain)

    every = (100, 200, 300)
    slow = [(100, "sheltered", 9.0), (200, "responsive", 1.1), (300, "responsive", 1.5)]
    settled = auto_learning.Settled.of(*pair("every", every, *slow, weight=1 / 3))
    assert settled.lengths.tolist() == [200, 300]
    steps = [(300, "sheltered", 1.9), (250, "sheltered", 1.4), (200, "responsive", 1.1)]
    found = auto_learning.measure(*pair("sampled", (300, 250, 200), *steps), settled)
    assert found.iterations == pytest.approx(0.9 + 0.4)
    # Their plans take 0.5 and, half-way between the lengths, 0.3 more in any case.
    assert found.own == pytest.approx(0.4 + 0.1)
    with pytest.raises(ValueError, match="over expected lengths was planned"):
        auto_learning.Settled.of(*pair("none", every[:1], slow[0], weight=1.0))


def test_learning_runs_auto_alone_with_expandable_segments():
    native, stretched = auto_learning.grid(2, 9), auto_learning.grid(2, 9, expandable=True)
    assert "allocator" not in native["options"]
    assert stretched["options"] == {**native["options"], "allocator": "expandable"}
    assert stretched["planners"] == ["baseline", "auto"]


def test_distances_are_meant_by_task():
    found = [Distance("QA-Bert", 4 * GIB, 512, 1.08, 1.0), Distance("QA-Bert", 5 * GIB, 512, 2, 2)]
    result = auto_optimum.judge(found, LABEL)
    (claim,) = result.claims
    assert claim.obtained == pytest.approx(0.04)
    assert claim.verdict == "holds"
    worse = auto_optimum.judge(found[:1], LABEL)
    assert worse.claims[0].verdict == "outside"
    assert auto_optimum.spread(512, 4)[-1] == 512


def course(seconds):
    class Record:
        step_seconds = seconds
        outcome = "ok"

    return Course(records=[Record()])


def test_least_budgets_and_batches_are_held_against_full_and_tempo():
    budgets = {("QA-Bert", "full"): 3 * GIB, ("QA-Bert", "auto"): 4 * GIB}
    reached = auto_memory.Batches((8, course(1.0)), (16, course(2.2)), (12, course(1.2)))
    short = auto_memory.Batches((8, course(1.0)), (9, course(1.2)), (8, course(1.0)))
    result = auto_memory.judge(budgets, {"BERT-large": reached, "GPT-2": short}, LABEL)
    assert [claim.verdict for claim in result.claims] == [
        "outside",
        "holds",
        "holds",
        "outside",
        "outside",
    ]
    assert result.claims[2].obtained == pytest.approx(1.25)
    assert result.claims[1].device_label == auto_memory.SMALLER_LABEL
    assert len(result.tables) == 2


@pytest.fixture
def menu_result(bert_block):
    traced: Traced = bert_block(4, 512)
    menu = BlockMenu(
        size=(4, 512),
        blocks=tuple(range(12)),
        saved_bytes=200 << 20,
        forward_seconds=0.02,
        names=(),
        entries=(Entry(("GELU",), (15,), 24 << 20, 1e-4, 0.005),),
    )
    return auto_menu.judge(traced, menu, LABEL)


def test_prices_inside_a_block(menu_result):
    apart, cheapest = menu_result.claims
    assert apart.verdict == "holds"
    assert cheapest.obtained == pytest.approx(
        min(c.y[0] / c.x[0] for c in menu_result.curves if c.y_unit == "s") * (200 << 20) / 0.02
    )
    names = [curve.name for curve in menu_result.curves]
    assert "GELU" in names
    assert len(set(names)) == len(names)


def test_its_picture_has_a_bar_a_value(menu_result):
    figure = saved_values.draw(menu_result)
    panel = figure.axes[0]
    assert len(panel.patches) == len(menu_result.curves)
    assert LABEL in panel.get_title()
    assert "must stay" in {text.get_text() for text in panel.texts}


def test_real_training_is_judged_over_seeds(ran):
    def seeded(planner, budget, ratio):
        return ran(planner, budget, ratio, weight=None)

    runs = [
        seeded("baseline", None, 1.0),
        seeded("full", None, 1.3),
        seeded("mimose", 1, 1.2),
        seeded("auto", 1, 1.1),
    ]
    result = auto_training.judge(runs, "measured on cpu")
    assert [claim.verdict for claim in result.claims] == ["holds", "holds"]
    slow = auto_training.judge([*runs[:3], seeded("auto", 1, 1.25)], "measured on cpu")
    assert [claim.verdict for claim in slow.claims] == ["outside", "holds"]
