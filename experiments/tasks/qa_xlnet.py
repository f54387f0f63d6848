"""Extractive question answering: XLNet on SQuAD v1.1, QA-XLNet of the paper's first version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mimose_bench.experiments.data import squad_text
from mimose_bench.experiments.data.batch import Batch
from mimose_bench.experiments.data.collate import collate_qa_xlnet
from mimose_bench.experiments.data.examples import QaExample, TextData
from mimose_bench.experiments.data.sources import DataSource
from mimose_bench.experiments.data.synthetic_qa import SyntheticXlnetQa
from mimose_bench.experiments.tasks.base import Scale
from mimose_bench.experiments.tasks.text import TextSetting, TextTask


class QaXlnet(TextTask[QaExample]):
    """Question answering on SQuAD v1.1 with XLNet and its beam search.

    XLNetForQuestionAnswering as the released script ``run_qa_beam_search.py`` trains it: the
    answer's end is found from its true start, and a third head says whether there is an answer.
    Batch 16, maximum 512, stride 128, learning rate 3e-5 with AdamW; padding is on the left, and no
    memories are kept from batch to batch. The paper shows no lengths in XLNet's own tokens:
    generated batches are as long as BERT's.
    """

    name = "qa-xlnet"
    title = "QA-XLNet"
    dataset = "SQuAD"
    pretrained = "xlnet-base-cased"
    model_class = "XLNetForQuestionAnswering"
    generated = SyntheticXlnetQa
    imitates = "random words in batches of SQuAD's padded lengths, answers marked by tokens"
    settings_by_scale: ClassVar[Mapping[Scale, TextSetting]] = {
        "full": TextSetting(
            num_layers=12,
            hidden=768,
            num_heads=12,
            batch_size=16,
            max_length=512,
            stride=128,
            vocab_size=32000,
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
            vocab_size=32000,
            lr=3e-4,
            num_examples=87599,
        ),
        "tiny": TextSetting(
            num_layers=3,
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

    def _open(self) -> DataSource:
        if self.options.attention != "eager":
            raise ValueError(f"task {self.name} has eager attention only: use --attention eager")
        return super()._open()

    def _open_hub(self, reason: str) -> TextData[QaExample]:
        window = self.setting.max_length, self.setting.stride
        return squad_text.open_hub(self.pretrained, "xlnet", *window, reason)

    def _open_path(self, path: Path, vocab: Path | None, reason: str) -> TextData[QaExample]:
        window = self.setting.max_length, self.setting.stride
        return squad_text.open_path(path, vocab, "xlnet", *window, reason)

    def _config(self) -> Any:
        from transformers import XLNetConfig

        setting = self.setting
        return XLNetConfig(
            vocab_size=self.data.vocab_size,
            d_model=setting.hidden,
            n_layer=setting.num_layers,
            n_head=setting.num_heads,
            d_inner=4 * setting.hidden,
            pad_token_id=self.data.pad_id,
        )

    def _collate(self, examples: Sequence[QaExample]) -> Batch:
        return collate_qa_xlnet(examples, self.data.pad_id)
