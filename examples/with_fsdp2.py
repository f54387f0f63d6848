"""FSDP2 (`fully_shard`) under a memory budget: shard the layers, then the model, then attach.

torchrun --nproc-per-node 2 examples/with_fsdp2.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from generated import (
    BATCH,
    BUDGET,
    Texts,
    build_model,
    collate,
    join_processes,
    print_in_turn,
)
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

import mimose


def train(folder: Path, budget: str | None = BUDGET, *, sync: str | None = None) -> list[float]:
    """Train and return this process's losses.

    Args:
        folder: Where what was learned goes.
        budget: The budget; None for plain training.
        sync: None, or ``"max"`` for one plan for all processes.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    model = build_model().to(device)
    for layer in model.bert.encoder.layer:
        fully_shard(layer)  # Whole blocks: each has its parameters when it runs again.
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Without a budget nothing is recomputed; with one the default planner, auto, decides.
    handle = mimose.attach(model, budget, "baseline" if budget is None else "auto", sync=sync)

    texts = Texts()
    sampler = DistributedSampler(texts, shuffle=False)
    losses = []
    for step, batch in enumerate(
        DataLoader(texts, batch_size=BATCH, sampler=sampler, collate_fn=collate)
    ):
        torch.manual_seed(step)
        loss = model(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    # Learned of this many processes: with more or fewer, each holds another part of the model.
    torch.save(handle.state_dict(), folder / f"mimose-{dist.get_rank()}.pt")
    print_in_turn(handle.summary())
    handle.detach()
    return losses


if __name__ == "__main__":
    join_processes()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
    dist.destroy_process_group()
