"""What each process of a test of the adapters does: ``adapters.py FOLDER SCENARIO ...``.

A scenario trains plainly, within a budget, and within it again with a break from which it resumes;
the figures go to ``FOLDER/told-RANK.json``, as those of ``worker.py`` do.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import worker
from torch.utils.data import DataLoader

from mimose import Handle

warnings.simplefilter("ignore")  # Of the libraries that are imported.
sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
generated = importlib.import_module("generated")

BUDGET = "40MB"
"""DDP's bucket of gradients takes one of the allocator's 20 MiB segments."""
FSDP_BUDGET = "30MB"
STEPS, HALF = 10, 5
BATCH = 8


class Seen:
    """Takes down a process's steps."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.phases: list[str] = []
        self.plans: list[str] = []
        self.lengths: list[int] = []
        self.violations = 0
        self.knew: list[int] = []

    def know(self, handle: Handle | None) -> None:
        """Take down a digest of what was learned: before the first step, and after each."""
        if handle is not None:
            known = handle.state_dict()["learned"]["known"]
            self.knew.append(zlib.crc32(json.dumps(known, sort_keys=True).encode()))

    def add(self, handle: Handle | None, loss: float | None = None) -> None:
        """Take the last step, of ``handle`` if there is one."""
        if loss is not None:
            self.losses.append(loss)
        record = None if handle is None else handle.last_record
        if record is not None:
            self.phases.append(record.phase)
            self.plans.append(str(record.plan))
            self.lengths.append(record.size[-1])
            over = record.peak_reserved_bytes > (handle.budget_bytes or float("inf"))
            self.violations += record.outcome != "ok" or over
            self.know(handle)


def in_parts(name: str, train: Callable[..., Seen]) -> dict[str, Any]:
    """Return the figures of a training without a budget, of one with, and of one in two parts."""
    folder = Path(sys.argv[1])
    runs = {
        "plain": train(folder / f"{name}-plain", budget=None),
        "whole": train(folder / f"{name}-whole"),
        "first": train(folder / f"{name}-parts", steps=HALF),
        "rest": train(folder / f"{name}-parts", resume=True),
    }
    return {run: vars(seen) for run, seen in runs.items()}


def trainer(
    folder: Path,
    budget: str | None = BUDGET,
    *,
    steps: int = STEPS,
    resume: bool = False,
    sync: str | None = None,
    **settings: Any,
) -> Seen:
    """Train with Hugging Face's Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from mimose import MimoseCallback

    arguments = TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": BATCH,
            "max_steps": steps,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "logging_steps": 1,
            "save_steps": HALF,
            "use_cpu": True,
            "ddp_backend": "gloo",
            "dataloader_pin_memory": False,
            "disable_tqdm": True,
            "report_to": [],
            **settings,
        }
    )
    ours = [] if budget is None else [MimoseCallback(budget, sync=sync)]
    seen = Seen()

    class Watching(TrainerCallback):
        def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
            seen.know(ours[0].handle if ours else None)

        def on_step_end(self, *args: Any, **kwargs: Any) -> None:
            seen.add(ours[0].handle if ours else None)

    training = Trainer(
        model=generated.build_model(),
        args=arguments,
        train_dataset=generated.Texts(192),
        data_collator=generated.collate,
        callbacks=[*ours, Watching()],
    )
    training.train(resume_from_checkpoint=resume)
    seen.losses = [log["loss"] for log in training.state.log_history if "loss" in log]
    return seen


def trainer_fsdp() -> dict[str, Any]:
    """Train with Hugging Face's Trainer under FSDP2.

    Accelerate takes DDP instead on the CPU, and so is told otherwise. It then cannot save there.
    """
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedType

    initialise = AcceleratorState.__init__

    def sharding(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        initialise(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin

    AcceleratorState.__init__ = sharding
    layers = {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}
    settings = {"fsdp": True, "fsdp_config": layers, "save_strategy": "no"}
    try:
        folder = Path(sys.argv[1]) / "sharded"
        return {
            "plain": vars(trainer(folder, None, **settings)),
            "whole": vars(trainer(folder, FSDP_BUDGET, **settings)),
        }
    finally:
        AcceleratorState.__init__ = initialise
        AcceleratorState._reset_state(True)


def accelerate(
    folder: Path,
    budget: str | None = BUDGET,
    *,
    steps: int = STEPS,
    resume: bool = False,
    alone: bool = False,
) -> Seen:
    """Train with Accelerate, gradients accumulated over two micro-batches.

    Args:
        folder: Where its checkpoint is.
        budget: The budget, or None.
        steps: How many micro-batches to go to.
        resume: Whether to go on from the checkpoint.
        alone: Whether the first process alone saves.
    """
    from accelerate import Accelerator, skip_first_batches
    from accelerate.utils import set_seed

    from mimose.integrations.accelerate import attach

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(0)
    model = generated.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(
        generated.Texts(192), batch_size=BATCH, collate_fn=generated.collate, shuffle=False
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    planner = "auto" if budget else "baseline"
    handle = attach(accelerator, model, budget, planner)
    checkpoint = str(folder / "checkpoint")
    seen, begin = Seen(), 0
    if resume:
        accelerator.load_state(checkpoint)
        begin, loader = HALF - 1, skip_first_batches(loader, HALF - 1)
    seen.know(handle if budget else None)
    for step, batch in enumerate(loader, begin):
        if step == steps:
            break
        torch.manual_seed(step)  # Dropout: the same, interrupted or not.
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        seen.add(handle if budget else None, loss.item())
        if step == HALF - 2 and (accelerator.is_main_process or not alone):
            accelerator.save_state(checkpoint)
    handle.detach()
    accelerator.free_memory()
    return seen


def lightning(
    folder: Path, budget: str | None = BUDGET, *, steps: int = STEPS, resume: bool = False
) -> Seen:
    """Train with Lightning's Trainer."""
    import lightning.pytorch as pl

    from mimose.integrations.lightning import MimoseCallback

    ours = [] if budget is None else [MimoseCallback(budget)]
    seen = Seen()

    class Watching(pl.Callback):
        def on_train_start(self, *args: Any) -> None:
            seen.know(ours[0].handle if ours else None)

        def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, *args: Any) -> None:
            seen.add(ours[0].handle if ours else None, outputs["loss"].item())

    training = pl.Trainer(
        strategy="ddp",
        devices=2,
        accelerator="cpu",
        max_epochs=steps // HALF,
        callbacks=[*ours, Watching()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    pl.seed_everything(0, verbose=False)
    module = importlib.import_module("with_lightning").Answering()
    texts = generated.Texts(2 * HALF * BATCH)  # An epoch for two processes.
    loader = DataLoader(texts, batch_size=BATCH, collate_fn=generated.collate)
    file = str(folder / "half.ckpt")
    training.fit(module, loader, ckpt_path=file if resume else None)
    if steps == HALF:
        training.save_checkpoint(file)
    return seen


def fabric(
    folder: Path, budget: str | None = BUDGET, *, steps: int = STEPS, resume: bool = False
) -> Seen:
    """Train with Fabric."""
    from lightning.fabric import Fabric

    from mimose.integrations.lightning import attach

    torch.manual_seed(0)
    runner = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    runner.launch()
    model = generated.build_model()
    model, optimizer = runner.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-3))
    loader = runner.setup_dataloaders(
        DataLoader(generated.Texts(192), batch_size=BATCH, collate_fn=generated.collate)
    )
    handle = attach(model, budget, "auto" if budget else "baseline")
    state = {"model": model, "optimizer": optimizer, "mimose": handle}
    file, begin = folder / "half.ckpt", HALF if resume else 0
    if resume:
        runner.load(file, state)
    seen = Seen()
    seen.know(handle if budget else None)
    for step, batch in enumerate(loader):
        if step == steps:
            break
        if step < begin:
            continue
        torch.manual_seed(step)  # Dropout: the same, interrupted or not.
        loss = model(**batch).loss
        runner.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        seen.add(handle if budget else None, loss.item())
    if steps == HALF:
        runner.save(file, state)
    handle.detach()
    return seen


worker.SCENARIOS = {
    "trainer": lambda: in_parts("trainer", trainer),
    "trainer-sync": lambda: {
        "plain": vars(trainer(Path(sys.argv[1]) / "plain", None)),
        "whole": vars(trainer(Path(sys.argv[1]) / "alike", sync="max")),
    },
    "trainer-fsdp": trainer_fsdp,
    "accelerate": lambda: in_parts("accelerate", accelerate),
    "accelerate-alone": lambda: {
        "first": vars(accelerate(Path(sys.argv[1]) / "alone", steps=HALF, alone=True)),
        "rest": vars(accelerate(Path(sys.argv[1]) / "alone", resume=True)),
    },
    "fabric": lambda: in_parts("fabric", fabric),
    "lightning": lambda: in_parts("lightning", lightning),
}

if __name__ == "__main__":
    worker.main()
