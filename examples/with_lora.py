"""LoRA adapters on a frozen model, by PEFT, under a memory budget.

python examples/with_lora.py
"""

from __future__ import annotations

import torch
from generated import BATCH, BUDGET, Texts, build_model, collate
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader

import mimose


def train(budget: str | None = BUDGET, *, steps: int = 16) -> list[float]:
    """Train and return the losses.

    Args:
        budget: The budget; None for plain training.
        steps: At which step to stop.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    adapters = LoraConfig(r=8, lora_dropout=0.1, target_modules=["query", "value"])
    model = get_peft_model(build_model(), adapters).to(device).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    planner = "baseline" if budget is None else "mimose"
    options = {} if budget is None else {"sheltered": 6}
    handle = mimose.attach(model, budget, planner, **options)

    torch.manual_seed(0)
    losses = []
    batches = list(DataLoader(Texts(), batch_size=BATCH, collate_fn=collate))
    for batch in batches[:steps]:
        loss = model(**{name: tensor.to(device) for name, tensor in batch.items()}).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())

    print(handle.summary())
    handle.detach()
    return losses


if __name__ == "__main__":
    print(train())
