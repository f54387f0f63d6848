"""Calibrating finds the rates of a GPU made of formulas, and never passes a CPU's off as one's."""

import contextlib
import dataclasses
import json
import sys
import time
from types import MappingProxyType, SimpleNamespace

import pytest
import torch

from mimose.devices.sim.gpus import WORK_UNITS, from_json, load_gpu, save, to_json
from mimose_bench import cli
from mimose_bench.experiments import calibrate, cuda_bench
from mimose_bench.experiments.calibrate import Facts, measure_rates, rows, slug, specification
from mimose_bench.experiments.planning_cost import measure_planning

TINY = ((1, 8, 4, 6), (3, 4, 5, 6))
FACTS = Facts(
    title="NVIDIA Nonesuch 8 GB",
    memory_bytes=8 << 30,
    context_bytes=300 << 20,
    compute_capability=(8, 9),
    num_sms=24,
    software="driver 1, CUDA 2, PyTorch 3",
    host="a processor",
)
PLANNING = dict.fromkeys(WORK_UNITS, 1e-6)


class FakeGpu:
    """A GPU of the clock's own model, both the work and the timer; every seventh time is off."""

    label = "measured on cuda"
    kernel, launch, synchronize = 3e-6, 8e-6, 11e-6
    flops = MappingProxyType({"fp32": 14e12, "tf32": 80e12, "fp16": 90e12})
    bandwidth, pinned, pageable = 7e11, 1.2e10, 5e9

    def __init__(self):
        self.device_clock = self.host_clock = 0.0
        self.readings = 0

    def work(self, seconds):
        def call():
            self.device_clock += self.kernel + seconds
            self.host_clock += self.launch

        return call

    def small(self):
        return [self.work(0.0)] * 3

    def matmul(self, shape, precision):
        count, rows, inner, columns = shape
        return self.work(2 * count * rows * inner * columns / self.flops[precision])

    def elementwise(self, num_bytes):
        return [(self.work(moved / self.bandwidth), moved) for moved in (num_bytes, 3 * num_bytes)]

    def host_copies(self, num_bytes, *, pinned):
        return [self.work(num_bytes / (self.pinned if pinned else self.pageable))] * 2

    def disturbed(self, seconds):
        self.readings += 1
        return seconds * (9 if self.readings % 7 == 0 else 1)

    def device_seconds(self, call, repeats):
        before = self.device_clock
        for _ in range(repeats):
            call()
        return self.disturbed((self.device_clock - before) / repeats)

    def host_seconds(self, call, repeats):
        before = self.host_clock
        for _ in range(repeats):
            call()
        return self.disturbed((self.host_clock - before) / repeats)

    def synchronize_seconds(self):
        return self.disturbed(self.synchronize)


class WallTimer:
    """Times the CPU, and says so."""

    label = "measured on cpu"

    def device_seconds(self, call, repeats):
        started = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - started) / repeats

    host_seconds = device_seconds

    def synchronize_seconds(self):
        return 1e-6


@pytest.fixture
def measured():
    gpu = FakeGpu()
    return measure_rates(gpu, gpu, ("fp32", "tf32", "fp16"))


def test_the_rates_of_a_known_gpu_are_found(measured):
    assert dict(measured.attained_flops) == pytest.approx(FakeGpu.flops)
    assert measured.attained_bandwidth == pytest.approx(FakeGpu.bandwidth)
    assert measured.copy_bandwidth == pytest.approx(FakeGpu.pinned)
    assert measured.pageable_copy_bandwidth == pytest.approx(FakeGpu.pageable)
    assert measured.kernel_seconds == pytest.approx(FakeGpu.kernel)
    assert measured.launch_seconds == pytest.approx(FakeGpu.launch)
    assert measured.synchronize_seconds == pytest.approx(FakeGpu.synchronize)


def test_work_shorter_than_its_fixed_part_has_a_rate_still():
    gpu = FakeGpu()
    gpu.matmul = lambda shape, precision: lambda: None
    gpu.device_seconds = lambda call, repeats: 1e-6
    found = measure_rates(gpu, gpu, ("fp32",), matmuls=TINY)
    assert found.attained_flops["fp32"] > 0


def test_a_specification_is_what_was_measured_and_can_be_simulated(measured, tmp_path):
    gpu = specification(measured, FACTS, PLANNING)
    path = tmp_path / "gpu.json"
    save(gpu, path)
    assert load_gpu(path) == gpu
    assert (gpu.name, gpu.title) == ("nvidia-nonesuch-8-gb", FACTS.title)
    assert gpu.memory_bytes == FACTS.memory_bytes
    assert gpu.attained_flops == measured.attained_flops
    assert dict(gpu.host_unit_seconds) == PLANNING
    assert gpu.calibration.startswith("measured on cuda")
    assert FACTS.software in gpu.calibration
    assert FACTS.host in " ".join(gpu.sources)
    assert gpu.clock_error is None
    assert gpu.peak_bandwidth is None


def test_figures_of_a_cpu_make_no_gpu(measured):
    there = dataclasses.replace(measured, label="measured on cpu")
    with pytest.raises(ValueError, match="measured on cpu are no GPU's"):
        specification(there, FACTS, PLANNING)


def test_the_table_has_every_figure_with_its_unit(measured):
    shown = {what: (value, spread) for what, value, spread in rows_of(measured)}
    assert shown["matrix products fp32"] == ("14.0 TFLOP/s", "14.0 to 14.0 by shape")
    assert shown["element-wise operators"][0] == "700.0 GB/s"
    assert shown["copies, pageable"][0] == "5.0 GB/s"
    assert shown["kernel, fixed part"][0] == "3.0 us"
    assert shown["operator on the host"][0] == "8.0 us"
    assert shown["memory"][0] == "8.00 GiB"
    assert shown["planning: lookup"][0] == "1.0 us"


def rows_of(measured):
    return rows(specification(measured, FACTS, PLANNING), measured.matmuls)


@pytest.mark.parametrize(
    ("title", "name"),
    [("NVIDIA A100-SXM4-80GB", "nvidia-a100-sxm4-80gb"), ("Tesla T4", "tesla-t4"), ("?", "gpu")],
)
def test_names_of_files(title, name):
    assert slug(title) == name


# -- the work itself, on the CPU


@pytest.fixture
def kernels():
    return cuda_bench.TorchKernels(torch.device("cpu"))


def test_all_of_the_work_runs(kernels):
    found = measure_rates(
        kernels,
        WallTimer(),
        ("fp32", "tf32", "bf16"),
        matmuls=TINY,
        elementwise_bytes=4096,
        copy_bytes=4096,
    )
    assert found.label == "measured on cpu"
    assert set(found.attained_flops) == {"fp32", "tf32", "bf16"}
    assert all(len(rates) == len(TINY) for rates in found.matmuls.values())
    assert found.attained_bandwidth > 0


@pytest.mark.parametrize("shape", TINY)
def test_products_have_the_shape_that_is_counted(kernels, shape):
    count, rows, _, columns = shape
    out = kernels.matmul(shape, "fp32")()
    assert out.numel() == count * rows * columns
    assert calibrate._flops(shape) == 2 * out.numel() * shape[2]


def test_tf32_is_on_for_its_own_measurement_only(kernels, monkeypatch):
    during = []
    monkeypatch.setattr(
        torch, "mm", lambda *_, **__: during.append(torch.get_float32_matmul_precision())
    )
    before = torch.get_float32_matmul_precision()
    for precision in ("fp32", "tf32", "fp16"):
        kernels.matmul((1, 2, 2, 2), precision)()
    assert during == ["highest", "high", "highest"]
    assert torch.get_float32_matmul_precision() == before


def test_element_wise_operators_move_the_bytes_that_are_counted(kernels):
    for call, moved in kernels.elementwise(4096):
        assert call().nbytes == 4096
        assert moved % 4096 == 0


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 0), ("fp32", "fp16", "bf16")), ((9, 0), ("fp32", "tf32", "fp16", "bf16"))],
)
def test_tf32_is_measured_where_there_is_hardware_for_it(capability, expected):
    assert cuda_bench.precisions(capability) == expected


def test_a_cuda_timer_times_no_cpu():
    with pytest.raises(ValueError, match="not cpu"):
        cuda_bench.CudaTimer(torch.device("cpu"))


# -- the timer and the facts, CUDA played by a script


@pytest.fixture
def cuda(monkeypatch):
    """Stand in for ``torch.cuda``: a list of what was asked of it, in order, an event each 2 ms."""
    asked = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            asked.append("event")

        def synchronize(self):
            asked.append("wait")

        def elapsed_time(self, end):
            return 2.0

    properties = SimpleNamespace(
        name="Tesla T4", total_memory=15 << 30, major=7, minor=5, multi_processor_count=40
    )
    stand_ins = {
        "device": lambda device: contextlib.nullcontext(),
        "synchronize": lambda device=None: asked.append("synchronize"),
        "_sleep": lambda cycles: asked.append("hold"),
        "Event": Event,
        "get_device_properties": lambda device: properties,
        "mem_get_info": lambda device: (10 << 30, 15 << 30),
        "memory_reserved": lambda device: 1 << 30,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    return asked


def test_the_device_is_held_until_everything_is_issued(cuda):
    timer = cuda_bench.CudaTimer(torch.device("cuda", 0))
    seconds = timer.device_seconds(lambda: cuda.append("call"), 4)
    assert seconds == pytest.approx(2e-3 / 4)
    assert cuda == ["call", "synchronize", "hold", "event", *["call"] * 4, "event", "wait"]


def test_the_host_is_timed_without_waiting_for_the_device(cuda, monkeypatch):
    ticks = iter((1.0, 1.5))
    monkeypatch.setattr(cuda_bench.time, "perf_counter", lambda: cuda.append("tick") or next(ticks))
    timer = cuda_bench.CudaTimer(torch.device("cuda", 0))
    assert timer.host_seconds(lambda: cuda.append("call"), 2) == pytest.approx(0.25)
    assert cuda == ["call", "synchronize", "tick", "call", "call", "tick", "synchronize"]


@pytest.mark.parametrize(("told", "context"), [(3 << 30, 2 << 30), (None, 4 << 30)])
@pytest.mark.usefixtures("cuda")
def test_the_context_is_what_the_allocator_does_not_hold(monkeypatch, told, context):
    figures = {"process_bytes": told, "driver": "570.1"}
    monkeypatch.setattr(cuda_bench.environment, "gpu", lambda index: figures)
    facts = cuda_bench.cuda_facts(torch.device("cuda", 0))
    assert facts.context_bytes == context
    assert (facts.title, facts.compute_capability, facts.num_sms) == ("Tesla T4", (7, 5), 40)
    assert facts.memory_bytes == 15 << 30
    assert "driver 570.1" in facts.software


# -- what planning costs


def test_planning_is_measured_in_the_units_that_are_counted():
    costs = measure_planning(rounds=1)
    assert set(costs) == set(WORK_UNITS)
    # Bounds for a busy machine: what comes along was measured at 2 to 21 microseconds.
    assert all(1e-8 < seconds < 1e-3 for seconds in costs.values())


# -- the verb


def run_verb(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["mimose-bench", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so_and_writes_nothing(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_verb(monkeypatch, capsys, "calibrate", "--out", "gpu.json")
    assert (code, out) == (1, "")
    (line,) = err.splitlines()
    assert "needs a CUDA device" in line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cpu", "cuda:", "cuda:x", "cuda0", "sim:v100"])
def test_what_is_no_gpu_is_refused(name):
    with pytest.raises(ValueError, match="give cuda or cuda:N"):
        cuda_bench.find_gpu(name)


@pytest.fixture
def fake_cuda(monkeypatch, measured):
    """As if there were a GPU: its measurements are those of the fake one."""
    monkeypatch.setattr(cuda_bench, "title", lambda device: FACTS.title)
    monkeypatch.setattr(cuda_bench, "calibrate", lambda device: (measured, FACTS))


@pytest.mark.usefixtures("fake_cuda")
def test_the_file_is_named_after_the_gpu(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = run_verb(monkeypatch, capsys, "calibrate")
    assert code == 0
    assert FACTS.title in err
    assert "14.0 TFLOP/s" in out
    assert "sim:nvidia-nonesuch-8-gb.json" in out
    assert load_gpu("nvidia-nonesuch-8-gb.json").title == FACTS.title


@pytest.mark.usefixtures("fake_cuda")
def test_json_has_the_path_and_the_gpu(monkeypatch, capsys, tmp_path):
    path = tmp_path / "gpu.json"
    code, out, _ = run_verb(monkeypatch, capsys, "calibrate", "--out", str(path), "--json")
    assert code == 0
    answer = json.loads(out)
    assert answer["path"] == str(path)
    assert from_json(answer["gpu"]) == load_gpu(path)


@pytest.mark.usefixtures("fake_cuda")
def test_a_folder_that_is_not_there_is_named_before_anything_is_measured(
    monkeypatch, capsys, tmp_path
):
    monkeypatch.setattr(cuda_bench, "calibrate", lambda device: pytest.fail("measured"))
    path = tmp_path / "no" / "gpu.json"
    code, _, err = run_verb(monkeypatch, capsys, "calibrate", "--out", str(path))
    assert code == 1
    assert str(path.parent) in err


def test_list_shows_what_can_be_simulated(monkeypatch, capsys):
    _, out, _ = run_verb(monkeypatch, capsys, "list", "--json")
    found = {gpu["device"]: gpu for gpu in json.loads(out)["simulated"]}
    v100 = to_json(load_gpu("v100"))
    assert found["sim:v100-32gb"] == {
        "device": "sim:v100-32gb",
        **{k: v100[k] for k in ("title", "memory_bytes", "calibration", "clock_error")},
    }
    _, out, _ = run_verb(monkeypatch, capsys, "list")
    (line,) = [line for line in out.splitlines() if line.startswith("sim:v100-32gb ")]
    assert v100["title"] in line
    assert "31.75 GiB" in line
    assert v100["calibration"] in line


@pytest.mark.gpu
def test_a_real_gpu():
    device = cuda_bench.find_gpu("cuda")
    found = measure_rates(
        cuda_bench.TorchKernels(device),
        cuda_bench.CudaTimer(device),
        ("fp32", "fp16"),
        matmuls=calibrate.MATMULS[:1],
    )
    gpu = specification(found, cuda_bench.cuda_facts(device), PLANNING)
    assert gpu.copy_bandwidth < gpu.attained_bandwidth
    assert 1e-7 < gpu.kernel_seconds < 1e-4
    assert 1e-7 < gpu.launch_seconds < 1e-3
    assert gpu.attained_flops["fp32"] < gpu.attained_flops["fp16"]
