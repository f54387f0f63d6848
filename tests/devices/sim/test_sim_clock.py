"""Time on a simulated GPU."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from mimose.devices.sim.clock import Clock
from mimose.devices.sim.costs import flop_count, kernel_seconds, moved_bytes
from mimose.devices.sim.device import SimDevice
from mimose.devices.sim.gpus import load_gpu
from mimose.records import Work

aten = torch.ops.aten
GPU = dataclasses.replace(
    load_gpu("v100"),
    attained_flops={"fp32": 1e13, "fp16": 1e14},
    attained_bandwidth=1e12,
    kernel_seconds=1e-6,
    launch_seconds=1e-5,
    synchronize_seconds=5e-6,
    copy_bandwidth=1e10,
    pageable_copy_bandwidth=5e9,
)


@pytest.fixture
def device():
    opened = SimDevice(GPU)
    yield opened
    opened.close()


def seconds(device, function):
    start = device.now()
    function()
    return device.seconds_between(start, device.now())


def test_the_host_runs_ahead_and_waits_when_it_synchronises():
    clock = Clock(synchronize_seconds=1.0, launch_seconds=2.0)
    for _ in range(3):
        clock.launch(2.0, 10.0)
    assert (clock.host, clock.device) == (6.0, 32.0)
    clock.synchronize()
    assert clock.host == 33.0
    clock.launch(2.0, 1.0)
    assert clock.device == 36.0  # the stream was idle: the host is what takes the time
    clock.launch(2.0, 1.0)
    assert clock.device == 38.0


def test_copies_overlap_with_kernels_until_one_waits_for_the_other():
    clock = Clock(synchronize_seconds=0.0, launch_seconds=1.0)
    clock.launch(1.0, 10.0)
    clock.copy(30.0)
    assert (clock.host, clock.device, clock.copies) == (2.0, 11.0, 32.0)
    clock.launch(1.0, 10.0)
    assert clock.device == 21.0
    clock.wait_for_copies()
    assert clock.device == 32.0
    clock.launch(1.0, 10.0)
    clock.let_copies_wait()
    clock.copy(1.0)
    assert clock.copies == 43.0
    clock.synchronize()
    assert clock.host == 43.0


def test_a_log_replays_to_the_same_times():
    def work(clock):
        clock.launch(1.0, 10.0)
        clock.copy(7.0)
        clock.let_copies_wait()
        clock.copy(3.0)
        clock.wait_for_copies()
        clock.launch(4.0, 0.5)
        clock.synchronize()
        clock.launch(1.0, 2.0)

    first, second = Clock(0.25, 0.5), Clock(0.25, 0.5)
    for clock in (first, second):
        clock.launch(3.0, 20.0)
    log = first.start_log()
    work(first)
    first.stop_log()
    second.replay(log, 0, len(log))
    assert (first.host, first.device, first.copies) == (second.host, second.device, second.copies)


def test_a_product_takes_its_flops_and_an_addition_its_bytes(device):
    x = torch.empty(4096, 4096, device="meta")
    assert seconds(device, lambda: x @ x) == pytest.approx(2 * 4096**3 / 1e13 + 1e-6, rel=0.01)
    half = torch.empty(4096, 4096, dtype=torch.float16, device="meta")
    assert seconds(device, lambda: half @ half) == pytest.approx(
        2 * 4096**3 / 1e14 + 1e-6, rel=0.02
    )
    assert seconds(device, lambda: x + x) == pytest.approx(3 * 4 * 4096**2 / 1e12 + 1e-6, rel=0.06)


def test_small_kernels_take_the_hosts_time(device):
    x = torch.empty(8, device="meta")
    device.synchronize()

    def many():
        for _ in range(100):
            x.add_(1)

    assert seconds(device, many) == pytest.approx(100 * 1e-5, rel=0.01)


def test_views_take_no_time(device):
    x = torch.empty(8, 8, device="meta")
    assert seconds(device, lambda: x.view(64).unsqueeze(0).expand(5, 64)) == 0.0


@pytest.mark.parametrize(
    ("packet", "args", "outputs", "expected"),
    [
        ("add", lambda x: (x, x), lambda x: x.clone(), 3),
        ("add_", lambda x: (x, x.clone()), "first", 3),
        ("copy_", lambda x: (x, x.clone()), "first", 2),
        ("zero_", lambda x: (x,), "first", 1),
        ("add", lambda x: (x, x[:1].expand(64, 64)), lambda x: x.clone(), 2 + 1 / 64),
    ],
)
def test_bytes_are_those_read_and_written(packet, args, outputs, expected):
    x = torch.empty(64, 64, device="meta")
    given = args(x)
    output = given[0] if outputs == "first" else outputs(x)
    moved = moved_bytes(getattr(aten, packet), given, output)
    assert moved == expected * 64 * 64 * 4


def test_a_look_up_reads_rows_not_the_table():
    table = torch.empty(30522, 768, device="meta")
    words = torch.empty(12, 100, dtype=torch.long, device="meta")
    found = torch.empty(12, 100, 768, device="meta")
    moved = moved_bytes(aten.embedding, (table, words), found)
    assert moved == 2 * 12 * 100 * 768 * 4 + 12 * 100 * 8


def test_flops_are_those_of_pytorchs_counter():
    left, right = torch.empty(3, 5, device="meta"), torch.empty(5, 7, device="meta")
    assert flop_count(aten.mm, (left, right), {}, left @ right) == 2 * 3 * 5 * 7
    assert flop_count(aten.add, (left, left), {}, left) == 0
    longest = kernel_seconds(GPU, aten.mm.default, (left, right), {}, left @ right)
    assert longest == pytest.approx(1e-6, rel=0.01)


def test_copies_to_the_device_go_over_the_bus_and_take_no_memory_of_ours(device):
    batch = torch.zeros(1 << 20, dtype=torch.float32)
    start = device.now()
    placed = device.put({"x": batch})["x"]
    assert device.now() - start == pytest.approx((4 << 20) / 5e9, rel=0.05)
    before = device.clock.host
    back = placed.cpu()
    assert device.clock.host - before > (4 << 20) / 5e9
    assert back.shape == batch.shape
    assert back.isnan().all()  # nobody knows what it holds


def test_offloaded_activations_take_no_memory_of_ours(device):
    x = torch.empty(1 << 20, device="meta", requires_grad=True)
    bus = 5 * (1 << 20) / 5e9  # the result of exp, and a mask of booleans
    for _ in range(2):
        device.synchronize()
        before = device.clock.device
        with torch.autograd.graph.save_on_cpu():
            y = torch.nn.functional.dropout(x.exp(), 0.5)
        assert device.clock.device - before > bus
        device.synchronize()
        before = device.clock.device
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert device.clock.device - before > bus


def test_copies_on_their_own_stream_overlap_with_kernels(device):
    x = torch.empty(4096, 4096, device="meta")
    device.synchronize()
    start = device.now()
    product = x @ x
    with device.copy_stream():
        x.to("cpu")
    kernels = device.now() - start
    assert kernels == pytest.approx(2 * 4096**3 / 1e13, rel=0.02)
    device.wait_for_copies()
    product.add_(1)
    copied = 4 * 4096**2 / 1e10
    assert device.now() - start > kernels + copied


def test_planning_is_charged_by_what_it_counts(device):
    price = GPU.host_unit_seconds
    work = Work(
        lookups=1, estimates=12, candidates=3, updates=2, evaluations=50, metadata=7, upkeep=9
    )
    expected = (
        price["lookup"] + 12 * price["estimate"] + 3 * price["candidate"] + 2 * price["update"]
    )
    expected += 50 * price["evaluation"] + 7 * price["metadata"] + 9 * price["upkeep"]
    before = device.clock.host
    assert device.charge(work, 123.0) == pytest.approx(expected)
    assert device.clock.host - before == pytest.approx(expected)


def test_copies_of_either_direction_run_beside_each_other_and_are_waited_for_one_by_one():
    clock = Clock(synchronize_seconds=0.0, launch_seconds=0.0)
    clock.launch(0.0, 10.0)
    clock.let_copies_wait()
    out, later = clock.copy(5.0), clock.copy(20.0)
    back = clock.copy(2.0, incoming=True)
    assert (out, later, back) == (15.0, 35.0, 12.0)
    assert clock.wait_until(back) == 2.0
    assert clock.wait_until(out) == 3.0
    assert clock.wait_until(back) == 0.0
    assert clock.now() == 15.0
    clock.wait_for_copies()
    assert clock.now() == 35.0


def test_a_step_that_waits_for_single_copies_is_not_replayed(device):
    def log_of(step):
        device.put(torch.zeros(4))
        log = device.start_log()
        step()
        device.stop_log()
        return log

    def copies():
        device.wait_for_copy(device.start_copy(1000, incoming=True))

    assert log_of(lambda: None).replayable
    assert not log_of(copies).replayable
    assert log_of(lambda: None).replayable


def test_a_copy_takes_its_bytes_after_the_kernels_before_it(device):
    x = torch.empty(4096, 4096, device="meta")
    device.synchronize()
    x @ x
    done = device.now()
    copy = device.start_copy(10**9, incoming=False)
    assert copy == pytest.approx(done + 10**9 / GPU.copy_bandwidth, rel=1e-3)
    assert device.wait_for_copy(copy) == pytest.approx(copy - done)
    assert device.now() == copy
