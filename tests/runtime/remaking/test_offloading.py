"""Values in the host's memory: the same numbers, and the device's memory is free meanwhile."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from dropper import Dropper
from dropping import most
from transformers import BertConfig, BertForQuestionAnswering

import mimose
from mimose.devices.cpu import CpuDevice
from mimose.plan import Plan, Remade
from mimose.records import Decision

BLOCKS = 3


class Sender(Dropper):
    """Sends everything away that it does not drop; ``drops`` says whether it drops anything."""

    name = "sender"

    def __init__(self, *, drops: bool) -> None:
        super().__init__()
        self.drops = drops

    def plan(self, size: Any, situation: Any) -> Decision:
        if not self.traced:
            return super().plan(size, situation)
        remade = []
        for block, traced in sorted(self.traced.items()):
            graph = traced.graph
            dropped = most(graph, traced.bytes) if self.drops else ()
            away = tuple(sorted(graph.saved - graph.fixed - set(dropped)))
            if block < self.info.num_blocks - 1:
                remade.append(Remade(block, dropped, away, graph.digest))
        return Decision(Plan(self.info.num_blocks, (), (), tuple(remade)), "responsive")


def trained(planner: Dropper | None) -> tuple[list[float], list[torch.Tensor], list[int]]:
    """Return losses, parameters and the bytes allocated after each forward."""
    device = CpuDevice()
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=64,
        num_attention_heads=4,
        intermediate_size=256,
        num_hidden_layers=BLOCKS,
        vocab_size=64,
        attn_implementation="eager",
    )
    model = BertForQuestionAnswering(config).train()
    device.adopt(model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    handle = None
    if planner is not None:
        handle = mimose.attach(model, budget="1GB", planner=planner, device=device)
    losses, levels = [], []
    ids = torch.arange(8 * 64).reshape(8, 64) % 64
    for _ in range(3):
        batch = device.put({"input_ids": ids, "start_positions": ids[:, 0]})
        loss = model(**batch, end_positions=batch["start_positions"]).loss
        if handle is not None:
            handle._executor.remaker.offloads.finish()
        levels.append(device.allocated_bytes())
        loss.backward()
        losses.append(float(loss.detach()))
        del loss, batch
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    parameters = [p.detach().clone() for p in model.parameters()]
    if handle is not None:
        assert (handle._executor.remaker.strays, handle._executor.remaker.missed) == (0, 0)
        handle.detach()
    device.close()
    return losses, parameters, levels


@pytest.mark.parametrize("drops", [False, True], ids=["alone", "beside dropped ones"])
def test_training_is_the_same_and_memory_is_free_meanwhile(*, drops: bool) -> None:
    losses, parameters, plain = trained(None)
    planner = Sender(drops=drops)
    others, same, levels = trained(planner)
    assert others == losses
    assert all(map(torch.equal, parameters, same))
    sent = sum(
        sum(planner.traced[r.block].bytes[v] for v in (*r.offloaded, *r.dropped))
        for r in planner.records[-1].plan.remade
    )
    assert sent > plain[-1] // 4
    # What is left of a block is its input, which may have gone before, and what others hold.
    assert plain[-1] - levels[-1] >= 0.9 * sent


def test_a_second_backward_finds_everything_again() -> None:
    device = CpuDevice()
    planner = Sender(drops=True)
    torch.manual_seed(0)
    config = BertConfig(
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=32,
        num_hidden_layers=BLOCKS,
        vocab_size=64,
        attn_implementation="eager",
    )
    model = BertForQuestionAnswering(config).train()
    device.adopt(model)
    handle = mimose.attach(model, budget="1GB", planner=planner, device=device)
    ids = torch.arange(2 * 8).reshape(2, 8) % 64
    for _ in range(2):
        model.zero_grad()
        loss = model(ids, start_positions=ids[:, 0], end_positions=ids[:, 0]).loss
        loss.backward(retain_graph=True)
        once = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        model.zero_grad()
        loss.backward()
        again = [p.grad.clone() for p in model.parameters() if p.grad is not None]
        assert all(map(torch.equal, once, again))
    assert planner.records or planner.traced
    handle.detach()
    device.close()
