"""A loop on Lightning Fabric under a memory budget, resumed.

python examples/with_fabric.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from generated import BATCH, BUDGET, Texts, build_model, collate
from lightning.fabric import Fabric
from torch.utils.data import DataLoader

from mimose.integrations.lightning import attach


def train(
    folder: Path, budget: str | None = BUDGET, *, steps: int = 16, resume: bool = False
) -> list[float]:
    """Train and return the losses.

    Args:
        folder: Where the checkpoint is.
        budget: The budget; None for plain training.
        steps: At which step to stop.
        resume: Whether to go on from the checkpoint.
    """
    fabric = Fabric(devices=1, precision="bf16-mixed")
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(model, optimizer)
    loader = fabric.setup_dataloaders(DataLoader(Texts(), batch_size=BATCH, collate_fn=collate))
    state = {"model": model, "optimizer": optimizer, "step": 0, "losses": []}
    handle = None
    if budget is not None:
        handle = state["mimose"] = attach(model, budget)
    if resume:
        fabric.load(folder / "fabric.ckpt", state)  # The handle's state, too.

    for number, batch in enumerate(loader):
        if number == steps:
            break
        if number < state["step"]:
            continue
        torch.manual_seed(number)  # Dropout: the same whether the run was interrupted or not.
        loss = model(**batch).loss
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        state["losses"].append(loss.item())
        state["step"] += 1

    fabric.save(folder / "fabric.ckpt", state)
    if handle is not None:
        print(handle.summary())
        handle.detach()
    return state["losses"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), steps=8)
        print(train(Path(folder), resume=True))
