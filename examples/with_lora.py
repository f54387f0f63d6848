"""LoRA adapters on a frozen model, by PEFT, under a memory budget, saved halfway and resumed.

python examples/with_lora.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from generated import BATCH, BUDGET, Texts, build_model, collate
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from torch.utils.data import DataLoader

import mimose


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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    adapters = LoraConfig(r=8, lora_dropout=0.1, target_modules=["query", "value"])
    model = get_peft_model(build_model(), adapters).to(device).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    # Without a budget nothing is recomputed; with one the default planner, auto, decides.
    handle = mimose.attach(model, budget, "baseline" if budget is None else "auto")

    step, losses = 0, []
    if resume:
        saved = torch.load(folder / "lora.pt")
        set_peft_model_state_dict(model, saved["adapters"])
        optimizer.load_state_dict(saved["optimizer"])
        handle.load_state_dict(saved["mimose"])  # What was learned: nothing is measured again.
        step, losses = saved["step"], saved["losses"]

    batches = list(DataLoader(Texts(), batch_size=BATCH, collate_fn=collate))
    for batch in batches[step:steps]:
        torch.manual_seed(step)  # Dropout: the same whether the run was interrupted or not.
        loss = model(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        step += 1

    state = {"adapters": get_peft_model_state_dict(model), "optimizer": optimizer.state_dict()}
    state.update(mimose=handle.state_dict(), step=step, losses=losses)
    torch.save(state, folder / "lora.pt")
    print(handle.summary())
    handle.detach()
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        train(Path(folder), steps=8)
        print(train(Path(folder), resume=True))
