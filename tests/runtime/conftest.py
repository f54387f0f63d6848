from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch

from mimose.devices.base import Mark, StepMemory


class NoDevice:
    """A device that reports no memory; what is under test here does not depend on it."""

    kind = "cpu"
    label = "measured on cpu"
    torch_device = torch.device("cpu")

    def __init__(self) -> None:
        self.clock = 0.0

    def allocated_bytes(self) -> int:
        return 0

    def mark(self) -> Mark:
        return Mark(0, 0)

    def end_step(self) -> StepMemory:
        return StepMemory(0, 0, 0)

    def now(self) -> float:
        self.clock += 1.0
        return self.clock

    def seconds_between(self, start: float, end: float) -> float:
        return end - start

    def host_memory(self) -> AbstractContextManager[None]:
        return nullcontext()

    def rng_state(self) -> Any:
        return torch.get_rng_state()

    def set_rng_state(self, state: Any) -> None:
        torch.set_rng_state(state)


@pytest.fixture
def device() -> NoDevice:
    return NoDevice()
