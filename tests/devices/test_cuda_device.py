"""The device cuda: its arithmetic on pretended statistics, and (marked gpu) the real thing."""

from __future__ import annotations

import pytest
import torch

from mimose.devices.cuda import CudaDevice
from mimose.devices.cuda_trace import trace_of_cuda
from mimose.devices.trace import StepPeaks, replay
from mimose.units import GIB, MIB


class Pretended:
    """PyTorch's statistics of one GPU of 16 GiB, without the GPU."""

    total_memory = 16 * GIB

    def __init__(self) -> None:
        self.allocated = self.peak = 0
        self.reserved = self.reserved_peak = 0
        self.retries = 0
        self.resets = 0
        self.fraction = 0.75

    def take(self, allocated: int, reserved: int = 0) -> None:
        self.allocated += allocated
        self.reserved += reserved
        self.peak = max(self.peak, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def stats(self, device: torch.device) -> dict:
        return {
            "allocated_bytes": {"all": {"current": self.allocated, "peak": self.peak}},
            "reserved_bytes": {"all": {"current": self.reserved, "peak": self.reserved_peak}},
            "num_alloc_retries": self.retries,
        }

    def reset(self, device: torch.device | None = None) -> None:
        self.peak, self.reserved_peak = self.allocated, self.reserved
        self.resets += 1

    def set_fraction(self, fraction: float, device: torch.device) -> None:
        self.fraction = fraction


class NoContext:
    def __init__(self, device: torch.device) -> None:
        pass

    def __enter__(self) -> None:
        pass

    def __exit__(self, *raised: object) -> None:
        pass


@pytest.fixture
def gpu(monkeypatch) -> Pretended:
    gpu = Pretended()
    for name, value in {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "init": lambda: None,
        "memory_stats_as_nested_dict": gpu.stats,
        "reset_peak_memory_stats": gpu.reset,
        "get_device_properties": lambda device: gpu,
        "set_per_process_memory_fraction": gpu.set_fraction,
        "get_per_process_memory_fraction": lambda device: gpu.fraction,
        "empty_cache": lambda: setattr(gpu, "reserved", gpu.allocated),
        "device": NoContext,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    return gpu


def test_index_beyond_the_last(gpu: Pretended) -> None:
    with pytest.raises(ValueError, match="no device 'cuda:1': this machine has 1"):
        CudaDevice(1)


def test_peaks_that_may_be_reset_are_exact(gpu: Pretended) -> None:
    gpu.take(5, 20)
    gpu.take(-2)
    device = CudaDevice(reset_peaks=True)
    device.begin_step()
    gpu.take(40, 40)
    gpu.take(-40)
    assert device.mark().peak_allocated == 43
    gpu.take(10)
    gpu.take(-8)
    assert device.mark().peak_allocated == 13
    gpu.take(4)
    assert device.mark().allocated == 9
    step = device.end_step()
    assert (step.peak_allocated, step.peak_reserved, step.exact) == (43, 60, True)
    device.begin_step()
    assert device.end_step().peak_allocated == 9
    assert (device.peak_allocated_bytes(), device.peak_reserved_bytes()) == (43, 60)


def test_peaks_of_a_user_are_left_alone(gpu: Pretended) -> None:
    gpu.take(100, 200)
    gpu.take(-90)
    device = CudaDevice()
    device.begin_step()
    gpu.take(50)
    gpu.take(-50)
    assert device.mark().peak_allocated is None
    step = device.end_step()
    # Below the earlier peak, so only bounded by it.
    assert (step.peak_allocated, step.peak_reserved, step.exact) == (100, 200, False)
    device.begin_step()
    gpu.take(150, 20)
    gpu.take(-150)
    assert device.mark().peak_allocated == 160
    assert device.mark().peak_allocated is None
    step = device.end_step()
    assert (step.peak_allocated, step.peak_reserved, step.exact) == (160, 220, True)
    assert gpu.resets == 0


def test_bounds_use_reserved_bytes(gpu: Pretended) -> None:
    gpu.take(100, 200)
    gpu.take(-90, -150)  # the cache was emptied
    device = CudaDevice()
    device.begin_step()
    gpu.take(20, 10)
    step = device.end_step()
    assert (step.peak_allocated, step.peak_reserved, step.exact) == (60, 60, False)
    # After a retry reserved bytes may have been higher in between.
    gpu.retries += 2
    step = device.end_step()
    assert (step.peak_allocated, step.peak_reserved) == (100, 200)
    assert step.num_alloc_retries == 2


def test_budget_is_a_fraction_and_is_taken_back(gpu: Pretended) -> None:
    device = CudaDevice()
    gpu.take(GIB, 3 * GIB)
    for budget in (6 * GIB, 6 * GIB + 1, 1_234_567_891):
        device.enforce(budget)
        assert int(gpu.fraction * gpu.total_memory) == budget
        assert gpu.reserved == GIB
    device.enforce(20 * GIB)
    assert gpu.fraction == 1.0
    with pytest.raises(ValueError, match=r"more than the budget of 512\.00 MiB"):
        device.enforce(512 * MIB)
    device.close()
    assert gpu.fraction == 0.75
    device.close()
    assert gpu.fraction == 0.75


@pytest.mark.gpu
class TestOnGpu:
    @pytest.fixture
    def device(self):
        if not torch.cuda.is_available():
            pytest.skip("no CUDA device")
        opened = CudaDevice(reset_peaks=True)
        yield opened
        opened.close()

    def test_budget(self, device: CudaDevice) -> None:
        base = device.allocated_bytes()
        device.release_cache()
        budget = device.reserved_bytes() + 64 * MIB
        device.enforce(budget)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(66 * MIB, dtype=torch.uint8, device=device.torch_device)
        kept = torch.empty(64 * MIB, dtype=torch.uint8, device=device.torch_device)
        assert device.allocated_bytes() - base == 64 * MIB
        assert device.reserved_bytes() == budget
        del kept

    def test_marks_and_time(self, device: CudaDevice) -> None:
        base = device.allocated_bytes()
        device.begin_step()
        start = device.now()
        torch.empty(30 * MIB, dtype=torch.uint8, device=device.torch_device).fill_(1)
        end = device.now()
        assert device.mark().peak_allocated - base == 30 * MIB
        assert device.mark().peak_allocated == base
        assert device.end_step().peak_allocated - base == 30 * MIB
        assert 0 < device.seconds_between(start, end) < 10
        assert device.largest_free_block_bytes() >= 30 * MIB

    def test_adopt_and_put(self, device: CudaDevice) -> None:
        model = torch.nn.Linear(8, 8)
        weight = model.weight
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        device.adopt(model)
        assert model.weight is weight
        assert weight.is_cuda
        state = device.rng_state()
        model(device.put({"x": torch.randn(2, 8)})["x"]).sum().backward()
        optimizer.step()
        drawn = torch.rand(3, device=device.torch_device)
        device.set_rng_state(state)
        assert torch.equal(drawn, torch.rand(3, device=device.torch_device))

    def test_history_replays_to_the_same_peaks(self, device: CudaDevice) -> None:
        model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
        device.adopt(model)
        device.release_cache()
        torch.cuda.memory._record_memory_history("all", context=None)
        try:
            start = torch.cuda.memory._snapshot()
            peaks = []
            for rows in (100, 9000, 300, 12000):
                device.begin_step()
                model(torch.randn(rows, 512, device=device.torch_device)).sum().backward()
                model.zero_grad()
                step = device.end_step()
                peaks.append(
                    StepPeaks(step.peak_allocated, step.peak_reserved, step.num_alloc_retries)
                )
                end = torch.cuda.memory._snapshot()
        finally:
            torch.cuda.memory._record_memory_history(None)
        trace = trace_of_cuda(
            start, end, peaks, device=torch.cuda.get_device_name(), torch=torch.__version__
        )
        assert replay(trace) == peaks
