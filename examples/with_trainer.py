"""Hugging Face's Trainer under a memory budget, interrupted and resumed.

python examples/with_trainer.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from generated import BATCH, BUDGET, Texts, build_model, collate
from transformers import Trainer, TrainingArguments

from mimose import MimoseCallback


def train(
    folder: Path, budget: str | None = BUDGET, *, steps: int = 16, resume: bool = False
) -> list[float]:
    """Train and return the losses.

    Args:
        folder: Where the checkpoints are.
        budget: The budget; None for plain training.
        steps: At which step to stop.
        resume: Whether to go on from the last checkpoint.
    """
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=BATCH,
        max_steps=steps,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        logging_steps=1,
        save_steps=8,
        seed=0,
        use_cpu=not torch.cuda.is_available(),
        dataloader_pin_memory=torch.cuda.is_available(),
        disable_tqdm=True,
        report_to=[],
    )
    callback = None if budget is None else MimoseCallback(budget=budget)
    trainer = Trainer(
        model=build_model(),
        args=arguments,
        train_dataset=Texts(),
        data_collator=collate,
        callbacks=[] if callback is None else [callback],
    )
    trainer.train(resume_from_checkpoint=resume)
    if callback is not None:
        print(callback.summary)
    return [log["loss"] for log in trainer.state.log_history if "loss" in log]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), steps=8)
        print(train(Path(folder), resume=True))
