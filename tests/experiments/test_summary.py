from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from mimose_bench.experiments import comparing, summary, tables
from mimose_bench.experiments.reading import to_frame
from mimose_bench.experiments.schema import STEPS, to_table


def steps(count=4, **columns):
    rows = []
    for i in range(count):
        row = {
            "rank": 0,
            "step": i,
            "phase": "responsive",
            "input_size": 100 + i,
            "batch_size": 4,
            "outcome": "ok",
            "step_seconds": 1.0,
            "num_alloc_retries": 0,
            "num_recomputed": 0,
        }
        row |= {name: values[i] for name, values in columns.items()}
        rows.append(row)
    return to_frame(to_table(rows, STEPS))


def test_the_summary_has_the_contracts_keys():
    keys = (
        "run_dir num_steps num_ok num_retried num_oom budget_bytes peak_allocated_bytes "
        "peak_reserved_bytes median_step_seconds mean_step_seconds total_seconds final_loss "
        "device_label"
    )
    assert " ".join(summary.summarize(steps(), {})).startswith(keys + " ")


def test_counts_times_and_peaks():
    frame = steps(
        outcome=["ok", "retried", "ok", "oom"],
        step_seconds=[1.0, 4.0, 2.0, None],
        loss=[3.0, 2.0, 1.0, None],
        peak_allocated_bytes=[10, 30, 20, None],
        peak_reserved_bytes=[10, 40, 40, None],
        num_alloc_retries=[0, 1, 0, 2],
        cache_hit=[None, False, True, False],
    )
    found = summary.summarize(frame, {"budget_bytes": 40, "device_label": "measured on cpu"})
    assert (found["num_ok"], found["num_retried"], found["num_oom"]) == (2, 1, 1)
    assert found["median_step_seconds"] == 2.0
    assert found["total_seconds"] == 7.0
    assert found["final_loss"] == 1.0
    assert found["peak_allocated_bytes"] == 30
    assert found["fragmentation_bytes"] == 10
    assert found["num_violations"] == 5
    assert found["num_plans_made"] == 2
    assert found["device_label"] == "measured on cpu"


def test_budget_use_is_of_responsive_steps_that_recompute():
    frame = steps(
        phase=["sheltered", "responsive", "responsive", "responsive"],
        num_recomputed=[12, 0, 3, 5],
        peak_allocated_bytes=[10, 20, 60, 80],
    )
    assert summary.budget_use(frame, 100) == pytest.approx(0.7)
    assert summary.budget_use(frame, None) is None
    assert summary.budget_use(frame[frame["num_recomputed"] == 0], 100) == pytest.approx(0.2)
    # Single values that are made again count as well.
    remade = frame.assign(num_remade=[0, 0, 0, 2], num_recomputed=[12, 0, 0, 0])
    assert summary.budget_use(remade, 100) == pytest.approx(0.8)


def test_the_breakdown_adds_up_to_the_step():
    frame = steps(
        forward_seconds=[0.3] * 4,
        backward_seconds=[0.5] * 4,
        optimizer_seconds=[0.1] * 4,
        collector_seconds=[0.04, 0, 0, 0],
    )
    parts = summary.breakdown(frame)
    assert sum(parts.values()) == pytest.approx(1.0)
    assert parts["other"] == pytest.approx(0.09)
    assert parts["collector"] == pytest.approx(0.01)


def test_only_steps_that_both_finished_are_paired():
    reference = steps(step_seconds=[1.0, 2.0, 3.0, 4.0])
    other = steps(
        step_seconds=[2.0, 2.0, 6.0, None],
        outcome=["ok", "ok", "retried", "oom"],
        phase=["sheltered", "responsive", "responsive", "responsive"],
    )
    paired = comparing.pair(reference, other)
    assert list(paired["step"]) == [0, 1, 2]
    # The first step is warm-up and not timed.
    assert comparing.time_ratio(paired).value == pytest.approx(8 / 5)
    paired.loc[paired["step"] == 1, "phase"] = "sheltered"
    rest = comparing.time_ratio(paired, learning=False)
    assert rest.value == pytest.approx(6 / 3)
    assert rest.num_pairs == 1


def test_settings_that_differ_are_named():
    class Run:
        def __init__(self, **config):
            self.info = {"config": config}

    runs = [
        Run(planner="baseline", budget=None, precision="fp32", seed=1),
        Run(planner="mimose", budget=7, precision="bf16", seed=1),
    ]
    assert comparing.differences(runs) == ["precision: fp32, bf16"]
    assert comparing.differences(runs[:1]) == []


def test_other_batches_are_not_compared():
    with pytest.raises(
        ValueError, match=r"same batches \(step 1 has input_size 7 .* 101.* --task, "
    ):
        comparing.pair(steps(), steps(input_size=[100, 7, 102, 103]))


def test_what_led_to_other_batches_is_named():
    def run(**config):
        info = {"config": {"task": "qa-bert", "scale": "tiny", "seed": 1, **config}}
        return SimpleNamespace(info=info)

    advice = comparing._advice(run(), run(planner="full", seed=2, task_options={}))
    assert advice == "repeat one of them with the other's --seed (1 and 2)"
    assert comparing._advice(run(), run(planner="full")) is None
    with pytest.raises(ValueError, match=r"in the other\): repeat one .* --seed \(1 and 2\)"):
        comparing.pair(steps(), steps(input_size=[100, 7, 102, 103]), advice)


def test_the_interval_covers_the_true_ratio():
    generator = np.random.default_rng(1)
    seconds = generator.uniform(0.5, 2.0, size=400)
    reference = steps(400, step_seconds=seconds)
    other = steps(400, step_seconds=seconds * 1.25 * generator.normal(1, 0.05, size=400))
    ratio = comparing.time_ratio(comparing.pair(reference, other))
    assert ratio.low < 1.25 < ratio.high
    assert ratio.high - ratio.low < 0.03
    assert ratio.low < ratio.value < ratio.high


def test_nothing_paired_is_no_ratio():
    died = steps(outcome=["oom"] * 4)
    paired = comparing.pair(steps(), died)
    assert comparing.time_ratio(paired) is None
    assert comparing.loss_difference(paired) is None


def test_losses_are_compared_exactly():
    same = comparing.pair(steps(loss=[1.0, 2, 3, 4]), steps(loss=[1.0, 2, 3, 4]))
    off = comparing.pair(steps(loss=[1.0, 2, 3, 4]), steps(loss=[1.0, 2, 3.5, None]))
    assert comparing.loss_difference(same) == 0.0
    assert comparing.loss_difference(off) == 0.5


class FakeRun:
    def __init__(self, frame, label):
        self.steps, self.device_label, self.time_label = frame, label, label
        self.name = self.planner = self.planner_label = "p"
        self.info = {"outcome": "done"}
        self.summary = summary.summarize(frame, {})


def test_times_on_different_devices_are_no_ratio():
    rows = comparing.compare(
        [FakeRun(steps(), "measured on cpu"), FakeRun(steps(), "measured on cuda")]
    )
    assert rows[0]["time_ratio"] == 1.0
    assert rows[1]["time_ratio"] is None
    assert isinstance(rows[1]["num_pairs"], int)
    assert not any(isinstance(value, pd.Series) for row in rows for value in row.values())


def test_a_busy_machine_is_told_by_the_processors_time():
    def run(took, used, label="measured on cpu"):
        found = FakeRun(steps(), label)
        found.summary["total_wait_seconds"] = 2.0
        found.info |= {"wall_seconds": took, "thread_seconds": used}
        return found

    idle, slow = run(12.0, 9.8), run(12.0, 4.0)
    assert comparing.slowed_by_others(slow) == 2.5
    assert comparing.slowed_by_others(FakeRun(steps(), "measured on cpu")) is None  # An old record.
    assert comparing.slowed_by_others(run(12.0, 4.0, "measured on cuda")) is None  # Which waits.
    text = tables.comparison(comparing.compare([idle, slow]))
    assert "the machine was busy: runs took 1.02 (p) to 2.50 (p) times" in text
    assert "busy" not in tables.comparison(comparing.compare([idle, idle]))
