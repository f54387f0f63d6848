"""Table III, the break-even and the plan cache: judged on small fabricated runs."""

import inspect
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from mimose_bench.experiments.figures import break_even, cache, table3
from mimose_bench.experiments.figures.means import mean_interval
from mimose_bench.experiments.figures.overheads import Overheads, overheads
from mimose_bench.experiments.figures.recorded import Cell, Recorded
from mimose_bench.experiments.figures.reproduce import CHECKS
from mimose_bench.experiments.figures.text import describe
from mimose_bench.experiments.reading import Run, to_frame
from mimose_bench.experiments.schema import STEPS
from mimose_bench.experiments.sweep.grid import read_grid

LABEL = "simulated v100-32gb"


def run(rows, name="run", planner="mimose"):
    """Return a run with these steps; what a row leaves out is what a plain step of 0.2 s has."""
    full = [
        {
            "rank": 0,
            "step": number,
            "phase": "responsive",
            "sequence_length": 100,
            "input_size": 1000,
            "batch_size": 10,
            "outcome": "ok",
            "step_seconds": 0.2,
            "collector_seconds": 0.0,
            "estimator_seconds": 0.0,
            "scheduler_seconds": 0.0,
            **row,
        }
        for number, row in enumerate(rows)
    ]
    found = Run(Path(name), {"planner": planner, "device_label": LABEL, "outcome": "done"})
    found.__dict__["steps"] = to_frame(pa.Table.from_pylist(full, schema=STEPS))
    return found


def sheltered(seconds=0.35, collector=0.06):
    return {"phase": "sheltered", "step_seconds": seconds, "collector_seconds": collector}


MADE = {"cache_hit": False, "estimator_seconds": 1e-4, "scheduler_seconds": 1e-4}
HIT = {"cache_hit": True, "scheduler_seconds": 2e-5}


def small(**changes):
    facts = {
        "num_sheltered": 10,
        "collector": 0.06,
        "collector_total": 0.6,
        "num_plans": 20,
        "planning": 2e-4,
        "planning_most": 3e-4,
        "planning_total": 5e-3,
        "iteration": 0.2,
        "sheltered_ratios": (1.5, 1.6),
        "num_failed": 0,
        "num_retried": 0,
    }
    return Overheads(**(facts | changes))


class TestOverheads:
    def test_a_runs_overheads_are_added_up_as_the_table_does(self):
        mimose = run([sheltered(), sheltered(0.30), MADE, HIT, MADE, {"outcome": "oom"}])
        plain = run([{"step_seconds": 0.25}] * 2, planner="baseline")
        found = overheads(mimose, plain)
        assert (found.num_sheltered, found.num_plans, found.num_failed) == (2, 2, 1)
        assert found.collector == pytest.approx(0.06)
        assert found.planning == pytest.approx(2e-4)
        assert found.total == pytest.approx(0.12 + 4e-4 + 2e-5)
        assert found.iterations == pytest.approx(found.total / 0.2)
        assert found.collector_share == pytest.approx(0.3)
        # Not the first, which makes the optimizer's state.
        assert found.sheltered_ratios == pytest.approx([0.30 / 0.25])

    def test_a_run_that_never_planned_is_refused_in_a_sentence(self):
        with pytest.raises(ValueError, match="has no new plan that finished"):
            overheads(run([sheltered(), {}]))

    def test_a_mean_of_one_has_no_interval(self):
        assert mean_interval([3.0]) == (3.0, None)
        mean, (low, high) = mean_interval([1.0, 2.0, 3.0])
        assert mean == 2.0
        assert high - mean == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
        assert mean - low == pytest.approx(high - mean)


class TestTable3:
    def test_small_overheads_hold_and_large_ones_are_outside_by_name(self):
        tasks = {name: [small()] * 3 for name in table3.PRINTED if not name.startswith("od-")}
        tasks |= {
            name: [small(iteration=0.6, collector=0.08)] * 3 for name in ("od-r50", "od-r101")
        }
        result = table3.judge({"printed": tasks}, LABEL)
        by_text = {claim.text: claim for claim in result.claims}
        assert by_text["printed: overhead in iterations, mean of 4 tasks"].verdict == "holds"
        assert by_text["printed: overhead in iterations, mean of 6 tasks"].verdict == "holds"
        outside = [claim.text for claim in result.claims if claim.verdict == "outside"]
        assert outside == [
            "QA-Bert, printed: overhead in iterations",
            "QA-XLNet, printed: overhead in iterations",
        ]
        slow = {"qa-bert": [small(planning=2e-3, sheltered_ratios=(2.1,), num_sheltered=31)]}
        outside = [
            c.text for c in table3.judge({"printed": slow}, LABEL).claims if c.verdict == "outside"
        ]
        assert len(outside) == 5
        assert any("twice plain training's" in text for text in outside)

    def test_seeds_that_disagree_leave_a_claim_undecided(self):
        runs = [small(collector_total=total) for total in (0.3, 0.5, 0.8)]
        (claim,) = [
            c
            for c in table3.judge({"printed": {"qa-bert": runs}}, LABEL).claims
            if c.text == "QA-Bert, printed: overhead in iterations"
        ]
        assert claim.verdict == "undecided"

    def test_means_are_left_out_unless_every_task_was_run(self):
        result = table3.judge({"printed": {"qa-bert": [small()]}}, LABEL)
        assert not any("mean of" in claim.text for claim in result.claims)

    def test_the_grids_are_ones_that_a_sweep_takes_and_runs_are_found_in_them(self):
        grid = read_grid(None, {"devices": ["sim:v100"], **table3.grid(6, 2, 20)})
        assert [part.name for part in grid.planners] == ["baseline", *table3.VARIANTS]
        od = next(part for part in grid.tasks if part.name == "od-r50")
        assert od.budgets[0].num_bytes == 14 << 30
        read_grid(None, table3.cpu_grid(10, "tiny"))
        facts = {"task": "qa-bert", "seed": 1, "planner": "mimose"}
        runs = run([sheltered(), sheltered(), MADE])
        cells = (
            Cell({**facts, "label": "baseline", "planner": "baseline"}, run([{}] * 2)),
            Cell({**facts, "label": "mimose"}, runs),
            Cell({**facts, "label": "mimose-authors"}, None),
        )
        found = table3.collect(Recorded(cells, Path()))
        assert found["printed"]["qa-bert"][0].sheltered_ratios == pytest.approx([0.35 / 0.2])
        assert found["authors"] == {}

    def test_planning_on_the_cpu_carries_its_own_label(self):
        result = table3.judge(
            {"printed": {"qa-bert": [small()]}},
            LABEL,
            {"printed": [small()]},
            "measured on cpu",
            "QA-Bert at scale tiny",
        )
        labels = {c.device_label for c in result.claims if "at scale tiny" in c.text}
        assert labels == {"measured on cpu"}
        assert "measured on cpu" in describe(result)


class TestBreakEven:
    def test_the_loss_of_sheltered_iterations_over_what_a_later_one_gains(self):
        mimose = run([sheltered(0.4), sheltered(0.4), *[{"step_seconds": 0.2}] * 10])
        rival = run([{"step_seconds": 0.25}] * 12, planner="full")
        at = break_even.break_even(mimose, rival)
        assert (at.num_sheltered, at.loss, at.gain) == (2, pytest.approx(0.3), pytest.approx(0.05))
        assert at.iterations == pytest.approx(2 + 6)
        assert at.interval == pytest.approx((8, 8))
        assert at.seen in (8, 9)  # Even at the eighth, up to rounding.

    def test_a_rival_that_is_as_fast_is_never_overtaken(self):
        mimose = run([sheltered(0.4), {}, {}])
        at = break_even.break_even(mimose, run([{}] * 3, planner="full"))
        assert math.isinf(at.iterations)
        assert at.seen is None
        result = break_even.judge({("qa-bert", "6GB", break_even.FULL): at}, LABEL)
        (claim,) = result.claims
        assert claim.verdict == "outside"
        assert claim.note.endswith("never")
        assert "never" in describe(result)

    def test_small_data_sets_are_counted_in_epochs(self):
        at = break_even.BreakEven(
            num_sheltered=10, loss=1.0, gain=0.05, iterations=42, interval=(40, 44), seen=42
        )
        result = break_even.judge({("qa-bert", "6GB", break_even.SUBLINEAR): at}, LABEL)
        assert result.tables[0].rows[0][-2:] == ("0.50", "0.05")
        assert result.passed
        late = replace(at, iterations=731, interval=(731, 732))
        assert not break_even.judge({("qa-bert", "6GB", break_even.FULL): late}, LABEL).passed

    def test_the_grid_is_one_that_a_sweep_takes_and_a_quick_one_stays_in_the_middle(self):
        whole = read_grid(None, {"devices": ["sim:v100"], **break_even.grid()})
        assert len(whole.budgets) == 5
        assert [b.text for b in read_grid(None, break_even.grid(1, 1, 20)).budgets] == ["6GB"]

    def test_runs_are_paired_with_those_of_the_same_budget(self):
        facts = {"task": "qa-bert", "seed": 1}
        cells = (
            Cell({**facts, "label": break_even.FULL, "budget": "none"}, run([{}] * 4)),
            Cell({**facts, "label": break_even.SUBLINEAR, "budget": "6GB"}, None),
            Cell(
                {**facts, "label": "mimose", "budget": "6GB"},
                run([sheltered(), *[{"step_seconds": 0.1}] * 3]),
            ),
        )
        result = break_even.check(lambda grid: Recorded(cells, Path()))
        assert len(result.tables[0].rows) == 1
        assert "left no record" in result.notes[-1]


def dtr(*searches):
    return run(
        [
            {
                "phase": "static",
                "sequence_length": length,
                "eviction_search_seconds": seconds,
                "eviction_maintenance_seconds": 1e-3,
                "num_evictions": 5,
            }
            for length, seconds in searches
        ],
        planner="dtr",
    )


class TestCache:
    def test_dtr_searches_as_long_for_a_length_that_it_has_seen(self):
        policy = dtr((50, 2e-3), (60, 4e-3), (50, 2e-3), (60, 4e-3), (50, 2e-3), (70, 1e-3))
        assert cache.searched_again(policy.steps) == (pytest.approx(1.0), pytest.approx((1.0, 1.0)))
        first, second, third = cache.occurrences(policy.steps)
        assert (first.count, second.count, third.count) == (3, 2, 1)
        assert second.relative == pytest.approx(1.0)
        assert second.evictions == 5
        assert cache.searched_again(dtr((50, 1e-3), (60, 1e-3)).steps) is None

    def test_a_policy_that_remembered_would_be_outside(self):
        policy = dtr(
            *[(length, 2e-3) for length in (50, 60, 70)],
            *[(length, 2e-5) for length in (50, 60, 70)],
        )
        result = cache.judge({"dtr": policy}, {}, LABEL)
        assert [c.verdict for c in result.claims] == ["outside"]

    def test_mimoses_plans_come_from_its_cache(self):
        lengths = [
            {**MADE, "sequence_length": 51},
            {**HIT, "sequence_length": 54},
            {**HIT, "sequence_length": 51},
            {**MADE, "sequence_length": 56},
        ]
        mimose = run([sheltered(), *lengths])
        found = cache.plans(mimose)
        assert (found.steps, found.made, found.distinct, found.hits) == (5, 2, 2, 0.5)
        again = cache.occurrences(mimose.steps)
        assert [at.hits for at in again] == [pytest.approx(1 / 3), 1.0]
        assert again[1].search < again[0].search

    def test_a_run_shorter_than_the_papers_judges_nothing(self):
        plans = cache.Plans(steps=40, made=9, distinct=9, hits=0.5, planning=0.01, share=0.001)
        result = cache.judge({}, {("qa-bert", "mimose-printed"): plans}, LABEL)
        assert result.claims[-1].verdict == "reported"
        whole = replace(plans, steps=cache.RUN_STEPS["qa-bert"], made=25)
        result = cache.judge({}, {("qa-bert", "mimose-printed"): whole}, LABEL)
        assert result.claims[-1].verdict == "outside"
        assert isinstance(describe(result), str)

    def test_the_grids_are_ones_that_a_sweep_takes(self):
        read_grid(None, {"devices": ["sim:v100"], **cache.search_grid()})
        grid = read_grid(None, {"devices": ["sim:v100"], **cache.plans_grid()})
        steps = {p.name: grid.options_of(p, grid.planners[0])["steps"] for p in grid.tasks}
        assert steps == dict(cache.RUN_STEPS)
        assert steps["mc-roberta"] == 460


@pytest.mark.parametrize("name", ["table3", "table4", "break-even", "cache"])
def test_a_quick_run_sets_arguments_that_the_check_has(name):
    check = CHECKS[name]
    inspect.signature(check.run).bind(lambda grid: None, say=print, **check.quick)
    assert check.recorded == (name != "table4")
