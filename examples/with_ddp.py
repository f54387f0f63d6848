"""DistributedDataParallel under a memory budget: each process plans for its own batches.

torchrun --nproc-per-node 2 examples/with_ddp.py
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from generated import BATCH, Texts, build_model, collate, join_processes, print_in_turn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

import mimose

BUDGET = "40MB"
"""Twice the other examples': a bucket of gradients takes one of the allocator's 20 MiB segments."""


def train(folder: Path, budget: str | None = BUDGET, *, sync: str | None = None) -> list[float]:
    """Train and return this process's losses.

    Args:
        folder: Where the checkpoint goes.
        budget: The budget; None for plain training.
        sync: None, or ``"max"`` for one plan for all processes.
    """
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    model = DistributedDataParallel(build_model().to(device))
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

    # The model is the same everywhere. What was learned is each process's own.
    rank = dist.get_rank()
    torch.save(handle.state_dict(), folder / f"mimose-{rank}.pt")
    if rank == 0:
        torch.save(model.module.state_dict(), folder / "model.pt")
    print_in_turn(handle.summary())
    handle.detach()
    return losses


if __name__ == "__main__":
    join_processes()
    with tempfile.TemporaryDirectory() as folder:
        train(Path(sys.argv[1] if len(sys.argv) > 1 else folder))
    dist.destroy_process_group()
