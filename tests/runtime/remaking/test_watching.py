"""What a forward goes by besides its arguments is watched; what cannot be is tried again."""

from __future__ import annotations

import sys
import types
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from dropping import Dropping, both
from torch import nn
from torch.nn import functional

from mimose.plan import Remade
from mimose.runtime.remaking.settings import Settings
from mimose.runtime.remaking.survey import MOST_PLACES

WIDTH = 8
SCALE = 0.5
NESTED = {"ffn": {"scale": 0.5}}


def scale_of_the_file() -> float:
    return SCALE


class Block(nn.Module):
    """Scales by what a subclass says."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)

    def scale(self) -> Any:
        return 1.0

    def put(self, value: float) -> None:
        """Change the scale."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(functional.gelu(self.first(x) * self.scale()))


@dataclass(slots=True)
class Slots:
    value: float = 0.5


class Plain:
    def __init__(self, value: Any = 0.5) -> None:
        self.value = value


class Called(Plain):
    def __call__(self) -> Any:
        return self.value


BLOCKS: dict[str, type[Block]] = {}


def block(kind: type[Block]) -> type[Block]:
    BLOCKS[kind.__name__] = kind
    return kind


@block
class OfAGlobal(Block):
    def scale(self):
        return SCALE

    def put(self, value):
        globals()["SCALE"] = value


@block
class OfAFunctionsGlobal(OfAGlobal):
    def scale(self):
        return scale_of_the_file()


@block
class OfAGlobalDict(Block):
    def scale(self):
        return NESTED["ffn"]["scale"]

    def put(self, value):
        NESTED["ffn"]["scale"] = value


@block
class OfTheClass(Block):
    factor = 0.5

    def scale(self):
        return type(self).factor

    def put(self, value):
        type(self).factor = value


class Holding(Block):
    def __init__(self):
        super().__init__()
        self.held = self.make()

    def make(self) -> Any:
        return Plain()


@block
class OfACallable(Holding):
    def make(self):
        return Called()

    def scale(self):
        return self.held()

    def put(self, value):
        self.held.value = value


@block
class OfSlots(Holding):
    def make(self):
        return Slots()

    def scale(self):
        return self.held.value

    def put(self, value):
        self.held.value = value


@block
class OfANestedDict(Holding):
    def make(self):
        return {"a": {"b": [0.5] * 40}}

    def scale(self):
        return self.held["a"]["b"][3]

    def put(self, value):
        self.held["a"]["b"][3] = value


@block
class OfANestedObject(Holding):
    def make(self):
        return Plain(Plain((Plain(),)))

    def scale(self):
        return self.held.value.value[0].value

    def put(self, value):
        self.held.value.value[0].value = value


@block
class OfAPartial(Holding):
    def make(self):
        return partial(Plain.__getattribute__, Plain(), "value")

    def scale(self):
        return self.held()

    def put(self, value):
        self.held.args[0].value = value


@block
class OfAMixedList(Holding):
    def make(self):
        return [Plain(), 0.5]

    def scale(self):
        return self.held[1]

    def put(self, value):
        self.held[1] = value


@block
class OfAModuleOutside(Holding):
    def __init__(self):
        super().__init__()
        outer = nn.Linear(1, 1)
        outer.now = 0.5
        vars(self)["outer"] = outer

    def scale(self):
        return self.outer.now

    def put(self, value):
        self.outer.now = value


@block
class OfAModuleInAList(Holding):
    def make(self):
        outer = nn.Linear(1, 1)
        outer.now = 0.5
        return [outer]

    def scale(self):
        return self.held[0].now

    def put(self, value):
        self.held[0].now = value


@block
class OfAnotherObject(Holding):
    def scale(self):
        return self.held.value

    def put(self, value):
        if self.held.value != value:
            del self.held
            self.held = Plain(value)


@block
class OfAHook(Block):
    def __init__(self):
        super().__init__()
        held = Plain()
        self.first.register_forward_hook(lambda module, args, output: output * held.value)

    def put(self, value):
        (hook,) = self.first._forward_hooks.values()
        hook.__closure__[0].cell_contents.value = value

    def __deepcopy__(self, memo):  # Functions are not copied.
        return type(self)()


@block
class OfASmallArray(Holding):
    def make(self):
        return pytest.importorskip("numpy").full(3, 0.5)

    def scale(self):
        return float(self.held[1])

    def put(self, value):
        self.held[1] = value


@block
class OfANumberOfNumpy(Holding):
    def make(self):
        return pytest.importorskip("numpy").float32(0.5)

    def scale(self):
        return self.held

    def put(self, value):
        self.held = pytest.importorskip("numpy").float32(value)


def inputs(step: int) -> Any:
    generator = torch.Generator().manual_seed(step)
    return (torch.randn(4, WIDTH, generator=generator).requires_grad_(),), {}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_number_changes_wherever_it_is(name):
    def between(step: int, copied: Block) -> None:
        copied.put(0.5 if step < 2 else 0.75)

    found = both(BLOCKS[name](), inputs, number=4, between=between)
    assert found.calls == ["traced", "dropped", "traced", "dropped"]


@pytest.mark.parametrize("name", BLOCKS)
def test_what_stays_as_it_is_gives_the_same_number(name):
    made = BLOCKS[name]()
    made.put(0.5)
    settings = Settings(made)
    first = settings.now()
    assert not settings.opaque
    assert settings.now() == first
    made.put(0.75)
    assert settings.now() != first


def test_a_number_goes_back_and_is_known_again():
    made = OfANestedDict()
    settings = Settings(made)
    first = settings.now()
    made.put(0.75)
    assert settings.now() != first
    made.put(0.5)
    assert settings.now() == first
    assert settings.restless == 0


def test_a_module_of_the_user_is_looked_into(monkeypatch):
    config = types.ModuleType("a_config")
    config.__file__ = "/home/someone/a_config.py"
    config.K = 0.5
    monkeypatch.setitem(sys.modules, "a_config", config)
    monkeypatch.setitem(globals(), "a_config", config)

    class OfAModule(Block):
        def scale(self):
            return a_config.K  # noqa: F821

    settings = Settings(OfAModule())
    first = settings.now()
    config.K = 0.75
    assert settings.now() != first


def test_what_replaces_a_number_is_watched():
    made = OfSlots()
    made.held = 1.0
    settings = Settings(made)
    settings.now()
    made.held = Plain()
    first = settings.now()
    made.held.value = 0.75
    assert settings.now() != first


def test_too_many_places_are_left_alone():
    made = Holding()
    made.held = [{str(n): n for n in range(200)} for _ in range(MOST_PLACES // 200 + 1)]
    assert Settings(made).opaque
    made.held = made.held[:2]
    assert not Settings(made).opaque


def test_a_hook_that_keeps_outputs_changes_nothing():
    made, kept = Block(), []
    made.first.register_forward_hook(lambda module, args, output: kept.append(output.detach()))
    dropping = calls(made, 5)
    assert dropping.calls[-2:] == ["dropped", "dropped"]


@pytest.mark.parametrize("make", [lambda: [4, 8], lambda: (4, 8), lambda: {"a": 4}])
def test_another_container_with_the_same_in_it_changes_nothing(make):
    made = Holding()
    made.held = make()
    settings = Settings(made)
    first = settings.now()
    made.held = make()
    assert settings.now() == first


class Unseen(Block):
    """Goes by what nothing can see: a generator that is somewhere in an iterator."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = iter([0.5] * 8 + [0.75] * 60)

    def scale(self):
        return next(self.numbers)


def calls(made: nn.Module, number: int) -> Dropping:
    dropping = Dropping(made)
    for step in range(number):
        args, _ = inputs(step)
        dropping(*args).sum().backward()
    return dropping


def test_what_cannot_be_watched_is_found_out():
    with pytest.warns(UserWarning, match='block block .* planner="mimose"') as told:
        dropping = calls(Unseen(), 40)
    assert len(told) == 1
    before = dropping.calls.index("strayed")
    assert dropping.calls[:before] == ["traced"] + ["dropped"] * (before - 1)
    assert before <= 40 - 2
    # What is bad stays so.
    assert "dropped" not in dropping.calls[before:]


def test_what_is_right_is_tried_again_and_stays():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dropping = calls(Block(), 40)
    assert dropping.calls == ["traced"] + ["dropped"] * 39
    assert tried(dropping) == 38 // 16  # All calls but the first, which proved all.


def tried(dropping: Dropping) -> int:
    return sum(turns for turns, _ in dropping.remaker._proofs._calls.values())


def one_value(trace: Any) -> tuple[int, ...]:
    return trace.graph.droppable()[:1]


@pytest.mark.parametrize(("peak", "ahead"), [(0, False), (1 << 40, True)])
def test_what_a_later_plan_may_drop_is_tried_before_where_there_is_room(peak, ahead):
    dropping = Dropping(Block(), one_value)
    dropping.remaker.expected_peak = peak
    for step in range(2):
        dropping(*inputs(step)[0]).sum().backward()
    graph = dropping.trace.graph
    assert len(graph.droppable()) > 1
    known = dropping.remaker._proofs._good[graph.digest]
    assert known == set(graph.droppable() if ahead else one_value(dropping.trace))


def test_what_later_blocks_drop_is_tried_first():
    dropping = Dropping(Block(), one_value)
    dropping(*inputs(0)[0]).sum().backward()
    graph = dropping.trace.graph
    *_, last = graph.droppable()
    dropping.remaker.begin([Remade(3, (last,), (), graph.digest)])
    choice = dropping.remaker._choice(dropping.trace, Remade(0, one_value(dropping.trace)))
    assert next(iter(dropping.remaker._ahead(choice))).dropped == {last}


@pytest.mark.parametrize(("peak", "expected"), [(0, 0), (1 << 40, 2)])
def test_it_is_tried_again_where_there_is_room(peak, expected):
    dropping = Dropping(Block())
    dropping.remaker.expected_peak = peak
    for step in range(40):
        dropping(*inputs(step)[0]).sum().backward()
    assert tried(dropping) == expected
