"""Extractive question answering: BERT on SQuAD v1.1, the paper's QA-Bert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mimose_bench.experiments.data import squad_text
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.collate import collate_qa
from mimose_bench.experiments.data.examples import QaExample, TextData
from mimose_bench.experiments.data.synthetic_qa import SyntheticQa
from mimose_bench.experiments.tasks.base import Scale
from mimose_bench.experiments.tasks.text import TextSetting, TextTask


class QaBert(TextTask[QaExample]):
    """Question answering on SQuAD v1.1 with BERT.

    BertForQuestionAnswering with AdamW, batches padded to their longest example, in the paper's
    setting: batch 12, maximum 512, stride 128, learning rate 3e-5. At ``small`` the learning rate
    is 3e-4 and at ``tiny`` 1e-3: random weights need a larger one for the loss to fall visibly
    within 200 steps, and twelve layers without warm-up diverge at 1e-3.
    """

    name = "qa-bert"
    title = "QA-Bert"
    dataset = "SQuAD"
    pretrained = "bert-base-uncased"
    model_class = "BertForQuestionAnswering"
    generated = SyntheticQa
    imitates = "random words in batches of SQuAD's padded lengths, answers marked by tokens"
    settings_by_scale: ClassVar[Mapping[Scale, TextSetting]] = {
        "full": TextSetting(
            num_layers=12,
            hidden=768,
            num_heads=12,
            batch_size=12,
            max_length=512,
            stride=128,
            vocab_size=30522,
            lr=3e-5,
            num_examples=87599,
        ),
        "small": TextSetting(
            num_layers=12,
            hidden=128,
            num_heads=2,
            batch_size=4,
            max_length=512,
            stride=128,
            vocab_size=30522,
            lr=3e-4,
            num_examples=87599,
        ),
        "tiny": TextSetting(
            num_layers=4,
            hidden=64,
            num_heads=1,
            batch_size=4,
            max_length=128,
            stride=32,
            vocab_size=1024,
            lr=1e-3,
            num_examples=203,
        ),
    }

    def _open_hub(self, reason: str) -> TextData[QaExample]:
        window = self.setting.max_length, self.setting.stride
        return squad_text.open_hub(self.pretrained, "bert", *window, reason)

    def _open_path(self, path: Path, vocab: Path | None, reason: str) -> TextData[QaExample]:
        window = self.setting.max_length, self.setting.stride
        return squad_text.open_path(path, vocab, "bert", *window, reason)

    def _config(self) -> Any:
        from transformers import BertConfig

        return BertConfig(**self._bert_shape(), max_position_embeddings=self.setting.max_length)

    def _collate(self, examples: Sequence[QaExample]) -> Batch:
        return collate_qa(examples, self.data.pad_id)
