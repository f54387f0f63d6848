"""Training steps with and without the eviction runtime, to be compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn

from mimose.devices import open_device
from mimose.eviction import Eviction, EvictionFigures
from mimose.runtime.eviction import live

Step = Callable[[nn.Module, Any], torch.Tensor]


class EvenTimer:
    """Every operator takes as long as every other: what is evicted does not depend on the time."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def start(self, _: Any) -> float:
        return self.seconds

    def stop(self, start: float, _: Any) -> float:
        self.seconds += 1e-3
        return 1e-3


@dataclass
class Trained:
    """What some steps came to: a row each."""

    resident: int
    peaks: list[int] = field(default_factory=list)
    values: list[list[torch.Tensor]] = field(default_factory=list)
    figures: list[EvictionFigures] = field(default_factory=list)
    num_pinned: int = 0
    seconds: float = 0.0
    reserved: int = 0

    @property
    def peak(self) -> int:
        return max(self.peaks)

    def budget(self, share: float) -> int:
        """Return what is resident and a share of what the steps took beside it."""
        return self.resident + int(share * (self.peak - self.resident))

    def differences(self, other: Trained) -> int:
        """Return how many losses, gradients, buffers and generator states differ in any bit."""
        pairs = [
            (a, b)
            for mine, its in zip(self.values, other.values, strict=True)
            for a, b in zip(mine, its, strict=True)
        ]
        assert pairs
        return sum(not torch.equal(a, b) for a, b in pairs)


def forward_and_backward(model: nn.Module, batch: Any) -> torch.Tensor:
    output = model(**batch) if isinstance(batch, dict) else model(batch)
    loss = getattr(output, "loss", None)
    if loss is None:
        loss = output.float().pow(2).mean()
    loss.backward()
    return loss.detach()


def train(
    build: Callable[[], nn.Module],
    batch: Any,
    settings: Eviction | None = None,
    budget: int | None = None,
    *,
    steps: int = 2,
    step: Step = forward_and_backward,
    kind: str = "cpu",
    even: bool = True,
    enforced: int | None = None,
) -> Trained:
    """Train a new model for some steps; with ``settings``, under the eviction runtime.

    Beyond ``enforced`` reserved bytes allocations fail.
    """
    device = open_device(kind)
    runtime = None
    try:
        torch.manual_seed(0)
        model = device.build(build)
        device.adopt(model)
        model.train()
        placed = device.put(batch)
        done = Trained(device.allocated_bytes())
        if settings is not None:
            with pytest.MonkeyPatch.context() as patch:
                if even and kind == "cpu":
                    patch.setattr(live, "timer_for", lambda *_: EvenTimer())
                runtime = live.EvictionRuntime(device, settings, budget)
        device.enforce(enforced)
        torch.manual_seed(1)
        start = device.now()
        for _ in range(steps):
            model.zero_grad()
            device.begin_step()
            if runtime is not None:
                runtime.start(model, (placed,), {})
            loss = step(model, placed)
            if runtime is not None:
                done.figures.append(runtime.stop())
                done.num_pinned = runtime.num_pinned
            done.peaks.append(device.end_step().peak_allocated)
            if kind == "cpu":
                with device.host_memory():
                    kept = [loss, *(p.grad for p in model.parameters()), *model.buffers()]
                    done.values.append([t.clone() for t in kept if t is not None])
                    done.values[-1].append(torch.get_rng_state())
            del loss
        done.seconds = device.seconds_between(start, device.now())
        done.reserved = device.peak_reserved_bytes()
        return done
    finally:
        if runtime is not None and runtime.active:
            runtime.abandon()
        device.close()


@pytest.fixture(name="train", scope="session")
def _train() -> Callable[..., Trained]:
    return train
