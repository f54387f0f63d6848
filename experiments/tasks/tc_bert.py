"""Text classification: BERT on GLUE-QQP, the paper's TC-Bert."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.collate import collate_pairs
from mimose_bench.experiments.data.examples import PairExample, TextData
from mimose_bench.experiments.data.synthetic_pairs import SyntheticPairs
from mimose_bench.experiments.tasks.base import Scale
from mimose_bench.experiments.tasks.text import TextSetting, TextTask


class TcBert(TextTask[PairExample]):
    """Whether two questions of Quora mean the same (GLUE-QQP), with BERT.

    BertForSequenceClassification in the paper's setting: bert-base-cased, batch 32, as many tokens
    as the model takes, learning rate 2e-5 with AdamW. For the rates of the smaller scales see
    ``qa-bert``.
    """

    name = "tc-bert"
    title = "TC-Bert"
    dataset = "GLUE-QQP"
    pretrained = "bert-base-cased"
    model_class = "BertForSequenceClassification"
    generated = SyntheticPairs
    imitates = "random words in batches of GLUE-QQP's padded lengths, duplicates marked by tokens"
    settings_by_scale: ClassVar[Mapping[Scale, TextSetting]] = {
        "full": TextSetting(
            num_layers=12,
            hidden=768,
            num_heads=12,
            batch_size=32,
            max_length=512,
            vocab_size=28996,
            lr=2e-5,
            num_examples=363846,
        ),
        "small": TextSetting(
            num_layers=12,
            hidden=128,
            num_heads=2,
            batch_size=8,
            max_length=512,
            vocab_size=28996,
            lr=3e-4,
            num_examples=363846,
        ),
        "tiny": TextSetting(
            num_layers=4,
            hidden=64,
            num_heads=1,
            batch_size=8,
            max_length=128,
            vocab_size=1024,
            lr=1e-3,
            num_examples=403,
        ),
    }

    def _open_hub(self, reason: str) -> TextData[PairExample]:
        from mimose_bench.experiments.data import qqp_text

        return qqp_text.open_hub(self.pretrained, self.setting.max_length, reason)

    def _open_path(self, path: Path, vocab: Path | None, reason: str) -> TextData[PairExample]:
        from mimose_bench.experiments.data import qqp_text

        return qqp_text.open_path(path, vocab, self.setting.max_length, reason)

    def _config(self) -> Any:
        from transformers import BertConfig

        return BertConfig(
            **self._bert_shape(), max_position_embeddings=self.setting.max_length, num_labels=2
        )

    def _collate(self, examples: Sequence[PairExample]) -> Batch:
        return collate_pairs(examples, self.data.pad_id)
