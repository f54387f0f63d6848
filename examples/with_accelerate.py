"""A loop on Accelerate under a memory budget: bf16, four micro-batches a step, resumed.

python examples/with_accelerate.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from accelerate import Accelerator
from generated import BATCH, BUDGET, Texts, build_model, collate
from torch.utils.data import DataLoader

from mimose.integrations.accelerate import attach


def train(
    folder: Path, budget: str | None = BUDGET, *, steps: int = 16, resume: bool = False
) -> list[float]:
    """Train and return the losses, one a micro-batch.

    Args:
        folder: Where the checkpoint is.
        budget: The budget; None for plain training.
        steps: After how many micro-batches to stop: a multiple of four.
        resume: Whether to go on from the checkpoint.
    """
    accelerator = Accelerator(
        mixed_precision="bf16",
        gradient_accumulation_steps=4,
        cpu=not torch.cuda.is_available(),
    )
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Texts(), batch_size=BATCH, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = None if budget is None else attach(accelerator, model, budget)

    done = 0
    if resume:
        accelerator.load_state(str(folder))  # The handle's state, too.
        done = 8
    losses = []
    for number, batch in enumerate(accelerator.skip_first_batches(loader, done), done):
        if number == steps:
            break
        torch.manual_seed(number)  # Dropout: the same whether the run was interrupted or not.
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())

    if handle is not None:
        accelerator.save_state(str(folder))
        print(handle.summary())
        handle.detach()
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        first = train(Path(folder), steps=8)
        print(first + train(Path(folder), resume=True))
