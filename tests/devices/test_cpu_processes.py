"""The device cpu in forks, at exit, and compiled by two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from mimose.devices import library
from mimose.devices.cpu import CpuDevice
from mimose.units import MIB


class Wide(Dataset):
    """Samples that a worker needs far more memory to make than the budget allows."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        scratch = torch.ones(16 * MIB)
        return scratch[:8] * index


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_data_loader_workers_have_no_budget() -> None:
    device = CpuDevice()
    try:
        device.enforce(8 * MIB)
        loader = DataLoader(Wide(), batch_size=2, num_workers=2, multiprocessing_context="fork")
        batches = list(loader)
        assert torch.cat(batches).sum() == 8 * (0 + 1 + 2 + 3)
        assert device.stats().num_ooms == 0
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(16 * MIB)
    finally:
        device.close()


FORK = """
import os, torch
torch.set_num_threads(1)
from mimose.devices.cpu import CpuDevice
device = CpuDevice()
device.enforce(4 << 20)
kept = torch.ones(1 << 18)
before = device.allocated_bytes()
child = os.fork()
if child == 0:
    code = 1
    try:
        torch.ones(64 << 20)          # no limit
        assert device.allocated_bytes() == before
        del kept                      # the parent's block, freed here
        device.close()                # the parent's device: nothing to undo
        own = CpuDevice()             # and the child may have its own
        x = torch.ones(1 << 20)
        assert own.allocated_bytes() == 4 << 20
        own.close()
        code = 0
    finally:
        os._exit(code)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0
assert device.allocated_bytes() == before and float(kept.sum()) == 1 << 18
"""


def test_child_starts_afresh_and_parent_goes_on() -> None:
    done = run(FORK)
    assert done.returncode == 0, done.stderr


THREADS_AND_FORKS = """
import os, threading, torch
torch.set_num_threads(1)
from mimose.devices.cpu import CpuDevice
device = CpuDevice()
stop = threading.Event()
def work():
    while not stop.is_set():
        torch.empty(1000)
threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads: thread.start()
for _ in range(50):
    child = os.fork()
    if child == 0:
        torch.empty(1000)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
stop.set()
for thread in threads: thread.join()
"""


def test_fork_while_other_threads_allocate() -> None:
    done = run(THREADS_AND_FORKS)
    assert done.returncode == 0, done.stderr


EXIT = """
import torch
torch.set_num_threads(1)
from mimose.devices.cpu import CpuDevice
device = CpuDevice()
model = torch.nn.Conv2d(3, 8, 3)
out = model(torch.randn(2, 3, 16, 16))
out.sum().backward()
{}
"""


@pytest.mark.parametrize("last", ["", "device.close()", "del device"])
def test_exit_with_live_tensors(last: str) -> None:
    done = run(EXIT.format(last))
    assert (done.returncode, done.stderr) == (0, "")


BUILD = "from mimose.devices.allocator import AllocatorModel as M; print(M().malloc(1) is not None)"


def test_two_processes_compile_at_once(tmp_path) -> None:
    if library.find_compiler() is None:
        pytest.skip(library.NO_COMPILER)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", BUILD], env=environment, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    assert [p.communicate(timeout=120)[0].strip() for p in both] == ["True", "True"]
    folder = tmp_path / "mimose"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(list(folder.iterdir())) == 1  # no half-made file is left
    # Compiled once, the library is found without a compiler.
    done = run(BUILD, XDG_CACHE_HOME=str(tmp_path), PATH=str(tmp_path), CXX="")
    assert done.returncode == 0, done.stderr
