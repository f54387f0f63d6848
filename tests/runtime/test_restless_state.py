"""State that a forward changes in unusual places: a second run finds it and leaves it as it was."""

import copy
import warnings
import weakref
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import nn

import mimose
from mimose.devices import open_device
from mimose.runtime.recovery import Undo
from mimose.runtime.rerun import StepState
from mimose.runtime.surroundings import Surroundings

WIDTH, STEPS = 8, 4
LARGE = (1 << 18) + 1
"""Numbers of a tensor whose copies are not to be beside it."""


class Holder:
    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


class Base(nn.Module):
    """Scales what it computes by what it finds and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.start()

    def start(self) -> None: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.scale()
        return x + torch.tanh(self.drop(self.other(self.one(x))) * scale)


class RateOfDropout(Base):
    def scale(self) -> float:
        self.drop.p = min(0.5, self.drop.p + 0.05)
        return 1.0 + self.drop.p


class NotedOnLinear(Base):
    def start(self) -> None:
        self.one.calls = 0

    def scale(self) -> float:
        self.one.calls += 1
        return 1.0 + self.one.calls / 8


class ListOnLinear(Base):
    def start(self) -> None:
        self.one.calls = [1]

    def scale(self) -> float:
        self.one.calls.append(1)
        return 1.0 + len(self.one.calls) / 8


class PrivateObject(Base):
    def start(self) -> None:
        self._state = Holder(calls=0, seen=[])

    def scale(self) -> float:
        self._state.calls += 1
        self._state.seen.append(self._state.calls)
        return 1.0 + sum(self._state.seen) / 8


class NestedUnderAPrivateName(Base):
    def start(self) -> None:
        self._state = {"a": {"b": [1]}}

    def scale(self) -> float:
        self._state["a"]["b"].append(1)
        return 1.0 + len(self._state["a"]["b"]) / 8


class NestedPrivateObject(Base):
    def start(self) -> None:
        self._state = Holder(inner=Holder(seen=[1]), named={"a": [1]})

    def scale(self) -> float:
        self._state.inner.seen.append(1)
        self._state.named["a"].append(1)
        return 1.0 + (len(self._state.inner.seen) + len(self._state.named["a"])) / 8


class HiddenModule(Base):
    """Keeps a module in a list, so that it is not registered a second time."""

    def start(self) -> None:
        self._state = Holder(seen=[])
        self.hidden = [nn.BatchNorm1d(WIDTH, affine=False), nn.Identity()]
        self.hidden[1].calls = 0

    def scale(self) -> torch.Tensor:
        self.hidden[1].calls += 1
        self.hidden[0](torch.full((4, WIDTH), float(self.hidden[1].calls)))
        self._state.seen = [self.hidden[1].calls, float(self.hidden[0].running_mean[0])]
        return 1.0 + self.hidden[0].running_mean.clone() / 8


class LastResult(Base):
    """Keeps what it computed, with its graph."""

    def start(self) -> None:
        self.last = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.last = result.mean()
        return result

    def scale(self) -> torch.Tensor:
        return 1.0 + self.last.detach()


class TensorInDictionary(Base):
    def start(self) -> None:
        self.held = {"a": torch.ones(2)}

    def scale(self) -> torch.Tensor:
        self.held["a"].add_(0.1)
        return self.held["a"][0].clone()


class TensorInList(TensorInDictionary):
    def start(self) -> None:
        self.held = Holder(a=[torch.ones(2)])

    def scale(self) -> torch.Tensor:
        self.held.a[0].add_(0.1)
        return self.held.a[0][0].clone()


class LargeTensor(Base):
    def start(self) -> None:
        self.held = torch.ones(LARGE)

    def scale(self) -> torch.Tensor:
        self.held[:2].add_(0.1)
        return self.held[0].clone()


class OtherOrder(Base):
    def start(self) -> None:
        self.order = OrderedDict(a=True, b=True, c=True)

    def scale(self) -> float:
        first = next(iter(self.order))
        self.order.move_to_end(first)
        return {"a": 1.0, "b": 2.0, "c": 3.0}[first]


class Swapped(Base):
    def scale(self) -> float:
        self.one, self.other = self.other, self.one
        return 1.0


class Grown(Base):
    """Makes a submodule in its first call, from the random state."""

    def scale(self) -> Any:
        if not hasattr(self, "extra"):
            self.extra = nn.Linear(1, 1)
            self.extra.requires_grad_(False)
        return 1.0 + self.extra.weight[0, 0].detach()


class OtherDictionary(Base):
    def start(self) -> None:
        self.calls = 0

    def scale(self) -> float:
        self.__dict__ = dict(self.__dict__)
        self.calls += 1
        return 1.0 + self.calls / 8


class NotedOnParameter(Base):
    def scale(self) -> float:
        self.one.weight.calls = getattr(self.one.weight, "calls", 0) + 1
        return 1.0 + self.one.weight.calls / 8


class TensorOnParameter(Base):
    def scale(self) -> torch.Tensor:
        self.one.weight.mean_of = getattr(self.one.weight, "mean_of", torch.ones(())) * 1.5
        return self.one.weight.mean_of


KINDS = [
    RateOfDropout,
    NotedOnLinear,
    ListOnLinear,
    PrivateObject,
    NestedUnderAPrivateName,
    NestedPrivateObject,
    HiddenModule,
    LastResult,
    TensorInDictionary,
    TensorInList,
    LargeTensor,
    OtherOrder,
    Swapped,
    Grown,
    OtherDictionary,
    NotedOnParameter,
    TensorOnParameter,
]


def state_of(block: nn.Module) -> Any:
    """Return all that the blocks of this file change, comparable."""
    shown: dict[str, Any] = {}
    for name, module in block.named_modules():
        shown[name] = {k: shown_as(v) for k, v in vars(module).items() if k[0] != "_"}
        shown[name]["_state"] = shown_as(vars(module).get("_state"))
        shown[name]["parts"] = [
            (k, shown_as(m.weight)) for k, m in module.named_children() if hasattr(m, "weight")
        ]
        shown[name]["noted"] = [shown_as(vars(p)) for p in module._parameters.values()]
    return shown


def shown_as(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.flatten()[:4].tolist()
    if isinstance(value, dict):
        return [(name, shown_as(one)) for name, one in value.items()]
    if isinstance(value, list):
        return [shown_as(one) for one in value]
    if isinstance(value, nn.Module):
        return repr(value)
    return shown_as(vars(value)) if isinstance(value, Holder) else value


@pytest.fixture
def device():
    opened = open_device("cpu")
    yield opened
    opened.close()


def run(state: StepState, block: nn.Module, x: torch.Tensor, memory: Any, again: bool) -> Any:
    torch.manual_seed(1)
    return state.run(block.forward, memory, 0, again, (x,), {}).detach()


@pytest.mark.parametrize("kind", KINDS)
def test_a_second_run_computes_the_same_and_changes_nothing(kind, device):
    torch.manual_seed(0)
    block = kind()
    state = StepState(block, "block", device)
    x = torch.randn(2, WIDTH)
    first = None
    for _ in range(3):  # What is learned in a first call holds in the next ones.
        memory: dict[int, Any] = {}
        before = state_of(block)
        result = run(state, block, x, memory, again=False)
        after = state_of(block)
        for _ in range(2):
            assert torch.equal(run(state, block, x, memory, again=True), result)
            assert state_of(block) == after
        if first is None:
            assert before != after
            first = result


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(kind() for kind in KINDS if kind is not Grown)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def trained(model: Net) -> Any:
    torch.manual_seed(1)
    steps = []
    for batch in torch.randn(STEPS, 16, WIDTH):
        loss = model(batch)
        loss.backward()
        steps.append((loss.item(), [p.grad.clone() for p in model.parameters()]))
        model.zero_grad()
    return steps, [state_of(layer) for layer in model.layers]


@pytest.mark.parametrize("planner", ["full", "mimose"])
def test_gradients_are_those_of_plain_training(planner):
    torch.manual_seed(0)
    model = Net()
    expected, state = trained(copy.deepcopy(model))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mimose.attach(
            model, None if planner == "full" else "10MB", planner, blocks=["layers.*"]
        ) as handle:
            got, after = trained(model)
            assert handle.last_record.plan.regions
    for (loss, gradients), (wanted_loss, wanted) in zip(got, expected):
        assert loss == wanted_loss
        assert all(map(torch.equal, gradients, wanted))
    assert clean(after) == clean(state)


def clean(states: Any) -> Any:
    for state in states:
        for attributes in state.values():
            attributes.pop("forward", None)
    return states


class Late(LargeTensor):
    """Leaves its large tensor alone for a while."""

    def start(self) -> None:
        super().start()
        self.quiet = True

    def scale(self) -> torch.Tensor:
        return self.held[0].clone() if self.quiet else super().scale()


@pytest.mark.parametrize("sheltered", [False, True])
def test_a_large_tensor_that_changes_late_is_undone(device, sheltered):
    block = Late()
    state = StepState(block, "layers.3", device)
    x = torch.randn(2, WIDTH)
    run(state, block, x, {}, again=False)
    block.quiet = False
    if sheltered:
        snapshot, first = state.snapshot((x,), {}), block.held[0].clone()
        block(x)
        snapshot.put_back()
        assert torch.equal(block.held[0], first)
    for _ in range(2):
        memory: dict[int, Any] = {}
        result, after = run(state, block, x, memory, again=False), block.held[0].clone()
        assert torch.equal(run(state, block, x, memory, again=True), result)
        assert torch.equal(block.held[0], after)


def test_another_large_tensor_that_changes_late_is_refused_once(device):
    block = Late()
    state = StepState(block, "layers.3", device)
    x = torch.randn(2, WIDTH)
    run(state, block, x, {}, again=False)
    block.held[0] = block.held[0].clone()
    block.quiet = False
    with pytest.raises(RuntimeError, match=r"layers\.3 changed held.*run this step again"):
        run(state, block, x, {}, again=False)
    memory: dict[int, Any] = {}
    result = run(state, block, x, memory, again=False)
    assert torch.equal(run(state, block, x, memory, again=True), result)


UNDONE = [k for k in KINDS if k not in (NotedOnParameter, TensorOnParameter, LargeTensor)]


@pytest.mark.parametrize("kind", UNDONE)
def test_an_undone_step_leaves_no_trace(kind, device):
    torch.manual_seed(0)
    block = kind()
    undo = Undo(block, device)
    x = torch.randn(2, WIDTH)
    for _ in range(2):
        undo.save()
        before = state_of(block)
        block(x)
        assert state_of(block) != before
        undo.restore()
        assert state_of(block) == before


def test_an_undone_step_that_changed_a_large_tensor_says_so(device):
    block = LargeTensor()
    undo = Undo(block, device)
    undo.save()
    block(torch.randn(2, WIDTH))
    with pytest.warns(UserWarning, match="held, a large tensor.*may change it twice"):
        undo.restore()


def test_a_tensor_noted_on_a_parameter_is_not_held_once_it_is_gone():
    block = Base()
    surroundings = Surroundings(block)
    surroundings.look()
    block.one.weight.noted = torch.zeros(2)
    kept = surroundings.save((), {})
    reference = weakref.ref(block.one.weight.noted)
    del block.one.weight.noted, kept
    assert reference() is None


def test_what_libraries_note_on_the_parameters_they_part_is_left_alone():
    block = Base()
    block.one.weight.ds_id = 1
    block.other.weight._compiled = 1
    surroundings = Surroundings(block)
    surroundings.look()
    kept = surroundings.save((), {})
    block.one.weight.ds_status = 1
    block.other.weight._compiled = 2
    kept.put_back()
    assert block.one.weight.ds_status == 1
    assert block.other.weight._compiled == 2
