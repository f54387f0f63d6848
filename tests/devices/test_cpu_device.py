"""The device cpu: what counts, what the budget does, and that tensors outlive everything."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from mimose.devices import device_for, open_device
from mimose.devices.cpu import CpuDevice
from mimose.units import KIB, MIB


@pytest.fixture
def device():
    opened = CpuDevice()
    yield opened
    opened.close()


def tensor(num_bytes: int) -> torch.Tensor:
    return torch.empty(num_bytes, dtype=torch.uint8)


def test_counts_like_the_caching_allocator(device: CpuDevice) -> None:
    assert (device.allocated_bytes(), device.reserved_bytes()) == (0, 0)
    kept = tensor(3 * MIB)
    assert (device.allocated_bytes(), device.reserved_bytes()) == (3 * MIB, 20 * MIB)
    assert device.largest_free_block_bytes() == 17 * MIB
    del kept
    assert (device.allocated_bytes(), device.reserved_bytes()) == (0, 20 * MIB)
    device.release_cache()
    assert device.reserved_bytes() == 0
    assert (device.peak_allocated_bytes(), device.peak_reserved_bytes()) == (3 * MIB, 20 * MIB)


def test_zero_bytes(device: CpuDevice) -> None:
    empty = tensor(0)
    assert empty.data_ptr() == 0
    assert device.reserved_bytes() == 0
    empty.resize_(1000)
    assert device.allocated_bytes() == 1024


def test_memory_is_aligned_and_usable(device: CpuDevice) -> None:
    for num_bytes in (1, 63, 64, 4096, MIB + 1, 64 * MIB):
        filled = tensor(num_bytes).fill_(7)
        assert filled.data_ptr() % 64 == 0
        assert int(filled[-1]) == 7


def test_out_of_memory_and_recovery(device: CpuDevice) -> None:
    device.enforce(32 * MIB)
    kept = tensor(20 * MIB)
    with pytest.raises(torch.OutOfMemoryError) as error:
        tensor(14 * MIB)
    text = str(error.value)
    # What accelerate's find_executable_batch_size looks for.
    assert isinstance(error.value, RuntimeError)
    assert " out of memory." in text
    for part in ("allocate 14.00 MiB", "budget is 32.00 MiB", "20.00 MiB is allocated", "largest"):
        assert part in text
    assert device.stats().num_ooms == 1
    del kept
    assert tensor(30 * MIB).numel() == 30 * MIB
    assert device.peak_reserved_bytes() == 30 * MIB


def test_budget_refuses_before_the_machine_does(device: CpuDevice) -> None:
    device.enforce(32 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        tensor(1 << 60)
    device.enforce(None)
    with pytest.raises(RuntimeError, match="can't allocate memory") as error:
        tensor(1 << 60)
    assert not isinstance(error.value, torch.OutOfMemoryError)
    # What the machine refused left no trace in the books.
    assert device.peak_reserved_bytes() == 0


def test_retry_is_counted(device: CpuDevice) -> None:
    device.enforce(32 * MIB)
    device.begin_step()
    del_me = tensor(20 * MIB)
    del del_me
    kept = tensor(30 * MIB)
    step = device.end_step()
    assert step.num_alloc_retries == 1
    assert step.peak_reserved == 30 * MIB
    device.begin_step()
    assert device.end_step().num_alloc_retries == 0
    del kept


def test_enforce_empties_the_cache_and_refuses_what_is_too_late(device: CpuDevice) -> None:
    freed = tensor(20 * MIB)
    del freed
    device.enforce(10 * MIB)
    assert device.reserved_bytes() == 0
    device.enforce(None)
    kept = tensor(20 * MIB)
    with pytest.raises(ValueError, match=r"20\.00 MiB is in use .* give a larger budget"):
        device.enforce(10 * MIB)
    assert tensor(30 * MIB).numel()  # no limit was set
    del kept


def test_marks_and_steps(device: CpuDevice) -> None:
    resident = tensor(MIB)
    device.begin_step()
    temporary = tensor(4 * MIB)
    del temporary
    mark = device.mark()
    assert (mark.allocated, mark.peak_allocated) == (MIB, 5 * MIB)
    assert device.mark().peak_allocated == MIB
    step = device.end_step()
    assert (step.peak_allocated, step.exact) == (5 * MIB, True)
    device.begin_step()
    assert device.end_step().peak_allocated == MIB
    del resident


def test_host_memory_has_its_own_account(device: CpuDevice) -> None:
    device.enforce(2 * MIB)
    with device.host_memory():
        offloaded = tensor(50 * MIB)
        with device.host_memory():
            pass
        offloaded_too = tensor(MIB)
    assert device.allocated_bytes() == 0
    assert device.host_bytes() == (51 * MIB, 51 * MIB)
    del offloaded, offloaded_too
    assert device.host_bytes() == (0, 51 * MIB)
    assert device.allocated_bytes() == 0
    counted = tensor(512)
    assert device.allocated_bytes() == 512
    del counted


def test_host_memory_is_a_thread_s_own(device: CpuDevice) -> None:
    seen = []
    with device.host_memory():
        thread = threading.Thread(target=lambda: seen.append(tensor(MIB)))
        thread.start()
        thread.join()
    assert device.allocated_bytes() == MIB
    seen.clear()


def test_random_state_takes_no_device_memory(device: CpuDevice) -> None:
    state = device.rng_state()
    first = torch.rand(4)
    before = device.peak_allocated_bytes()
    device.set_rng_state(state)
    assert torch.equal(first, torch.rand(4))
    assert device.peak_allocated_bytes() - before <= 2 * 512  # rand(4) and what equal() needs


def test_one_device_at_a_time(device: CpuDevice) -> None:
    with pytest.raises(ValueError, match="open already"):
        open_device("cpu")


def test_close_reinstates_the_allocator_and_keeps_tensors() -> None:
    device = CpuDevice()
    device.enforce(4 * MIB)
    inside = tensor(MIB).fill_(3)
    device.close()
    device.close()
    outside = tensor(64 * MIB)
    assert device.allocated_bytes() == MIB
    with pytest.raises(ValueError, match="is closed"):
        device.enforce(None)
    second = CpuDevice()
    # Blocks of the earlier opening, and the plain allocator's, leave the new books alone.
    inside.resize_(2 * MIB)
    del outside
    assert int(inside[0]) == 3
    del inside
    assert second.allocated_bytes() == 0
    second.close()


def train(steps: int = 3) -> tuple[list[float], torch.Tensor]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16 * 64, 32),
        torch.nn.GELU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(32, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters())
    losses = []
    for _ in range(steps):
        loss = torch.nn.functional.cross_entropy(
            model(torch.randn(8, 3, 16, 16)), torch.randint(10, (8,))
        )
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, model[0].weight.detach().clone()


def test_training_is_bit_equal_and_leaves_nothing(device: CpuDevice) -> None:
    losses, weight = train()
    bfloat = torch.nn.Linear(64, 64).bfloat16()
    bfloat(torch.randn(4, 64).bfloat16()).sum().backward()
    del bfloat
    left = device.allocated_bytes()
    del weight
    assert left - device.allocated_bytes() == 2048  # 16 x 3 x 3 x 3 floats, rounded
    _, weight = train()
    device.close()
    plain_losses, plain_weight = train()
    assert losses == plain_losses
    assert torch.equal(weight, plain_weight)


def test_threads_keep_the_books_right(device: CpuDevice) -> None:
    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        live: list[torch.Tensor] = []
        for size in torch.randint(1, 64 * KIB, (1500,), generator=generator).tolist():
            live.append(tensor(size))
            if len(live) > 8:
                live.pop(size % len(live))

    before = device.allocated_bytes()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert device.allocated_bytes() == before
    device.release_cache()
    assert device.stats().num_segments <= 1


def test_foreign_bytes_of_a_model_made_before() -> None:
    model = torch.nn.Linear(256, 256)
    model.weight.grad = torch.zeros(256, 256)
    device = device_for(model)
    num_bytes = 2 * 256 * 256 * 4 + 256 * 4
    try:
        assert device.allocated_bytes() == device.reserved_bytes() == num_bytes
        with pytest.raises(ValueError, match="more than the budget"):
            device.enforce(num_bytes - 1)
        device.enforce(num_bytes + 2 * MIB)
        first = tensor(MIB)
        with pytest.raises(torch.OutOfMemoryError):
            tensor(2 * MIB)
        del first
    finally:
        device.close()


def nanoseconds_per_allocation(count: int) -> float:
    best = float("inf")
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(count):
            torch.empty(100)
        best = min(best, (time.perf_counter() - start) / count)
    return best * 1e9


def overhead(count: int) -> float:
    plain = nanoseconds_per_allocation(count)
    device = CpuDevice()
    try:
        # A fragmented pool, so that searching costs what it does in training.
        live = [tensor(512 * (1 + i % 64)) for i in range(4000)]
        del live[::2]
        return nanoseconds_per_allocation(count) - plain
    finally:
        device.close()


def test_overhead_is_small() -> None:
    assert overhead(2000) < 5000  # loose: the machine may be busy


@pytest.mark.slow
def test_overhead_is_below_one_microsecond() -> None:
    measured = overhead(100_000)
    print(f"{measured:.0f} ns an allocation over the plain allocator")
    assert measured < 1000
