"""The paper's figures on the simulated V100: a few points always, all of them among the slow."""

from functools import partial

import pytest

from mimose.devices.sim.gpus import load_gpu
from mimose_bench.experiments.figures import clock, fig3, fig9, stars
from mimose_bench.experiments.figures.result import FACTORS
from mimose_bench.experiments.figures.session import opened
from mimose_bench.experiments.figures.workloads import QA_BERT
from mimose_bench.experiments.paper import memory_bounds

simulated = partial(opened, "sim:v100")


def missed(result):
    return [(c.name, c.value) for c in result.criteria if not c.passed]


@pytest.mark.parametrize(
    "workload",
    # One of them in ``make test``; its curve is as long as any other's.
    [
        pytest.param(w, id=w.dataset, marks=() if w.dataset == "SWAG" else pytest.mark.slow)
        for w in fig3.WORKLOADS
    ],
)
def test_unchecked_memory_at_a_few_lengths(workload):
    lengths = fig3.lengths_of(workload.dataset)
    with simulated() as device:
        peaks = fig3.measure(device, workload, lengths[:: len(lengths) // 4])
    result = fig3.judge({workload.dataset: peaks}, "simulated v100-32gb")
    assert result.passed, missed(result)


@pytest.mark.parametrize("reading", fig9.READINGS, ids=lambda reading: reading.unit)
def test_encoders_at_one_length(reading):
    curves = {}
    for curve, plan in fig9.PLANS.items():
        with simulated() as device:
            curves[curve] = fig9.measure(device, reading.workload, plan, [83])
        expected = dict(fig9.layer_selection()[curve])[83] * FACTORS[reading.unit]
        assert curves[curve][83] == pytest.approx(expected, rel=reading.tolerance), curve
    assert fig9.in_order(curves, 83)


@pytest.mark.parametrize(
    "which",
    [pytest.param(stars.UPPER, marks=pytest.mark.slow), stars.LOWER],
)
def test_the_stars_of_qa_bert(which):
    measurement = stars.Measurement(simulated, QA_BERT, stars.PLANNERS[which])
    star = measurement.star(which, stars.QUICK_RUNS, stars.QUICK_STEPS)
    expected = dict(zip(stars.PLANNERS, memory_bounds("QA-Bert")))[which]
    assert star.middle == pytest.approx(expected, rel=stars.TOLERANCE)


def test_a_simulated_time_is_the_same_every_time():
    (timing,) = (t for t in clock.TIMINGS if t.name == "fig4-pytorch-55")
    times = []
    for _ in range(2):
        with simulated() as device:
            times.append(clock.measure(device, timing))
    assert times[0] == times[1]
    # Half to twice: the clock's own tolerance is a mean over all the published times.
    assert timing.seconds / 2 < times[0] < timing.seconds * 2


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("check", [fig3.check, fig9.check, stars.check])
def test_every_value_of_memory(check):
    result = check(simulated)
    assert result.passed, missed(result)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_clock_is_off_by_what_its_specification_says():
    result = clock.check(simulated)
    calibrated = load_gpu("v100").calibrated_on
    own, judged = [], []
    for timing, row in zip(clock.TIMINGS, result.rows, strict=True):
        (own if timing.name in calibrated else judged).append(abs(row.error))
    assert len(own) == len(calibrated)
    assert max(own) < 0.01
    stated = load_gpu("v100").clock_error
    assert stated.count == len(judged)
    assert stated.mean == pytest.approx(sum(judged) / len(judged), abs=0.005)
    assert stated.maximum == pytest.approx(max(judged), abs=0.005)
