"""Lightning's Trainer under a memory budget, resumed after an epoch.

python examples/with_lightning.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import lightning.pytorch as pl
import torch
from generated import BATCH, BUDGET, Texts, build_model, collate
from torch.utils.data import DataLoader

from mimose.integrations.lightning import MimoseCallback


class Answering(pl.LightningModule):
    """The model, its loss and its optimizer."""

    def __init__(self) -> None:
        super().__init__()
        self.model = build_model()
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Return a batch's loss."""
        torch.manual_seed(self.global_step)  # Dropout: the same, interrupted or not.
        loss = self.model(**batch).loss
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def train(
    folder: Path, budget: str | None = BUDGET, *, epochs: int = 2, resume: bool = False
) -> list[float]:
    """Train and return the losses.

    Args:
        folder: Where the checkpoint is.
        budget: The budget; None for plain training.
        epochs: After how many epochs to stop.
        resume: Whether to go on from the checkpoint.
    """
    callback = None if budget is None else MimoseCallback(budget=budget)
    trainer = pl.Trainer(
        max_epochs=epochs,
        callbacks=[] if callback is None else [callback],
        default_root_dir=folder,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Answering()
    loader = DataLoader(Texts(32), batch_size=BATCH, collate_fn=collate)
    last = folder / "last.ckpt"
    trainer.fit(module, loader, ckpt_path=last if resume else None)
    trainer.save_checkpoint(last)
    if callback is not None:
        print(callback.summary)
    return module.losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        first = train(Path(folder), epochs=1)
        print(first + train(Path(folder), resume=True))
