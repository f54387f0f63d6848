"""A tiny question-answering BERT and generated batches of uneven lengths, for the examples.

Most of the texts are short and a few are long, as in real data: a checkpointing plan made for the
longest batch recomputes on every short one for nothing.
"""

from __future__ import annotations

import os
import sys

# Everything here is made from a configuration: nothing is looked up on the hub.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import BertConfig, BertForQuestionAnswering

BUDGET = "20MB"
"""Too little for the longest batch without recomputation, enough for most."""

BATCH = 4

_WORDS = 500
_SHORT, _LONG = (16, 48), 128


def build_model(seed: int = 0) -> BertForQuestionAnswering:
    """Return the model, the same one for the same seed."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=_WORDS,
        hidden_size=64,
        num_hidden_layers=6,
        num_attention_heads=2,
        intermediate_size=256,
        max_position_embeddings=_LONG,
    )
    return BertForQuestionAnswering(config).train()


class Texts(Dataset):
    """Token sequences of uneven lengths with an answer somewhere in them.

    Args:
        count: How many.
        seed: What they are drawn from.
    """

    def __init__(self, count: int = 96, seed: int = 1) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._items = []
        for number in range(count):
            length = int(torch.randint(*_SHORT, (), generator=generator))
            if number % 24 == 23:
                length = _LONG
            self._items.append(
                {
                    "input_ids": torch.randint(1, _WORDS, (length,), generator=generator).tolist(),
                    "start_positions": int(torch.randint(length, (), generator=generator)),
                    "end_positions": int(torch.randint(length, (), generator=generator)),
                }
            )

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, index: int) -> dict:
        return self._items[index]


def collate(items: list[dict]) -> dict[str, torch.Tensor]:
    """Pad to the longest of ``items``, as a tokenizer's collator does."""
    longest = max(len(item["input_ids"]) for item in items)
    ids = torch.zeros(len(items), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, item in enumerate(items):
        length = len(item["input_ids"])
        ids[row, :length] = torch.tensor(item["input_ids"])
        mask[row, :length] = 1
    positions = {
        name: torch.tensor([item[name] for item in items])
        for name in ("start_positions", "end_positions")
    }
    return {"input_ids": ids, "attention_mask": mask, **positions}


def join_processes() -> None:
    """Join the processes that `torchrun` started; without it, end with the command that does."""
    if "RANK" not in os.environ:
        raise SystemExit(
            f"{sys.argv[0]} trains in several processes, which torchrun starts:\n"
            f"torchrun --nproc-per-node 2 {sys.argv[0]}"
        )
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def print_in_turn(text: str) -> None:
    """Print the text of each process, from the first one: what all print at once gets mixed up."""
    texts = [""] * dist.get_world_size()
    dist.all_gather_object(texts, f"rank {dist.get_rank()}: {text}")
    if dist.get_rank() == 0:
        print("\n".join(texts), flush=True)
