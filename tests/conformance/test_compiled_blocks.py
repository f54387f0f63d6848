"""Compiled blocks are planned for like any others; a model compiled as a whole is refused."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import mimose

WIDTH, BLOCKS = 32, 3
LENGTHS = (40, 64, 48, 72, 56, 64)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + nn.functional.dropout(self.down(torch.tanh(self.up(x))), 0.1, self.training)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(BLOCKS)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.pow(2).mean()


def build():
    torch.manual_seed(0)
    return Model().train()


def compile_layers(model):
    for layer in model.layers:
        layer.compile(backend="aot_eager", dynamic=True)


def gradients(model, handle=None):
    torch.manual_seed(1)
    found = []
    for length in LENGTHS:
        x = torch.randn(4, length, WIDTH, generator=torch.Generator().manual_seed(length))
        model(x).backward()
        found.append([p.grad.clone() for p in model.parameters()])
        model.zero_grad()
        if handle is not None:
            handle.end()
    return found


@pytest.fixture
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.filterwarnings("ignore")
def test_compiled_blocks_are_recomputed(fresh, when):
    model = build()
    compile_layers(model)
    expected = gradients(model)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = build()
    if when == "before":
        compile_layers(model)
    plans = []
    with mimose.attach(model, None, "fixed", plan="keep 0 | recompute each 1-2") as handle:
        if when == "after":
            compile_layers(model)
        compiled = [layer._compiled_call_impl for layer in model.layers]
        observe = handle.planner.observe
        handle.planner.observe = lambda record: (plans.append(record.plan), observe(record))[1]
        found = gradients(model, handle)
    for ours, theirs in zip(found, expected):
        assert all(map(torch.equal, ours, theirs))
    assert {plan.num_recomputed for plan in plans} == {2}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= graphs + 1
    for layer, before in zip(model.layers, compiled):
        assert "forward" not in vars(layer)
        assert layer._compiled_call_impl is not None
        assert when == "before" or layer._compiled_call_impl is before


class CompiledBeside(Model):
    """Reads what its blocks return in functions that may be compiled, one between two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers.append(Block())
        self.head = nn.Linear(WIDTH, WIDTH)
        self.between = [torch.tanh]
        self.loss = [lambda head, x, kept: (head(x) * kept).pow(2).mean()]

    def forward(self, x):
        first = self.layers[0](x)
        kept = self.between[0](first)
        x = first
        for layer in self.layers[1:]:
            x = layer(x)
        return self.loss[0](self.head, x, kept)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("planner", ["full", "mimose", "auto"])
def test_code_beside_blocks_may_be_compiled_without_breaks(fresh, planner):
    torch.manual_seed(0)
    expected = gradients(CompiledBeside().train())
    torch.manual_seed(0)
    model = CompiledBeside().train()
    for functions in (model.between, model.loss):
        functions[0] = torch.compile(functions[0], backend="eager", fullgraph=True)
    options = {"every": 2} if planner == "full" else {}
    budget = None if planner == "full" else "1GB"
    with mimose.attach(model, budget, planner, blocks=["layers.*"], **options) as handle:
        found = gradients(model, handle)
        if planner == "full":
            # The first block's output is read by what is compiled, so no region has it inside.
            regions = handle.last_record.plan.regions
            assert [(region.first, region.last) for region in regions] == [(0, 0), (1, 1), (2, 3)]
    for ours, theirs in zip(found, expected):
        assert all(map(torch.equal, ours, theirs))


def test_a_model_compiled_as_a_whole_is_refused():
    model = build()
    with pytest.raises(ValueError, match=r"call layer\.compile\(\) on each"):
        mimose.attach(torch.compile(model, backend="eager"), None, "full")
    model.compile(backend="eager")
    with pytest.raises(ValueError, match=r"call layer\.compile\(\) on each"):
        mimose.attach(model, None, "full")


@pytest.mark.filterwarnings("ignore")
def test_compiling_the_whole_model_later_is_refused_in_training_only(fresh):
    model = build()
    x = torch.randn(2, 8, WIDTH)
    with mimose.attach(model, None, "full"):
        whole = torch.compile(model, backend="eager")
        with pytest.raises(ValueError, match=r"call layer\.compile\(\) on each"):
            whole(x)
        model.eval()
        with torch.no_grad():
            assert torch.allclose(whole(x), model(x))
