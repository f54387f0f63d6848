"""A model whose blocks have checkpoints of their own inside is predicted as it is."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import mimose
from mimose.devices import open_device

WIDTH = 32


class Narrow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(x).float()


class Wide(Narrow):
    """Saves more than its neighbours, outside of its checkpoint and inside."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 8 * WIDTH)
        self.back = nn.Linear(8 * WIDTH, WIDTH)
        self.reentrant = reentrant

    def _inner(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(self.back(torch.tanh(self.up(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = checkpoint(self._inner, x, use_reentrant=self.reentrant).float()
        return x + torch.sin(torch.exp(-y.square())) * x.double().cos().float()


class Model(nn.Module):
    def __init__(self, reentrant: bool, all_wide: bool) -> None:
        super().__init__()
        middle = Wide(reentrant)
        ends = [Wide(reentrant) if all_wide else Narrow() for _ in range(2)]
        self.layers = nn.ModuleList([ends[0], middle, ends[1]])
        self.first = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).float()
        for place in (0, 1, 2, 0, 1):  # Two of them are called twice.
            x = self.layers[place](x)
        return x.square().mean()


KINDS = [
    pytest.param(False, False, id="between others"),
    pytest.param(True, False, id="between others, reentrant", marks=pytest.mark.slow),
    pytest.param(False, True, id="everywhere", marks=pytest.mark.slow),
    pytest.param(True, True, id="everywhere, reentrant", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("planner", ["auto", "mimose"])
@pytest.mark.parametrize(("reentrant", "all_wide"), KINDS)
def test_no_peak_is_predicted_too_low(planner, reentrant, all_wide):
    device = open_device("cpu", allocator="expandable")
    try:
        torch.manual_seed(0)
        model = device.build(lambda: Model(reentrant, all_wide)).train()
        device.adopt(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        errors, plans = [], set()
        for budget in ("1GB", "26MB"):
            with mimose.attach(
                model, budget, planner, device=device, blocks=["layers.*"], sheltered=2
            ) as handle:
                for _ in range(4):
                    batch = device.put(torch.randn(64, 128, WIDTH))
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = model(batch)
                    loss.backward()
                    del loss
                    optimizer.step()
                    optimizer.zero_grad()
                    record = handle.last_record
                    if record.phase == "responsive":
                        plans.add(record.plan.num_recomputed)
                        errors.append(record.predicted_peak_bytes / record.peak_allocated_bytes - 1)
        assert min(plans) == 0 < max(plans)
        assert min(errors) > -0.005
        # Blocks that hold next to nothing are counted a little too high beside large ones.
        assert max(errors) < (0.005 if all_wide else 0.1)
    finally:
        device.close()
