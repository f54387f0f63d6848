"""Table V: which sizes are predicted, and how errors are judged."""

from functools import partial

import pytest

from mimose_bench.experiments.figures import table5
from mimose_bench.experiments.figures.session import opened
from mimose_bench.experiments.figures.text import describe
from mimose_bench.experiments.tasks import TASKS, TaskOptions, make_task

LABEL = "simulated v100-32gb"


def errors(share, num_seen=0, allocated=0.0):
    found = [
        table5.Prediction(
            size=(8, length),
            predicted=round(1e9 * (1 + sign * share)),
            tensors=10**9,
            predicted_allocated=round(1.01e9 * (1 + allocated)),
            allocated=round(1.01e9),
        )
        for length, sign in ((100, 1), (200, -1))
    ]
    return table5.Errors(predictions=tuple(found), num_seen=num_seen)


def outside(result):
    return [claim.text for claim in result.claims if claim.verdict == "outside"]


def test_an_error_as_large_as_the_papers_passes_and_a_larger_one_fails_by_name():
    measured = {name: errors(bound * 0.999) for name, bound in table5.BOUNDS.items()}
    measured["ic-resnet50"] = errors(0.5)  # nothing to hold it against
    assert table5.judge(measured, LABEL).passed
    measured["tr-t5"] = errors(0.0011)
    result = table5.judge(measured, LABEL)
    assert outside(result) == [
        "TR-T5: mean relative error of the predicted bytes of all blocks' tensors"
    ]
    measured["tr-t5"] = errors(0.0, allocated=0.0011)
    result = table5.judge(measured, LABEL)
    assert outside(result) == [
        "TR-T5: mean relative error of the predicted bytes that the allocator counts for all blocks"
    ]
    assert {row.series for row in result.rows} == {TASKS[name].title for name in table5.ERRORS}


def test_every_task_is_measured_and_the_text_says_what_was_seen_before():
    assert set(table5.BOUNDS) <= set(TASKS)
    result = table5.judge({"tr-t5": errors(0.0), "ic-swin": errors(0.01, num_seen=1)}, LABEL)
    shown = describe(result)
    assert "0.100 %" in shown
    t5, swin = result.claims[0], result.claims[2]
    assert (t5.version, t5.expected, t5.bound, t5.tolerance) == ("ipdps", 0.001, "at most", 0)
    assert (swin.version, swin.expected, swin.source) == ("v1", 0.05, "text on Swin Transformer")
    assert "IC-Swin: a bound and no value in the paper; 2 sizes, 1 of them sampled." in shown


class Covers:
    def covers(self, size):
        return size[1] <= 300


def test_sizes_are_different_covered_and_if_possible_new():
    later = [(8, x) for x in (100, 400, 200, 100, 250, 200)]
    chosen = table5.to_predict(later, {(8, 100)}, Covers(), 3)
    assert chosen == [(8, 200), (8, 250), (8, 100)]
    assert table5.to_predict(later, {(8, 100)}, Covers(), 2) == [(8, 200), (8, 250)]


@pytest.mark.parametrize("name", ["tr-t5", "ic-swin"])
def test_narrow_models_are_predicted_as_well(name):
    task = make_task(name, TaskOptions(scale="tiny", data="synthetic"))
    with opened("sim:v100") as device:
        found = table5.measure(device, task, 3)
    assert found.predictions
    assert max(p.error for p in found.predictions) < 0.01


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_error_of_tensors_is_larger_than_the_papers():
    result = table5.check(partial(opened, "sim:v100"))
    tensors = [c for c in result.claims if c.text.endswith("tensors")]
    assert len(tensors) == len(table5.BOUNDS)
    assert all(c.verdict == "holds" for c in tensors), outside(result)
    # Chance decides on these by rests of up to 1 MiB a tensor; docs/reproduce.md says which fail.
    assert all(c.obtained < 0.03 for c in result.claims)
    assert all(c.value < 0.03 for c in result.criteria)
