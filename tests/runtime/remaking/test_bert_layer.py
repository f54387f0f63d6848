"""One layer of BERT: whatever is dropped, gradients are the same, and memory is what was told."""

from __future__ import annotations

import gc
import itertools
import random
from typing import Any

import pytest
import torch
from dropping import Dropping
from torch import nn

from mimose.devices import open_device
from mimose.menu import cost_of
from mimose.plan import Remade
from mimose.runtime.remaking import saving as saving_module
from mimose.runtime.remaking.trace import Trace

SAMPLED = 40
BATCH, LENGTH, WIDTH = 2, 16, 32


def layer(attention: str) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    from transformers.models.bert.modeling_bert import BertLayer

    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=WIDTH,
        num_attention_heads=4,
        intermediate_size=4 * WIDTH,
        attn_implementation=attention,
    )
    return BertLayer(config).train()


def step(block: nn.Module, call: Any, x: torch.Tensor) -> list[torch.Tensor]:
    block.zero_grad()
    x.grad = None
    torch.manual_seed(1)
    output = call(x)
    output.square().mean().backward()
    return [output.detach(), x.grad, *(p.grad for p in block.parameters())]


def traced(attention: str) -> tuple[nn.Module, torch.Tensor, Dropping, Trace]:
    block = layer(attention)
    x = torch.randn(BATCH, LENGTH, WIDTH).requires_grad_()
    call = Dropping(block)
    step(block, call, x)
    assert call.trace is not None
    return block, x, call, call.trace


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_all_subsets(attention):
    block, x, call, trace = traced(attention)
    plain = step(block, block, x)
    droppable = trace.graph.droppable()
    assert len(droppable) >= 14
    subsets = [
        chosen
        for count in range(1, len(droppable) + 1)
        for chosen in itertools.combinations(droppable, count)
        if trace.graph.can_drop(chosen)
    ]
    for chosen in random.Random(0).sample(subsets, SAMPLED):
        call.choose = lambda _, chosen=chosen: chosen
        left = step(block, call, x)
        assert call.calls[-1] == "dropped"
        assert all(map(torch.equal, plain, left)), chosen


@pytest.fixture
def device() -> Any:
    device = open_device("cpu")
    yield device
    device.close()


def test_memory_is_what_was_told(device, monkeypatch):
    block, x, call, trace = traced("eager")
    graph = trace.graph
    gradients = step(block, block, x)
    droppable = graph.droppable()
    most = call.choose(trace)
    peaks: list[tuple[int, int]] = []
    plain_run = saving_module.run

    def run(*args: Any) -> Any:
        device.mark()
        level = device.allocated_bytes()
        made = plain_run(*args)
        peaks.append((device.mark().peak_allocated - level, level))
        return made

    monkeypatch.setattr(saving_module, "run", run)
    gc.collect()
    for chosen in [(), *((v,) for v in droppable), most, most[::2]]:
        call.choose = lambda _, chosen=chosen: chosen
        for _ in range(2):  # The first time it is tried out.
            block.zero_grad(set_to_none=True)
            x.grad = None
            peaks.clear()
            before = device.allocated_bytes()
            output = call(x)
            # What a gradient has to go through: the output itself is not the block's to keep.
            kept = device.allocated_bytes() - before - _bytes(output)
            told = cost_of(graph, chosen, trace.bytes, trace.seconds)
            above = device.allocated_bytes()
            output.backward(torch.ones_like(output))
            del output
            block.zero_grad(set_to_none=True)
            x.grad = None
            assert device.allocated_bytes() == before
        unsaved = kept - told.kept_bytes
        if not chosen:
            rest = unsaved
            assert told.kept_bytes > 0
        # What is saved and is no value of the block's is the same whatever is dropped.
        assert unsaved == rest
        if chosen:
            assert peaks
            for peak, level in peaks:
                # Gradients are there as well, and what backward is done with has gone.
                assert peak <= told.working_bytes
                assert level <= above + told.working_bytes + sum(map(_bytes, gradients))


def _bytes(tensor: torch.Tensor) -> int:
    return -(-tensor.untyped_storage().nbytes() // 512) * 512


def test_a_choice_is_worked_out_once(monkeypatch):
    from mimose.runtime.remaking import remaker

    block, x, call, _ = traced("eager")
    made: list[Any] = []
    plain = remaker.Choice
    monkeypatch.setattr(remaker, "Choice", lambda *args: made.append(args) or plain(*args))
    for _ in range(4):
        step(block, call, x)
    assert len(made) == 1


def test_a_plan_for_another_graph_is_not_carried_out():
    _, x, call, trace = traced("eager")
    looked = call.remaker.look((0, 0), call.wrapper, (x,), {})
    assert looked is not None
    assert not call.remaker.fits(looked, Remade(0, call.choose(trace), (), "00000000"))
    assert call.remaker.missed == 1
    fixed = tuple(set(range(trace.graph.num_values)) - trace.graph.saved)[:1]
    assert not call.remaker.fits(looked, Remade(0, fixed, (), trace.graph.digest))
    # Of a size that was not traced before it is found out when it has run.
    other = torch.randn(BATCH, 2 * LENGTH, WIDTH)
    looked = call.remaker.look((0, 0), call.wrapper, (other,), {})
    assert looked is not None
    remade = Remade(0, call.choose(trace), (), "00000000")
    assert call.remaker.fits(looked, remade)
    _, dropped = call.remaker.run(looked, remade, (other,), {})
    assert not dropped
    assert call.remaker.missed == 3
