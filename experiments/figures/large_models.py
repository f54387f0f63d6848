"""BERT-large, GPT-2 and RoBERTa-large at their pre-training tasks, in batches of one length.

What Tempo (NeurIPS 2022, arXiv 2210.10246) trains; random weights, eager attention, fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mimose_bench.experiments.data.batch import Batch

LENGTH = 512
_ENCODER = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Large:
    """A language model and its batches; of a task it has what the training loop asks for.

    Attributes:
        name: What it is called.
        kind: Its configuration's class in ``transformers``.
        head: Its model's class there.
        config: What its configuration is told.
        length: Tokens in a sample, none of them padding.
    """

    name: str
    kind: str
    head: str
    config: Mapping[str, Any]
    length: int = LENGTH

    def build_model(self) -> nn.Module:
        """Return the model in training mode."""
        import transformers

        config = getattr(transformers, self.kind)(attn_implementation="eager", **self.config)
        model: nn.Module = getattr(transformers, self.head)(config)
        return model.train()

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=foreach)

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the model's own loss."""
        options = {"use_cache": False} if "GPT2" in self.head else {}
        loss: Tensor = model(**tensors, **options).loss
        return loss

    def settings(self) -> dict[str, Any]:
        """Return what tells this workload from others."""
        return {"model": self.name, "length": self.length}

    def batch(self, samples: int) -> Batch:
        """Return a batch of so many samples."""
        words = torch.full((samples, self.length), 5)
        return Batch(
            {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": words.clone()},
            size=(samples, self.length),
            input_size=words.numel(),
            num_samples=samples,
            num_tokens=words.numel(),
        )


LARGE = (
    Large(
        name="BERT-large",
        kind="BertConfig",
        head="BertForMaskedLM",
        config={**_ENCODER, "vocab_size": 30522},
    ),
    Large(name="GPT-2", kind="GPT2Config", head="GPT2LMHeadModel", config={}),
    Large(
        name="RoBERTa-large",
        kind="RobertaConfig",
        head="RobertaForMaskedLM",
        config={**_ENCODER, "vocab_size": 50265, "max_position_embeddings": 514},
    ),
)
