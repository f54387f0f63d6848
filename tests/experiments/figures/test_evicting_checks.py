"""The checks of DTR and DELTA, on networks small enough for a test."""

from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial

import pytest
import torch

from mimose.devices.sim.device import SimDevice
from mimose.devices.sim.gpus import load_gpu
from mimose_bench.experiments.figures import delta, fig5, fig5_cpu, fragmentation, limits
from mimose_bench.experiments.figures.classifiers import RESNET50, Classifier
from mimose_bench.experiments.figures.evicting import train
from mimose_bench.experiments.figures.session import opened, training
from mimose_bench.experiments.figures.transfers import kept_for_backward
from mimose_bench.experiments.figures.workloads import MC_ROBERTA, _bert

GIB = 1 << 30
NARROW = {
    "hidden_size": 128,
    "num_attention_heads": 8,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
}
NETWORK = Classifier(
    name="net", depths=(2, 2), embedding=16, widths=(64, 128), side=64, batch_size=64
)
SIMULATED = partial(opened, "sim:v100")


@pytest.fixture
def narrow(monkeypatch):
    workload = replace(MC_ROBERTA, new_model=partial(_bert, "BertForMultipleChoice", **NARROW))
    for module in (fig5, fragmentation):
        monkeypatch.setattr(module, "MC_ROBERTA", workload)
    lengths = [workload.longest, 60, workload.longest]
    batches = [workload.example_batch(length) for length in lengths]
    return train(SIMULATED, workload, "baseline", None, batches)


@contextmanager
def small_gpu():
    gpu = replace(load_gpu("v100-32gb"), memory_bytes=GIB // 2, context_bytes=0)
    with closing(SimDevice(gpu)) as device:
        yield device


def test_where_dtrs_time_goes(monkeypatch, narrow):
    used = narrow.peak_reserved / GIB
    bars = [
        replace(bar, used=share * used, own=0.7 * share * used)
        for bar, share in zip(fig5.BARS, (0.8, 0.95))
    ]
    monkeypatch.setattr(fig5, "BARS", bars)
    monkeypatch.setattr(fig5, "_length_of", lambda *_: 100)
    result = fig5.check(SIMULATED, steps=6, cpu_steps=0)
    shares, alike, alone, work, overhead = result.tables
    assert [len(table.rows) for table in (shares, alike, alone, work, overhead)] == [2, 2, 2, 4, 2]
    failed, *_ = result.criteria
    assert failed.value == 0
    for bar in bars:
        parts = {row.what: row for row in result.rows if row.series == bar.name}
        assert set(parts) == {*fig5.PARTS, "really used"}
        assert 0 < parts["recomputation"].obtained < parts["forward and backward"].obtained
        assert parts["planning"].obtained > 0
        assert parts["really used"].obtained <= round(bar.used * GIB)
    recomputing = [row.obtained for row in result.rows if row.what == "recomputation"]
    assert recomputing[0] > recomputing[-1]


def test_a_run_without_room_is_a_failure_and_has_no_times(monkeypatch, narrow):
    used = narrow.peak_reserved / GIB
    bars = [replace(fig5.BARS[0], used=0.9 * used, own=0.01 * used)]
    monkeypatch.setattr(fig5, "BARS", bars)
    monkeypatch.setattr(fig5, "_length_of", lambda *_: 100)
    result = fig5.check(SIMULATED, steps=3, cpu_steps=0)
    assert result.criteria[0].value == 2  # In both readings.
    assert not result.passed
    assert {row.what for row in result.rows} == {"really used"}
    assert result.rows[0].note == "out of memory"


def test_the_breakdown_is_measured_on_the_cpu_too():
    breakdown, overhead = fig5_cpu.measured_on_cpu(1, "tiny", lambda _: None)
    assert "measured on cpu" in breakdown.title
    assert "measured on cpu" in overhead.title
    assert len(breakdown.rows) == len(fig5_cpu.CPU_SHARES)
    assert {len(row) for row in breakdown.rows} == {len(breakdown.headers)}


def test_fragmentation_of_both(monkeypatch, narrow):
    budget = round(0.85 * narrow.peak_reserved)
    monkeypatch.setattr(fragmentation, "BUDGET", budget)
    monkeypatch.setattr(fragmentation, "RESERVE", budget // 3)
    ways = {
        name: (planner, options | ({"reserve": budget // 3} if planner == "dtr" else {}))
        for name, (planner, options) in fragmentation.WAYS.items()
    }
    monkeypatch.setattr(fragmentation, "WAYS", ways)
    result = fragmentation.check(SIMULATED, runs=1, steps=12, cpu_steps=0)
    failed, *_ = result.criteria
    assert failed.value == 0
    native, expandable = ({row[0]: row for row in table.rows} for table in result.tables)
    assert set(native) == set(ways)
    assert set(expandable) == {"dtr", "mimose"}
    assert float(native["dtr"][-2]) > 0  # Evictions.
    for row in (*native.values(), *expandable.values()):
        allocated, reserved, difference = map(float, row[1:4])
        assert reserved - allocated == pytest.approx(difference, abs=2e-3)
    assert {row.what for row in result.rows} == {"dtr", "mimose"}


def test_delta_is_measured_beside_dtr(monkeypatch):
    monkeypatch.setattr(delta, "NETWORKS", (NETWORK,))
    monkeypatch.setattr(delta, "SHARES", (0.8, 0.6))
    result = delta.check(SIMULATED, limits=False)
    times, work, verdict = result.tables
    assert {row[0] for row in times.rows} == set(delta.WAYS)
    assert {len(row) for row in times.rows} == {3}
    swapped = {row[0]: float(row[5]) for row in work.rows}
    assert swapped["delta, swap, 60%"] > 0
    assert swapped["delta, recompute, 60%"] == swapped["dtr, 60%"] == 0
    again = {row[0]: float(row[4]) for row in work.rows}
    assert again["dtr, 60%"] > 0
    assert again["delta, swap, 60%"] == 0
    assert len(verdict.rows) == 3
    assert not result.rows  # Nothing published is about this one.
    assert "short" not in str(result.criteria)


@pytest.mark.slow  # How a limit is sought is test_the_least_number_that_does.
def test_limits_are_found_and_keep_to_the_gpu(monkeypatch):
    monkeypatch.setattr(limits, "SHARE_STEP", 0.1)
    plain = limits.at(small_gpu, NETWORK, "baseline", None)
    share, course = limits.least_share(small_gpu, NETWORK, "dtr", plain, 20.0)
    assert 0.2 <= share <= 0.9
    assert course.seconds < 20 * plain.seconds
    assert course.peak_allocated <= round(share * plain.peak_allocated) + (1 << 20)
    most = partial(limits.largest_batch, small_gpu, NETWORK, grain=16, from_samples=16)
    plainly, kept = most("baseline")
    evicting, evicted = most("dtr", reserve="25%")
    assert kept.peak_reserved <= GIB // 2
    assert evicted.peak_reserved <= GIB // 2
    assert evicting > plainly
    assert limits.largest_batch(small_gpu, NETWORK, "baseline", 16, from_samples=2 * plainly) == (
        2 * plainly,
        None,
    )


def test_the_least_number_that_does():
    assert limits.least(1, 9, lambda number: number >= 4) == 4
    assert limits.least(1, 9, lambda number: True) == 1
    assert limits.least(1, 9, lambda number: False) is None


def test_what_is_kept_for_backward_is_what_forward_leaves():
    with SIMULATED() as device, training(device, NETWORK, "baseline") as session:
        session.take(NETWORK.batch())
        held = []
        model = session.handle.model
        model.register_forward_pre_hook(lambda *_: held.append(device.allocated_bytes()))
        model.register_forward_hook(lambda *_: held.append(device.allocated_bytes()))
        kept = kept_for_backward(session, NETWORK.batch())
    before, after = held
    assert sum(each.num_bytes for each in kept) == pytest.approx(after - before, rel=0.03)
    assert all(each.seconds > 0 for each in kept)


def test_the_resnets_are_the_published_ones():
    images = torch.zeros(1, 3, 224, 224, device="meta")
    with torch.device("meta"):
        model = RESNET50.build_model()
    assert sum(p.numel() for p in model.parameters()) == 25_557_032
    assert model(images).logits.shape == (1, 1000)
