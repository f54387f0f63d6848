"""Train one architecture twice, unattached and with all dropped that its blocks can make again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from dropper import Dropper
from torch import nn
from zoo_conformance import Case, _digest, loss_of

import mimose

NUMBERS = (0, 1, 0, 1)
"""The batches: the first is traced, the second is traced while it drops, the others just drop."""


@dataclass
class Dropped:
    """What dropping has come to.

    Attributes:
        equal: Whether losses, gradients and the state at the end are the same, bit by bit.
        blocks: Number of blocks.
        graphs: Number of different graphs among them.
        share: Share of the blocks' saved bytes that is dropped.
        calls: Calls of blocks that dropped something, in the steps that the planner planned to.
        wanted: Calls that were to.
        strays: Calls that kept all for they were not as traced.
        missed: Calls whose graph was another one.
        bad: Values that did not come out the same.
    """

    equal: bool
    blocks: int
    graphs: int
    share: float
    calls: int
    wanted: int
    strays: int
    missed: int
    bad: int


def drop(case: Case, autocast: bool = False) -> Dropped:
    """Train ``case`` both ways."""
    plain, _, _ = _train(case, None, autocast)
    planner = Dropper()
    attached, handle, _ = _train(case, planner, autocast)
    remaker = handle._executor.remaker
    made = [getattr(r.plan, "remade", ()) for r in planner.records[1:]]
    return Dropped(
        plain == attached,
        len(handle.block_names),
        len({t.graph.digest for t in planner.traced.values()}),
        planner.share,
        sum(map(len, made)),
        len(made) * sum(1 for t in planner.traced.values() if t.graph.droppable()),
        remaker.strays,
        remaker.missed,
        sum(map(len, remaker._proofs._bad.values())),
    )


def _train(case: Case, planner: Dropper | None, autocast: bool) -> tuple[Any, Any, nn.Module]:
    transformers.set_seed(0)
    model = case.build().train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    transformers.set_seed(1)
    handle = None
    if planner is not None:
        handle = mimose.attach(model, "8GB", planner=planner, size=case.size, blocks=case.blocks)
    left: list[Any] = []
    for number in NUMBERS:
        batch = case.batch(number)
        around: AbstractContextManager[Any] = (
            torch.autocast("cpu", torch.bfloat16) if autocast else nullcontext()
        )
        with around:
            loss = loss_of(model(**batch))
        loss.backward()
        left.append(loss.item())
        left.append(_digest([p.grad for p in model.parameters() if p.grad is not None]))
        optimizer.step()
        optimizer.zero_grad()
    left.append(_digest([*model.state_dict().values(), torch.get_rng_state()]))
    if handle is not None:
        handle.detach()
    return left, handle, model
