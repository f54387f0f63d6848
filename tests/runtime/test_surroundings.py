"""What a block changes beside its result: a second run finds and leaves all of it as it was."""

import copy
import dataclasses
import warnings
import weakref
from collections import UserDict
from typing import Any

import pytest
import torch
from torch import nn

import mimose
from mimose.runtime.rerun import StepState
from mimose.runtime.surroundings import Surroundings

WIDTH = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, 4 * WIDTH)
        self.outer = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return x + self.outer(torch.tanh(self.inner(x)))


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any


class Plain:
    def __init__(self, x: Any) -> None:
        self.x = x


class Mapped(UserDict):  # type: ignore[type-arg]
    def __init__(self, x: Any) -> None:
        super().__init__(x=x)

    x = property(lambda self: self.data["x"], lambda self, value: self.data.__setitem__("x", value))


class Updating(Block):
    def forward(self, state: Any) -> Any:
        state.x = super().forward(state.x)
        return state


class Counting(Block):
    calls = 0

    def forward(self, x: Any) -> Any:
        self.calls += 1
        return super().forward(x) * self.calls


class Auxiliary(Block):
    def __init__(self) -> None:
        super().__init__()
        self.losses: list[torch.Tensor] = []

    def forward(self, x: Any) -> Any:
        self.losses.append(x.square().mean())
        return super().forward(x) + len(self.losses)


class Recurrent(Block):
    def forward(self, x: Any) -> Any:
        before = getattr(self, "before", 0.0)
        self.before = x.detach().mean((0, 1))
        return super().forward(x - before)


class Lazy(Block):
    def forward(self, x: Any) -> Any:
        if not hasattr(self, "ema"):
            self.register_buffer("ema", torch.zeros(WIDTH))
        self.ema.mul_(0.9).add_(0.1 * x.detach().mean((0, 1)))
        return super().forward(x - self.ema.clone())


class Unregistered(Block):
    def __init__(self) -> None:
        super().__init__()
        self.ema = torch.zeros(WIDTH)

    def forward(self, x: Any) -> Any:
        self.ema.lerp_(x.detach().mean((0, 1)), 0.1)
        return super().forward(x - self.ema.clone())


class CountingNorm(nn.BatchNorm1d):
    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x - self.running_mean)


class Normed(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = CountingNorm(WIDTH)

    def forward(self, x: Any) -> Any:
        return super().forward(self.norm(x.flatten(0, 1)).reshape(x.shape))


class Randomised(Block):
    def forward(self, x: Any) -> Any:
        return x + nn.functional.rrelu(super().forward(x), training=True)


class Net(nn.Module):
    def __init__(self, block: Any, state: Any = None) -> None:
        super().__init__()
        self.state = state
        self.layers = nn.ModuleList(block() for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x if self.state is None else self.state(x)
        for layer in self.layers:
            h = layer(h)
        auxiliary = sum((sum(getattr(layer, "losses", ())) for layer in self.layers), 0.0)
        for layer in self.layers:
            getattr(layer, "losses", []).clear()
        return (h if self.state is None else h.x).square().mean() + auxiliary


def trained(model: nn.Module) -> tuple[list[float], dict[str, torch.Tensor], torch.Tensor]:
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(4, 8, WIDTH, generator=torch.Generator().manual_seed(2))
    losses = []
    for step in range(4):
        loss = model(data[:, : 2 + 2 * (step % 3)])
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, model.state_dict(), torch.get_rng_state()


@pytest.mark.parametrize("planner", ["full", "mimose"])
@pytest.mark.parametrize(
    ("block", "state"),
    [
        (Updating, Plain),
        (Updating, Slotted),
        (Updating, Mapped),
        (Counting, None),
        (Auxiliary, None),
        (Recurrent, None),
        (Lazy, None),
        (Unregistered, None),
        (Normed, None),
        (Randomised, None),
    ],
)
def test_losses_parameters_and_buffers_are_those_of_plain_training(
    block: Any, state: Any, planner: str
) -> None:
    torch.manual_seed(0)
    model = Net(block, state)
    plain = copy.deepcopy(model)
    budget = None if planner == "full" else "10MB"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mimose.attach(model, budget, planner):
            losses, got, chance = trained(model)
    expected, wanted, wanted_chance = trained(plain)
    assert losses == expected
    assert got.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(got[name], tensor), name
    assert torch.equal(chance, wanted_chance)


def test_a_tensor_of_an_argument_object_changed_in_place_is_refused() -> None:
    state = StepState(Updating(), "layers.0")
    memory: dict[int, Any] = {}
    given = Plain(torch.randn(2, WIDTH))
    given.other = torch.zeros(2)  # type: ignore[attr-defined]
    state.run(Updating(), memory, 0, False, (given,), {})
    given.other.add_(1)  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match=r"layers\.0 was given was changed in place"):
        state.run(Updating(), memory, 0, True, (given,), {})


def test_of_a_tensor_of_an_earlier_graph_the_values_are_held() -> None:
    block = Block()
    surroundings = Surroundings(block)
    surroundings.look()
    block.last = block(torch.randn(2, WIDTH))
    values = block.last.detach().clone()
    before = surroundings.save((), {})
    reference = weakref.ref(block.last)
    block.last = torch.zeros(2)
    assert reference() is None, "its graph would be held, too"
    before.put_back()
    assert torch.equal(block.last, values)
    assert block.last.grad_fn is None
