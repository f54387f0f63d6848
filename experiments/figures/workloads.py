"""The paper's training settings as its figures need them: batches of any padded length.

IPDPS 2023, Table II (doi 10.1109/IPDPS54959.2023.00025), and the released scripts. Models and batch
sizes are those of the tasks at full scale: random weights, since neither memory nor time depends
on them, eager attention and fp32, as in the PyTorch 1.11 that the paper ran, trained with AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.tasks import TASKS, TaskOptions, make_task


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model and its batches; of a task it has what the training loop asks for.

    Attributes:
        name: The paper's name of the task.
        dataset: The data set whose lengths it sees, as the paper's Fig 3 calls it.
        batch_size: Samples in a batch.
        longest: The longest padded length that the paper shows for it.
        is_cut: Whether longer examples are cut to that length, where many batches end up then.
        new_model: Builds the model in fp32.
        labels: Returns the labels for a batch of that many samples.
        num_choices: Sequences in a sample, for multiple choice; None for one.
        has_token_types: Whether the tokenizer marks which sentence a token belongs to.
        decoder_length: Length that labels are padded to, for an encoder with a decoder.
    """

    name: str
    dataset: str
    batch_size: int
    longest: int
    new_model: Callable[[], nn.Module]
    labels: Callable[[int], dict[str, Tensor]]
    num_choices: int | None = None
    has_token_types: bool = True
    is_cut: bool = False
    decoder_length: int | None = None

    def build_model(self) -> nn.Module:
        """Return the model in training mode."""
        return self.new_model().train()

    def optimizer(self, model: nn.Module, *, foreach: bool | None = None) -> torch.optim.Optimizer:
        """Return AdamW without weight decay, as in the scripts that the paper ran."""
        return torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=0.0, foreach=foreach)

    def loss(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the model's own loss."""
        # A decoder would keep its keys and values for the next token, of which there is none.
        options = {} if self.decoder_length is None else {"use_cache": False}
        return model(**tensors, **options).loss

    def settings(self) -> dict[str, Any]:
        """Return what tells this workload from others."""
        return {"task": self.name, "dataset": self.dataset, "batch_size": self.batch_size}

    def example_batch(self, length: int) -> Batch:
        """Return a batch padded to ``length``: one sample fills it, the others half of it."""
        choices = () if self.num_choices is None else (self.num_choices,)
        shape = (self.batch_size, *choices, length)
        mask = torch.ones(shape, dtype=torch.long)
        mask[1:, ..., (length + 1) // 2 :] = 0
        tensors = {"input_ids": torch.full(shape, 5), "attention_mask": mask}
        if self.has_token_types:
            tensors["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
        others = () if self.decoder_length is None else (self.decoder_length,)
        return Batch(
            {**tensors, **self.labels(self.batch_size)},
            size=(self.batch_size, length, *others),
            input_size=mask.numel(),
            num_samples=self.batch_size,
            num_tokens=int(mask.sum()),
        )


def _bert(head: str, **settings: Any) -> nn.Module:
    import transformers

    config = transformers.BertConfig(attn_implementation="eager", **settings)
    return getattr(transformers, head)(config)


def _of_task(name: str, **settings: Any) -> Workload:
    """Return a task's workload, with the task's own model and batch size."""
    task = TASKS[name]
    options = TaskOptions(scale="full", data="synthetic")
    return Workload(
        name=task.title,
        dataset=task.dataset,  # type: ignore[attr-defined]
        batch_size=task.settings_by_scale["full"].batch_size,  # type: ignore[attr-defined]
        new_model=lambda: make_task(name, options).build_model(),
        **settings,
    )


def _answers(samples: int) -> dict[str, Tensor]:
    position = torch.ones(samples, dtype=torch.long)
    return {"start_positions": position, "end_positions": position.clone()}


def _classes(samples: int) -> dict[str, Tensor]:
    return {"labels": torch.zeros(samples, dtype=torch.long)}


def _translations(samples: int) -> dict[str, Tensor]:
    return {"labels": torch.full((samples, DECODER_LENGTH), 5)}


DECODER_LENGTH = 512
"""The released script pads every translation's labels to its maximum."""

QA_BERT = _of_task("qa-bert", longest=512, labels=_answers, is_cut=True)
"""bert-base-uncased on SQuAD, cut at 512 tokens."""

TC_BERT = _of_task("tc-bert", longest=332, labels=_classes)
"""bert-base-cased on GLUE-QQP."""

MC_ROBERTA = _of_task(
    "mc-roberta", longest=145, labels=_classes, num_choices=4, has_token_types=False
)
"""roberta-base on SWAG."""

TR_T5 = _of_task(
    "tr-t5",
    longest=460,
    labels=_translations,
    has_token_types=False,
    decoder_length=DECODER_LENGTH,
)
"""t5-base on UN_PC."""

MC_BERT = Workload(
    name="MC-Bert",
    dataset="SWAG",
    batch_size=16,
    longest=141,
    new_model=lambda: _bert("BertForMultipleChoice", vocab_size=30522),
    labels=_classes,
    num_choices=4,
)
"""bert-base on SWAG: Fig 9 alone shows it, and its lengths end at 141 where RoBERTa's reach 145."""
